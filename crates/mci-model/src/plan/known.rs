//! What the index knows of a member, in the terms of the decision table.

use crd::RoutingMode;

use super::decision::{ExportKnown, ImportsKnown, Known, NamespaceKnown, Tie};
use crate::evidence::Evidence;
use crate::{
    index::{
        World,
        member::{Coverage, Link, Member},
    },
    name::Key,
};
use moment::Moment;

// === impl Known ===

impl Known {
    /// A member with regard to a key.
    pub fn of(world: &World, member: &Member, key: &Key, now: Moment) -> Self {
        Self {
            tie: match member.link {
                Link::Removing => Tie::Removed,
                Link::Refused(refusal) => Tie::Refused(refusal),
                Link::Connecting | Link::Syncing | Link::Live | Link::Suspect | Link::Lost => {
                    Tie::Member
                }
            },
            export: export_known(member, key),
            reach: world.reach(member, now),
            exports_denied: member.exports_denied(now, world.rules.stale_after),
            met: member.met,
            import_crd: member.import_crd.as_ref().map(|crd| crd.flavour),
            imports: if member.denied.imports() {
                ImportsKnown::Denied
            } else if member.imports.coverage == Coverage::NotServed {
                ImportsKnown::NotServed
            } else if member.imports_known() {
                ImportsKnown::Listed
            } else {
                ImportsKnown::No
            },
            namespace: match member.namespaces.items.get(&*key.namespace) {
                Some(namespace) if !namespace.terminating => NamespaceKnown::Present,
                _ => NamespaceKnown::Missing,
            },
        }
    }
}

/// Silence is no answer: what was known stands.
fn export_known(member: &Member, key: &Key) -> ExportKnown {
    if member.withdrawn {
        return ExportKnown::Ended(Evidence::WithdrawAfter);
    }
    let Some(record) = member.pools.get(key) else {
        return if member.knows_pool(key) {
            ExportKnown::Ended(Evidence::PoolAbsent)
        } else {
            ExportKnown::Unheard
        };
    };
    match record.facts.export.requested() {
        Err(evidence) => ExportKnown::Ended(evidence),
        Ok(_) if member.over_cap.contains(key) => ExportKnown::OverCap,
        Ok(_) if !member.exports_known() => ExportKnown::Unheard,
        Ok(request)
            if !member.parts_known()
                || request.mode.unwrap_or(member.default_mode) == RoutingMode::ParentMode
                    && !member.parents.known() =>
        {
            if record.is_crd_missing() {
                ExportKnown::Unheard
            } else {
                ExportKnown::PartsUnknown
            }
        }
        Ok(_) if record.is_crd_missing() => ExportKnown::CrdMissing,
        Ok(_) if record.doubt.is_some() => ExportKnown::Guarded,
        Ok(_) => ExportKnown::Asked,
    }
}
