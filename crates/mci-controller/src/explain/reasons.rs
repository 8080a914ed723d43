//! Makes the explanation of one key from the plan and the decision table. Pure.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use super::{Explanation, Exported, Exporter, Importer, ImporterReason, Rule, State};
use crate::{
    index::{
        World,
        facts::Claim,
        member::{Member, PoolRecord},
    },
    name::{ClusterName, Key},
    plan::{
        ImportPlan, KeyPlan, Policy, PoolPlan,
        decision::{Decision, ImportAction, Known, decide},
        desired_for,
        diff::{Step, diff},
        entry_of, join_names,
    },
    write::{Queue, action::Slot},
};
use moment::Moment;

/// What an explanation is made from.
#[derive(Clone, Copy)]
pub(crate) struct ExplainInput<'a> {
    pub(crate) world: &'a World,
    pub(crate) policy: &'a Policy,
    pub(crate) queues: &'a BTreeMap<ClusterName, Arc<Queue>>,
    pub(crate) gate_open: bool,
    /// Whether this controller holds the claim to write.
    pub(crate) leader: bool,
    pub(crate) dry_run: bool,
    pub(crate) now: Moment,
}

/// Why each member has or lacks the key; none where no member has a pool or an import of this name.
pub(crate) fn explain(input: ExplainInput, key: &Key) -> Option<Explanation> {
    let world = input.world;
    let known = |member: &Member| {
        member.pools.records.contains_key(key) || member.imports.items.contains_key(key)
    };
    if !world.members.values().any(known) {
        return None;
    }
    let plan = desired_for(world, input.policy, key, input.now);
    let decisions: Vec<(&ClusterName, &Member, Decision)> = world
        .members
        .iter()
        .map(|(name, member)| {
            let known = Known::of(world, member, key, input.now);
            (name, member, decide(known))
        })
        .collect();
    let mut exporters = Vec::new();
    let mut importers = Vec::new();
    let mut trace = global_rules(input);
    let mut table = [Grouped::default(), Grouped::default(), Grouped::default()];
    for (name, member, decision) in &decisions {
        let Decision {
            entry,
            imports,
            counted_as,
        } = decision;
        let [entries, of_imports, counted] = &mut table;
        entries.add(entry.rule(), entry.reason(), name);
        of_imports.add(imports.rule(), imports.reason(), name);
        counted.add(counted_as.rule(), counted_as.reason(), name);
        exporters.extend(exporter(name, member, *decision, &plan, key));
        importers.extend(importer(input, name, member, *decision, &plan, key));
    }
    trace.extend(table.into_iter().flat_map(Grouped::rules));
    for (name, pool) in &plan.pools {
        if let PoolPlan::Exported { condition, .. } = pool {
            let detail = format!("{name}: {}", condition.message);
            trace.push(Rule::new("exported-condition", &condition.reason, detail));
        }
    }
    Some(Explanation {
        key: key.to_string(),
        exporters,
        importers,
        trace,
    })
}

/// The rules that hold for all keys: whether anything is written.
fn global_rules(input: ExplainInput) -> Vec<Rule> {
    let gate = if input.gate_open {
        Rule::new("gate", "Open", "every member is synced, or was waited for")
    } else {
        let text =
            "nothing is written before every member is synced or --initial-sync-timeout is over";
        Rule::new("gate", "Closed", text)
    };
    let claim = if input.leader {
        Rule::new("claim", "Held", "this controller may write")
    } else {
        Rule::new(
            "claim",
            "NotHeld",
            "another controller leads: this one writes nothing",
        )
    };
    let dry = input
        .dry_run
        .then(|| Rule::new("dry-run", "On", "writes are logged, not sent"));
    [gate, claim].into_iter().chain(dry).collect()
}

/// A member that has the pool or an entry; the others are in the trace alone.
fn exporter(
    name: &ClusterName,
    member: &Member,
    decision: Decision,
    plan: &KeyPlan,
    key: &Key,
) -> Option<Exporter> {
    let record = member.pools.get(key);
    let entry = entry_of(&plan.imports, name).map(|entry| json!(entry));
    if record.is_none() && entry.is_none() {
        return None;
    }
    let mode = entry
        .as_ref()
        .and_then(|entry| entry.get("routingMode")?.as_str().map(ToOwned::to_owned))
        .or_else(|| requested_mode(member, record?));
    Some(Exporter {
        cluster: name.to_string(),
        mode,
        entry,
        evidence: decision.entry.reason().to_owned(),
        exported: plan.pools.get(name).and_then(exported),
    })
}

