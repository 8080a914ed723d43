//! The input of the decision table, read from the index.

use crd::RoutingMode;

use super::decision::{ExportKnown, ImportsKnown, Known, Membership, NamespaceKnown};
use crate::evidence::Evidence;
use crate::{
    index::{
        World,
        grant::{MayExport, Stated},
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
            membership: match member.contact.link {
                Link::Removing => Membership::Removed,
                Link::Refused(refusal) => Membership::Refused(refusal),
                Link::Connecting | Link::Syncing | Link::Live | Link::Suspect | Link::Lost => {
                    Membership::Member
                }
            },
            export: export_known(member, key),
            reach: world.reach(member, now),
            exports_denied: member.exports_denied(now, world.rules.stale_after),
            met: member.contact.met,
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

/// A silent member proves nothing: what was known stays. What home says of its rights is evidence without it.
fn export_known(member: &Member, key: &Key) -> ExportKnown {
    if member.withdrawn {
        return ExportKnown::Ended(Evidence::WithdrawAfter);
    }
    let may_export = member.may_export(&key.namespace);
    let Some(record) = member.pools.get(key) else {
        return if member.pools.knows(key) {
            ExportKnown::Ended(Evidence::PoolAbsent)
        } else if may_export == MayExport::No {
            ExportKnown::Ended(Evidence::NotAllowed)
        } else {
            ExportKnown::NotSeen
        };
    };
    // without the networks its entry gets no requests: one that is written keeps those that it has
    let networks_unknown = member.origin.pod_cidrs == Stated::Unreadable;
    match record.facts.export.requested() {
        Err(evidence) => ExportKnown::Ended(evidence),
        Ok(_) if may_export == MayExport::No => ExportKnown::Ended(Evidence::NotAllowed),
        Ok(_) if may_export == MayExport::Unknown || networks_unknown => ExportKnown::RightUnknown,
        Ok(_) if member.pools.over_cap.contains(key) => ExportKnown::OverCap,
        Ok(_) if !member.exports_known() => ExportKnown::NotSeen,
        Ok(request)
            if !member.parts_known()
                || request.mode.unwrap_or(member.default_mode) == RoutingMode::ParentMode
                    && !member.parents.known() =>
        {
            if record.is_crd_missing() {
                ExportKnown::NotSeen
            } else {
                ExportKnown::PartsUnknown
            }
        }
        Ok(_) if record.is_crd_missing() => ExportKnown::CrdMissing,
        Ok(_) if record.doubt.is_some() => ExportKnown::Guarded,
        Ok(_) => ExportKnown::Asked,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;
    use crate::{
        fixtures::*,
        index::{facts::CrdCheck, member::Fault, rules::Rules, update::Update},
    };

    /// Four members of which `a` exports a pool.
    fn mk_exporting() -> World {
        let mut world = World::new(Rules {
            isolation_guard: true,
            withdraw_after: Some(STALE_AFTER),
            ..mk_rules()
        });
        for name in ["a", "b", "c", "d"] {
            world.add_member(&mk_name(name), Moment::default());
            connect(&mut world, name, Vec::new(), Vec::new(), Moment::default());
        }
        export(&mut world, "a", "llm");
        world
    }

    fn deleted(world: &mut World, crd: CrdCheck) {
        let key = mk_key("llm");
        let deleted = Update::PoolDeleted { key, crd };
        world.update(&mk_name("a"), deleted, Moment::default());
    }

    fn lists_nothing_while_most_are_lost(world: &mut World) {
        for name in ["b", "c", "d"] {
            lose(world, name, Moment::default());
        }
        let listed = Update::PoolsListed {
            pools: Vec::new(),
            odd: BTreeSet::new(),
            crd: mk_crd(),
        };
        world.update(&mk_name("a"), listed, Moment::default());
    }

    fn in_parent_mode(world: &mut World) {
        let applied = Update::PoolApplied(mk_parent_pool("llm"));
        world.update(&mk_name("a"), applied, Moment::default());
    }

    #[rstest]
    #[case::asked(|_: &mut World| {}, ExportKnown::Asked)]
    #[case::gone_with_its_crd(|world: &mut World| deleted(world, CrdCheck::Doubtful), ExportKnown::CrdMissing)]
    #[case::deleted(|world: &mut World| deleted(world, mk_crd()), ExportKnown::Ended(Evidence::PoolAbsent))]
    #[case::under_the_guard(lists_nothing_while_most_are_lost, ExportKnown::Guarded)]
    #[case::silent_for_too_long(
        |world: &mut World| {
            world.update(&mk_name("a"), Update::Lost(Fault::ConnectionLost), Moment::default());
            world.tick(Moment::default() + STALE_AFTER);
        },
        ExportKnown::Ended(Evidence::WithdrawAfter)
    )]
    #[case::gateways_unlisted(in_parent_mode, ExportKnown::PartsUnknown)]
    #[case::gateways_unlisted_and_gone_with_its_crd(
        |world: &mut World| {
            in_parent_mode(world);
            deleted(world, CrdCheck::Doubtful);
        },
        ExportKnown::NotSeen
    )]
    fn what_is_known_of_an_export(#[case] happens: fn(&mut World), #[case] expected: ExportKnown) {
        let mut world = mk_exporting();
        world.tick(Moment::default() + STALE_AFTER);
        happens(&mut world);
        assert_eq!(export_known(member(&world, "a"), &mk_key("llm")), expected);
    }

    #[test]
    fn nothing_is_known_of_an_export_before_its_services_are_listed() {
        let mut world = World::new(mk_rules());
        world.add_member(&mk_name("a"), Moment::default());
        for update in first_lists(vec![mk_pool("llm", Some("ClusterSet"))], Vec::new()) {
            if !matches!(update, Update::Services(_)) {
                world.update(&mk_name("a"), update, Moment::default());
            }
        }
        let known = export_known(member(&world, "a"), &mk_key("llm"));
        assert_eq!(known, ExportKnown::NotSeen);
    }
}
