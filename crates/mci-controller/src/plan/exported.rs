//! `Exported`: where a pool's export stands, judged by the live imports of the others, never by write results.

use std::collections::BTreeMap;

use crd::conditions::{self, Status};

use super::{
    Hold, ImportPlan, Policy, PoolPlan, covers_entry,
    export::{Export, parse_export},
};
use crate::{
    index::{
        World,
        facts::Claim,
        member::{Fault, Link, Member, PoolRecord, Reach},
    },
    name::ClusterName,
};
use moment::Moment;

/// Members named in a message; the rest is counted.
const MAX_NAMED: usize = 8;

/// What an importer says of the export.
enum Verdict {
    Carries,
    /// On its way.
    Pending,
    /// Not to be had now: named and counted.
    Blocked(&'static str),
    /// No such namespace there: named, and counted only if the operator is strict.
    NamespaceMissing,
}

/// What our entry in the pool's status should be.
pub(super) fn judge(
    world: &World,
    policy: &Policy,
    exporter: &ClusterName,
    member: &Member,
    record: &PoolRecord,
    imports: &BTreeMap<ClusterName, ImportPlan>,
    now: Moment,
) -> PoolPlan {
    let generation = Some(record.facts.generation);
    let settled = |status, reason, message: String| PoolPlan::Exported {
        condition: conditions::make(conditions::EXPORTED, status, reason, message, generation),
        settled: true,
    };
    if member.link == Link::Removing {
        return PoolPlan::NoEntry;
    }
    match parse_export(&record.facts.annotations) {
        Export::NotRequested => return PoolPlan::NoEntry,
        Export::Invalid(invalid) => {
            return settled(Status::False, "NotSupported", invalid.to_string());
        }
        Export::Requested(_) => {}
    }
    if let Some(message) = unsupported(exporter, imports) {
        return settled(Status::False, "NotSupported", message);
    }
    let mut carrying = 0_usize;
    let mut counted = 0_usize;
    let mut pending = false;
    let mut missing = 0_usize;
    let mut others = 0_usize;
    let mut named: Vec<String> = Vec::new();
    for (name, plan) in imports {
        let Some(importer) = world.members.get(name) else {
            continue;
        };
        if name == exporter || importer.link == Link::Removing {
            continue;
        }
        others += 1;
        let blocked = match verdict(exporter, record, importer, plan, world.reach(importer, now)) {
            Verdict::Carries => {
                carrying += 1;
                counted += 1;
                continue;
            }
            Verdict::Pending => {
                counted += 1;
                pending = true;
                "Pending"
            }
            Verdict::Blocked(reason) => {
                counted += 1;
                reason
            }
            Verdict::NamespaceMissing => {
                counted += usize::from(policy.strict_exported);
                missing += 1;
                Hold::NamespaceMissing.reason()
            }
        };
        named.push(format!("{name} {blocked}"));
    }
    if others == 0 {
        let message = "the ClusterSet has no other member".to_owned();
        return settled(Status::False, "NoOtherMember", message);
    }
    let (status, reason) = if missing == others {
        (Status::False, "NamespaceMissing")
    } else if carrying == counted {
        (Status::True, "Exported")
    } else {
        (Status::False, "PartiallyExported")
    };
    let mut message = format!("exported to {carrying}/{counted}");
    if !named.is_empty() {
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        if more > 0 {
            named.push(format!("+{more} more"));
        }
        message.push_str(": ");
        message.push_str(&named.join("; "));
    }
    PoolPlan::Exported {
        condition: conditions::make(conditions::EXPORTED, status, reason, message, generation),
        settled: !pending,
    }
}

/// The message of an EPP Service type that is never exported, as the planned entry has it.
fn unsupported(
    exporter: &ClusterName,
    imports: &BTreeMap<ClusterName, ImportPlan>,
) -> Option<String> {
    let entry = imports.values().find_map(|plan| match plan {
        ImportPlan::Present(planned) => planned
            .status
            .clusters
            .iter()
            .find(|entry| entry.name == exporter.as_str()),
        ImportPlan::Absent | ImportPlan::Hold(_) => None,
    })?;
    let accepted = conditions::find(&entry.conditions, conditions::ACCEPTED)?;
    (accepted.reason == "UnsupportedServiceType").then(|| accepted.message.clone())
}

fn verdict(
    exporter: &ClusterName,
    record: &PoolRecord,
    importer: &Member,
    plan: &ImportPlan,
    reach: Reach,
) -> Verdict {
    if let (Reach::Lost(fault) | Reach::Stale(fault), true) = (reach, importer.met) {
        return Verdict::Blocked(match (importer.link, plan) {
            (Link::Refused(_), ImportPlan::Hold(hold)) => hold.reason(),
            _ if fault == Fault::AuthFailed => "AuthFailed",
            _ => "Unreachable",
        });
    }
    let planned = match plan {
        ImportPlan::Hold(Hold::NamespaceMissing) => return Verdict::NamespaceMissing,
        ImportPlan::Hold(hold) => return Verdict::Blocked(hold.reason()),
        ImportPlan::Absent => return Verdict::Pending,
        ImportPlan::Present(planned) => planned,
    };
    let Some(live) = importer.imports.items.get(&record.facts.key) else {
        return Verdict::Pending;
    };
    if live.claim == Claim::Foreign {
        return Verdict::Blocked("Conflict");
    }
    let entry_of = |clusters: &'_ [crd::ImportedCluster]| {
        clusters
            .iter()
            .find(|entry| entry.name == exporter.as_str())
            .cloned()
    };
    match (
        entry_of(&planned.status.clusters),
        entry_of(&live.status.clusters),
    ) {
        (Some(planned), Some(live)) if covers_entry(&live, &planned) => Verdict::Carries,
        _ => Verdict::Pending,
    }
}