fn exported(pool: &PoolPlan) -> Option<Exported> {
    match pool {
        PoolPlan::NoEntry => None,
        PoolPlan::Exported { condition, .. } => Some(Exported {
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }),
    }
}

/// The mode that a pool's annotations ask for.
fn requested_mode(member: &Member, record: &PoolRecord) -> Option<String> {
    let mode = json!(member.mode_of(&record.facts)?);
    mode.as_str().map(ToOwned::to_owned)
}

/// None if there is no import and none is planned, without an obstacle.
fn importer(
    input: ExplainInput,
    name: &ClusterName,
    member: &Member,
    decision: Decision,
    plan: &KeyPlan,
    key: &Key,
) -> Option<Importer> {
    let import = plan.imports.get(name)?;
    let live = member.imports.items.get(key);
    let silent = matches!(decision.imports, ImportAction::Queue(_));
    let step = diff(import, live);
    let because = |state, stand: ImporterReason| (state, stand.reason());
    let (state, reason) = match (import, &step) {
        (ImportPlan::Hold(hold), _) => (State::Skipped, hold.reason()),
        (_, Step::Conflict) => because(State::Skipped, ImporterReason::Conflict),
        (ImportPlan::Absent, Step::None) => match live.map(|live| live.claim) {
            None if plan.pools.contains_key(name) => {
                because(State::Applied, ImporterReason::NoRemoteCluster)
            }
            None => return None,
            Some(Claim::Ours | Claim::Unclaimed | Claim::Foreign) => {
                because(State::Skipped, ImporterReason::NotOurs)
            }
        },
        (_, Step::None) if silent => because(State::Applied, ImporterReason::AsLastSeen),
        (_, Step::None) => because(State::Applied, ImporterReason::AsPlanned),
        _ if silent => (State::Pending, decision.imports.reason()),
        _ if !input.gate_open => because(State::Pending, ImporterReason::GateClosed),
        _ if !input.leader => because(State::Pending, ImporterReason::NotLeading),
        _ if member.undone_imports.is_in_conflict(key) => {
            because(State::Pending, ImporterReason::Conflict)
        }
        (_, Step::CreateMain) => because(State::Pending, ImporterReason::Create),
        (_, Step::ApplyStatus) => because(State::Pending, ImporterReason::Update),
        (_, Step::RemoveForeign(_)) => because(State::Pending, ImporterReason::RemoveForeign),
        (_, Step::Delete) => because(State::Pending, ImporterReason::Delete),
    };
    let queue = input.queues.get(name);
    let stats = queue.map(|queue| queue.lane_stats(&Slot::Import(key.clone())));
    let lane = stats.unwrap_or_default();
    let crd = member.import_crd.as_ref();
    Some(Importer {
        cluster: name.to_string(),
        state,
        reason: reason.to_owned(),
        flavour: crd.map(|crd| crd.flavour.name().to_owned()),
        queued: lane.queued,
        last_error: lane.last_error.map(ToOwned::to_owned),
    })
}

/// Rules with the members that they hold for: a hundred members are a few lines.
#[derive(Default)]
struct Grouped<'a>(Vec<(&'static str, &'static str, Vec<&'a str>)>);

// === impl Grouped ===

impl<'a> Grouped<'a> {
    fn add(&mut self, rule: &'static str, outcome: &'static str, name: &'a ClusterName) {
        let mut groups = self.0.iter_mut();
        match groups.find(|(one, what, _)| *one == rule && *what == outcome) {
            Some((_, _, names)) => names.push(name.as_str()),
            None => self.0.push((rule, outcome, vec![name.as_str()])),
        }
    }

    fn rules(self) -> impl Iterator<Item = Rule> {
        let mut groups = self.0;
        groups.sort_by_key(|(rule, outcome, _)| (*rule, *outcome));
        groups
            .into_iter()
            .map(|(rule, outcome, names)| Rule::new(rule, outcome, join_names(names.into_iter())))
    }
}

#[cfg(test)]
mod tests;
