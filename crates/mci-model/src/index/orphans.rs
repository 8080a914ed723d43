//! Exports that ended while no controller ran: importers still carry entries that have no pool behind them.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Changes, World,
    facts::{Claim, LiveImport},
    member::Unseen,
};
use crate::evidence::Evidence;
use crate::name::{ClusterName, Key};

/// Which carried entries may have lost their export by what just came to be known.
#[derive(Clone, Copy)]
pub(super) enum Suspects<'a> {
    All,
    /// All in this importer.
    In(&'a ClusterName),
    /// All of these exporters, everywhere. Costs a pass over every import: once for them all.
    Of(&'a BTreeSet<ClusterName>),
    /// What this exporter, whose pools were just listed, is known to lack.
    Listed(&'a ClusterName),
    /// One key of one exporter.
    One(&'a ClusterName, &'a Key),
}

/// What was told, so that nothing is told twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    /// Each with the importer that showed it: at most [`MAX_SHOWN`] of one.
    reported: BTreeMap<(ClusterName, Key), ClusterName>,
    /// How many of them are of each importer.
    counts: BTreeMap<ClusterName, usize>,
    /// Members by the record that an earlier run left, which the first inventory lacked. Others that are no members are
    /// names that anybody may have written into an import.
    left: BTreeSet<ClusterName>,
    /// Imports looked at, ever.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) checked: usize,
}

/// Ended exports that are told because this importer carries them: an import may be forged, and a member has room for
/// millions of entries. Twice a hundred members with fifty pools each.
const MAX_SHOWN: usize = 10_000;

// === impl World ===

impl World {
    /// Tells which entries carried over from before the start are now proven to have no export behind them.
    pub(super) fn withdraw_orphans(&mut self, suspects: Suspects<'_>, changes: &mut Changes) {
        let mut orphans = std::mem::take(&mut self.orphans);
        match suspects {
            Suspects::All => orphans.check_all(self, None, None, changes),
            Suspects::In(importer) => orphans.check_all(self, Some(importer), None, changes),
            Suspects::Of(exporters) => orphans.check_all(self, None, Some(exporters), changes),
            Suspects::One(exporter, key) => orphans.check_key(self, exporter, key, changes),
            Suspects::Listed(exporter) => match self.members.get(exporter) {
                Some(member) if member.unseen == Unseen::Absent => {
                    let exporters = BTreeSet::from([exporter.clone()]);
                    orphans.check_all(self, None, Some(&exporters), changes);
                }
                // only of what has been seen of it is anything proven
                Some(member) => {
                    for key in member.pools.keys().chain(&member.gone_pools) {
                        orphans.check_key(self, exporter, key, changes);
                    }
                }
                None => {}
            },
        }
        self.orphans = orphans;
    }
}

// === impl Orphans ===

impl Orphans {
    /// These were members when a controller last ran, and are none now.
    pub(super) fn add_left(&mut self, members: Vec<ClusterName>) {
        self.left.extend(members);
    }

    /// Forgets a member, as exporter and as importer.
    pub(super) fn forget(&mut self, name: &ClusterName) {
        let Self {
            reported, counts, ..
        } = self;
        reported.retain(|(exporter, _), importer| {
            if exporter == name
                && let Some(count) = counts.get_mut(importer)
            {
                *count = count.saturating_sub(1);
            }
            exporter != name && importer != name
        });
        self.counts.remove(name);
        self.left.remove(name);
    }

    /// One key of one exporter, in every importer.
    fn check_key(
        &mut self,
        world: &World,
        exporter: &ClusterName,
        key: &Key,
        changes: &mut Changes,
    ) {
        let lacks = world
            .members
            .get(exporter)
            .is_some_and(|member| member.lacks_export(key).is_some());
        if !lacks {
            return;
        }
        for (importer, member) in &world.members {
            if let Some(import) = member.imports.items.get(key) {
                let one = |name: &str| name == exporter.as_str();
                self.check_import(world, importer, import, one, changes);
            }
        }
    }

    fn check_all(
        &mut self,
        world: &World,
        importer: Option<&ClusterName>,
        exporters: Option<&BTreeSet<ClusterName>>,
        changes: &mut Changes,
    ) {
        let of = |name: &str| exporters.is_none_or(|exporters| exporters.contains(name));
        for (name, member) in &world.members {
            if importer.is_none_or(|one| one == name) {
                for import in member.imports.items.values() {
                    self.check_import(world, name, import, of, changes);
                }
            }
        }
    }

    /// The entries of one import that are of the exporters meant. Nothing is allocated before there is proof: millions
    /// of entries are looked at after a start, nearly all of which have their pool.
    fn check_import(
        &mut self,
        world: &World,
        importer: &ClusterName,
        import: &LiveImport,
        of: impl Fn(&str) -> bool,
        changes: &mut Changes,
    ) {
        #[cfg(any(test, feature = "fixtures"))]
        {
            self.checked += 1;
        }
        if import.claim != Claim::Ours || self.is_full(importer) {
            return;
        }
        let key = &import.key;
        for entry in &import.status.clusters {
            // one that is draining already was told by whoever began it
            if entry.drain_until.is_some() || !of(&entry.name) {
                continue;
            }
            let exporting = world.members.get(entry.name.as_str());
            let evidence = if let Some(exporting) = exporting {
                exporting.lacks_export(key)
            } else {
                let left = self.left.contains(entry.name.as_str());
                left.then_some(Evidence::MemberRemoved)
            };
            if let Some(evidence) = evidence
                && let Ok(exporter) = ClusterName::new(&entry.name)
                && !self.is_full(importer)
                && self.record(importer, &exporter, key)
            {
                changes.withdraw_orphan(&exporter, key, evidence);
            }
        }
    }

    fn is_full(&self, importer: &ClusterName) -> bool {
        self.counts
            .get(importer)
            .is_some_and(|count| *count >= MAX_SHOWN)
    }

    /// Notes that it is told.
    fn record(&mut self, importer: &ClusterName, exporter: &ClusterName, key: &Key) -> bool {
        let reported = self.reported.entry((exporter.clone(), key.clone()));
        let Entry::Vacant(place) = reported else {
            return false;
        };
        place.insert(importer.clone());
        let count = self.counts.entry(importer.clone()).or_default();
        *count += 1;
        if *count == MAX_SHOWN {
            tracing::warn!(member = %importer, exports = MAX_SHOWN,
                "its imports carry too many exports that are not there: no more of them are reported or drained");
        }
        true
    }
}

#[cfg(test)]
mod tests;
