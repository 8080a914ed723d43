//! Entries carried over from an importer's own live import into its plan: those of members not seen since the start, so
//! that a restart withdraws nothing (R27), and those that drain. A forged import harms only its own cluster.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use crd::{
    Condition, ImportedCluster,
    conditions::{self, Status},
    networks::MAX_POD_CIDRS,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    address,
    decision::{Decision, EntryAction, Mark},
    entry::{pod_cidrs, put, services_of, set_reach},
};
use crate::{
    index::{
        World,
        drain::{MAX_DRAIN, later},
        entry::Entry,
        facts::{Claim, LiveImport},
        flavour::Flavour,
        grant::Stated,
        member::Reach,
        origin::Origin,
    },
    name::{ClusterName, Key},
};
use moment::Moment;

/// The exporters of one key, of which some entries are carried over.
#[derive(Clone, Copy)]
pub(super) struct Exporters<'a> {
    pub(super) world: &'a World,
    pub(super) key: &'a Key,
    /// Of all members, by name.
    pub(super) decisions: &'a [(ClusterName, Decision)],
    pub(super) now: Moment,
}

/// An exporter whose entries are carried over.
#[derive(Clone, Copy, Debug)]
struct Exporter<'a> {
    action: EntryAction,
    reach: Reach,
    /// Its entry drains until then; none: no drain is known here.
    until: Option<Timestamp>,
    /// What the inventory records about the member.
    origin: &'a Origin,
}

/// What is carried over from one import.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CarriedOver {
    pub(super) entries: Vec<ImportedCluster>,
    /// Exporters that are named without an entry: upstream's shape has nothing else.
    pub(super) names: Vec<String>,
    /// The conditions in upstream's shape, if `names` is not empty: without the entries they cannot be computed.
    pub(super) conditions: Vec<Condition>,
    /// When the first of the draining entries goes.
    pub(super) next_change_at: Option<Timestamp>,
}

/// Collects what the importer's live import keeps.
pub(super) fn carry_over(
    importer: &ClusterName,
    live: Option<&LiveImport>,
    remembered: &[Entry],
    flavour: Flavour,
    exporters: Exporters<'_>,
    controller_name: &str,
) -> CarriedOver {
    let mut kept = CarriedOver::default();
    let Some(live) = live.filter(|live| live.claim == Claim::Ours) else {
        return kept;
    };
    let wall = exporters.world.wall_at(exporters.now);
    let exporter = |name: &str| exporters.get(name).filter(|_| name != importer.as_str());
    let ours = (live.status.controllers.iter()).filter(|one| one.name == controller_name);
    let named = ours.clone().flat_map(|one| &one.exporting_clusters);
    let is_named = |entry: &&Entry| named.clone().any(|one| one.name == entry.name);
    let shown = &live.status.clusters;
    let hidden = remembered
        .iter()
        .filter(|entry| shown.is_empty() && is_named(entry));
    for entry in shown.iter().chain(hidden) {
        let Some(exporter) = exporter(&entry.name) else {
            continue;
        };
        match exporter.action {
            EntryAction::Carry(mark) => {
                let entry = carried(entry, mark, exporter.origin, wall);
                kept.entries.push(entry);
            }
            EntryAction::Drain(_) => {
                let until = drain_until(entry, &exporter, wall);
                if let Some(until) = until.filter(|until| *until > wall) {
                    kept.entries.push(draining(entry, &exporter, until));
                    let next = kept.next_change_at.map_or(until, |next| next.min(until));
                    kept.next_change_at = Some(next);
                }
            }
            EntryAction::Publish | EntryAction::Retain(_) | EntryAction::Remove(_) => {}
        }
    }
    for named in named {
        let has_entry = kept.entries.iter().any(|entry| entry.name == named.name);
        let Some(exporter) = exporter(&named.name).filter(|_| !has_entry) else {
            continue;
        };
        let stays = match exporter.action {
            EntryAction::Carry(_) => true,
            EntryAction::Drain(_) if flavour == Flavour::Upstream => {
                exporter.until.is_some_and(|until| until > wall)
            }
            _ => false,
        };
        if stays {
            kept.names.push(named.name.clone());
        }
    }
    if flavour == Flavour::Upstream && !kept.names.is_empty() {
        kept.conditions = ours.flat_map(|one| timeless(&one.conditions)).collect();
    }
    kept.names.sort_unstable();
    kept.names.dedup();
    kept
}

/// When a draining entry goes: at its own `drainUntil`, but within [`MAX_DRAIN`] from now, for it may be forged.
fn drain_until(
    entry: &ImportedCluster,
    exporter: &Exporter<'_>,
    wall: Timestamp,
) -> Option<Timestamp> {
    let own = entry.drain_until.as_ref();
    let own = own.map(|time| time.0.min(later(wall, MAX_DRAIN)));
    own.into_iter().chain(exporter.until).min()
}

