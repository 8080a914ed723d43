//! What an importer's own live import lends to its plan: entries of members not heard of since the start, so that a
//! restart withdraws nothing (R27), and entries that drain. A forged import fools only its owner.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use crd::{
    Condition, ImportedCluster,
    conditions::{self, Status},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    address,
    decision::{Decision, EntryFate, Mark},
    entry::{put, services_of, set_reach},
};
use crate::{
    index::{
        World,
        drain::{MAX_DRAIN, later},
        entry::Entry,
        facts::{Claim, LiveImport},
        flavour::Flavour,
        member::Reach,
    },
    name::{ClusterName, Key},
    networks::Allowed,
};
use moment::Moment;

/// The exporters whose entries come from the importers' own imports, with regard to one key.
#[derive(Clone, Copy)]
pub(super) struct Lenders<'a> {
    pub(super) world: &'a World,
    pub(super) key: &'a Key,
    /// Of all members, by name.
    pub(super) decisions: &'a [(ClusterName, Decision)],
    pub(super) now: Moment,
}

/// An exporter, as far as lending is concerned.
#[derive(Clone, Copy, Debug)]
struct Lender<'a> {
    fate: EntryFate,
    reach: Reach,
    /// Its entry drains until then; none: no drain is known here.
    until: Option<Timestamp>,
    /// What its addresses are narrowed to.
    allowed: &'a Allowed,
}

/// What is lent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lent {
    pub(super) entries: Vec<ImportedCluster>,
    /// Exporters that have no entry there and yet are named: all that upstream's shape tells.
    pub(super) names: Vec<String>,
    /// What upstream's shape says of all that are named, if there are such: it cannot be made up without their entries.
    pub(super) said: Vec<Condition>,
    /// When the first of the draining entries goes.
    pub(super) ripens: Option<Timestamp>,
}

/// What the importer's live import lends.
pub(super) fn lend(
    importer: &ClusterName,
    live: Option<&LiveImport>,
    remembered: &[Entry],
    flavour: Flavour,
    lenders: Lenders<'_>,
    controller_name: &str,
) -> Lent {
    let mut lent = Lent::default();
    let Some(live) = live.filter(|live| live.claim == Claim::Ours) else {
        return lent;
    };
    let wall = lenders.world.wall_at(lenders.now);
    let lender = |name: &str| lenders.get(name).filter(|_| name != importer.as_str());
    let ours = live.status.controllers.iter();
    let ours = ours.filter(|controller| controller.name == controller_name);
    let named = ours
        .clone()
        .flat_map(|controller| &controller.exporting_clusters);
    let stands = |entry: &&Entry| named.clone().any(|one| one.name == entry.name);
    let remembered = remembered.iter().filter(stands);
    let remembered = remembered.filter(|_| live.status.clusters.is_empty());
    for entry in live.status.clusters.iter().chain(remembered) {
        let Some(lender) = lender(&entry.name) else {
            continue;
        };
        match lender.fate {
            EntryFate::Carry(mark) => lent
                .entries
                .push(carried(entry, mark, lender.allowed, wall)),
            EntryFate::Drain(_) => {
                let until = until(entry, &lender, wall);
                if let Some(until) = until.filter(|until| *until > wall) {
                    lent.entries.push(draining(entry, &lender, until));
                    lent.ripens = Some(lent.ripens.map_or(until, |ripens| ripens.min(until)));
                }
            }
            EntryFate::Publish | EntryFate::Retain(_) | EntryFate::Remove(_) => {}
        }
    }
    for named in named {
        let has_entry = lent.entries.iter().any(|entry| entry.name == named.name);
        let Some(lender) = lender(&named.name).filter(|_| !has_entry) else {
            continue;
        };
        let stays = match lender.fate {
            EntryFate::Carry(_) => true,
            EntryFate::Drain(_) if flavour == Flavour::Upstream => {
                lender.until.is_some_and(|until| until > wall)
            }
            _ => false,
        };
        if stays {
            lent.names.push(named.name.clone());
        }
    }
    if flavour == Flavour::Upstream && !lent.names.is_empty() {
        lent.said = ours
            .flat_map(|controller| timeless(&controller.conditions))
            .collect();
    }
    lent.names.sort_unstable();
    lent.names.dedup();
    lent
}

/// When a draining entry goes: what it says itself holds, but for at most an hour from now, for it may be forged.
fn until(entry: &ImportedCluster, lender: &Lender<'_>, wall: Timestamp) -> Option<Timestamp> {
    let told = entry.drain_until.as_ref().map(|time| time.0);
    let told = told.map(|told| told.min(later(wall, MAX_DRAIN)));
    match (told, lender.until) {
        (Some(told), Some(until)) => Some(told.min(until)),
        (told, until) => told.or(until),
    }
}

fn carried(
    entry: &ImportedCluster,
    mark: Mark,
    allowed: &Allowed,
    wall: Timestamp,
) -> ImportedCluster {
    let mut entry = sanitised(entry, allowed);
    let (reach, crd_missing) = mark.as_reach();
    set_reach(&mut entry, reach, crd_missing);
    if let Some(until) = &mut entry.drain_until {
        // it drained before the start: no traffic goes there until its exporter is heard
        until.0 = until.0.min(later(wall, MAX_DRAIN));
        set_draining(&mut entry);
    }
    entry
}

fn draining(entry: &ImportedCluster, lender: &Lender<'_>, until: Timestamp) -> ImportedCluster {
    let mut entry = sanitised(entry, lender.allowed);
    set_reach(&mut entry, lender.reach, false);
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

/// The entry with addresses checked as if they were new, and without times: the ledger has them.
fn sanitised(entry: &ImportedCluster, allowed: &Allowed) -> ImportedCluster {
    let mut entry = entry.clone();
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

// === impl Lenders ===

impl<'a> Lenders<'a> {
    /// None: not a member, or nothing is lent of it, as its entry is published or has gone.
    fn get(&self, name: &str) -> Option<Lender<'a>> {
        let by_name = |(known, _): &(ClusterName, Decision)| known.as_str().cmp(name);
        let (name, decision) = self
            .decisions
            .get(self.decisions.binary_search_by(by_name).ok()?)?;
        match decision.entry {
            EntryFate::Carry(_) | EntryFate::Drain(_) => {}
            EntryFate::Publish | EntryFate::Retain(_) | EntryFate::Remove(_) => return None,
        }
        let member = self.world.members.get(name)?;
        Some(Lender {
            fate: decision.entry,
            reach: self.world.reach(member, self.now),
            until: member.draining.until(self.key),
            allowed: &member.origin.allowed,
        })
    }
}

// === impl Lent ===

impl Lent {
    /// Equal for importers that are lent the same, so that they share a plan; zero for nothing. Keyed: no importer can
    /// forge an import that makes others share its own.
    pub(super) fn fingerprint(&self) -> u64 {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        if self.entries.is_empty() && self.names.is_empty() {
            return 0;
        }
        let content = serde_json::to_vec(&(&self.entries, &self.names, &self.said));
        KEY.hash_one(content.unwrap_or_default()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::*, plan::ImportPlan};

    #[test]
    fn a_carried_entry_brings_no_address_that_means_harm() {
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
        let clean = sanitised(&entry, &Allowed::default());
        let picker = clean.endpoint_picker.expect("an EPP");
        assert_eq!(picker.endpoints, ["10.0.0.1"]);
        assert_eq!(picker.service[0].addresses, ["10.0.0.1"]);
    }
}