fn carried(
    entry: &ImportedCluster,
    mark: Mark,
    origin: &Origin,
    wall: Timestamp,
) -> ImportedCluster {
    let mut entry = sanitised(entry, origin);
    let (reach, crd_missing) = mark.as_reach();
    set_reach(&mut entry, reach, crd_missing);
    if let Some(until) = &mut entry.drain_until {
        // it drained before the start: no traffic goes there until its exporter is seen
        until.0 = until.0.min(later(wall, MAX_DRAIN));
        set_draining(&mut entry);
    }
    entry
}

fn draining(entry: &ImportedCluster, exporter: &Exporter<'_>, until: Timestamp) -> ImportedCluster {
    let mut entry = sanitised(entry, exporter.origin);
    set_reach(&mut entry, exporter.reach, false);
    entry.drain_until = Some(Time(until));
    set_draining(&mut entry);
    entry
}

fn set_draining(entry: &mut ImportedCluster) {
    let generation = entry
        .conditions
        .first()
        .and_then(|condition| condition.observed_generation);
    let message = "the export has ended: the entry goes at drainUntil";
    let draining = conditions::make(
        conditions::READY,
        Status::False,
        "Draining",
        message,
        generation,
    );
    put(&mut entry.conditions, draining);
}

/// Conditions without times: the ledger has them.
fn timeless(conditions: &[Condition]) -> impl Iterator<Item = Condition> {
    let conditions = conditions.iter().cloned();
    conditions.map(|condition| Condition {
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        ..condition
    })
}

/// The entry with addresses checked as if they were new, with the networks that the inventory has of its exporter, and
/// without times: the ledger has them.
fn sanitised(entry: &ImportedCluster, origin: &Origin) -> ImportedCluster {
    let allowed = &origin.allowed;
    let mut entry = entry.clone();
    match &origin.pod_cidrs {
        // the import's networks come from an earlier statement of the inventory, or from another client that may write
        // the import
        Stated::Unreadable => entry.pod_cidrs.truncate(MAX_POD_CIDRS),
        stated => entry.pod_cidrs = pod_cidrs(stated.known()),
    }
    for service in services_of(&mut entry) {
        let addresses = service.addresses.iter().map(String::as_str);
        service.addresses = address::sanitise(addresses, allowed).0;
    }
    if let Some(picker) = &mut entry.endpoint_picker {
        let endpoints = picker.endpoints.iter().map(String::as_str);
        picker.endpoints = address::sanitise(endpoints, allowed).0;
    }
    let parents = entry.parents.iter_mut();
    let of_parents = parents.flat_map(|parent| &mut parent.conditions);
    for condition in entry.conditions.iter_mut().chain(of_parents) {
        condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
    }
    entry
}

// === impl Exporters ===

impl<'a> Exporters<'a> {
    /// None: it is no member, or its entry is published or removed.
    fn get(&self, name: &str) -> Option<Exporter<'a>> {
        let by_name = |(known, _): &(ClusterName, Decision)| known.as_str().cmp(name);
        let at = self.decisions.binary_search_by(by_name).ok()?;
        let (name, decision) = self.decisions.get(at)?;
        match decision.entry {
            EntryAction::Carry(_) | EntryAction::Drain(_) => {}
            EntryAction::Publish | EntryAction::Retain(_) | EntryAction::Remove(_) => return None,
        }
        let member = self.world.members.get(name)?;
        Some(Exporter {
            action: decision.entry,
            reach: self.world.reach(member, self.now),
            until: member.pools.draining.until(self.key),
            origin: &member.origin,
        })
    }
}

// === impl CarriedOver ===

impl CarriedOver {
    /// Equal for importers that carry over the same, so that they share a plan; zero for nothing. The hash is keyed: no
    /// importer can forge an import that makes others share its plan.
    pub(super) fn fingerprint(&self) -> u64 {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        if self.entries.is_empty() && self.names.is_empty() {
            return 0;
        }
        let content = serde_json::to_vec(&(&self.entries, &self.names, &self.conditions));
        KEY.hash_one(content.unwrap_or_default()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::*, plan::ImportPlan};

    #[test]
    fn a_carried_entry_brings_no_harmful_address() {
        let mut world = mk_world(&["a", "b"]);
        export(&mut world, "a", "llm");
        let key = mk_key("llm");
        let plan = crate::plan::desired_for(&world, &mk_policy(), &key, Moment::default());
        let ImportPlan::Present(planned) = &plan.imports[&mk_name("b")] else {
            panic!("no import");
        };
        let mut entry = planned.status.clusters[0].clone();
        let picker = entry.endpoint_picker.as_mut().expect("an EPP");
        picker.endpoints = vec!["10.0.0.1".to_owned(), "169.254.169.254".to_owned()];
        picker.service[0].addresses = picker.endpoints.clone();
        entry.pod_cidrs = vec!["0.0.0.0/0".to_owned()];
        let clean = sanitised(&entry, &Origin::default());
        assert_eq!(clean.pod_cidrs, [""; 0], "nothing is said at home");
        let picker = clean.endpoint_picker.expect("an EPP");
        assert_eq!(picker.endpoints, ["10.0.0.1"]);
        assert_eq!(picker.service[0].addresses, ["10.0.0.1"]);
    }
}
