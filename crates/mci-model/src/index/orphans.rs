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
    told: BTreeMap<(ClusterName, Key), ClusterName>,
    /// How many of them are of each importer.
    shown: BTreeMap<ClusterName, usize>,
    /// Members by the record that an earlier run left, which the first inventory lacked. Others that are no members are
    /// names that anybody may have written into an import.
    left: BTreeSet<ClusterName>,
    /// Imports looked at, ever.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) looked_at: usize,
}

/// Ended exports that are told because this importer carries them: an import may be forged, and a member has room for
/// millions of entries. Twice a hundred members with fifty pools each.
const MAX_SHOWN: usize = 10_000;

// === impl World ===

impl World {
    /// Tells which entries carried over from before the start are now proven to have no export behind them.
    pub(super) fn tell_orphans(&mut self, suspects: Suspects<'_>, changes: &mut Changes) {
        let mut orphans = std::mem::take(&mut self.orphans);
        match suspects {
            Suspects::All => orphans.pass(self, None, None, changes),
            Suspects::In(importer) => orphans.pass(self, Some(importer), None, changes),
            Suspects::Of(exporters) => orphans.pass(self, None, Some(exporters), changes),
            Suspects::One(exporter, key) => orphans.check(self, exporter, key, changes),
            Suspects::Listed(exporter) => match self.members.get(exporter) {
                Some(member) if member.unseen == Unseen::Absent => {
                    let exporters = BTreeSet::from([exporter.clone()]);
                    orphans.pass(self, None, Some(&exporters), changes);
                }
                // only of what has been seen of it is anything proven
                Some(member) => {
                    for key in member.pools.keys().chain(&member.gone_pools) {
                        orphans.check(self, exporter, key, changes);
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
    pub(super) fn left(&mut self, members: Vec<ClusterName>) {
        self.left.extend(members);
    }

    /// Forgets a member, as exporter and as importer.
    pub(super) fn forget(&mut self, name: &ClusterName) {
        let Self { told, shown, .. } = self;
        told.retain(|(exporter, _), importer| {
            if exporter == name
                && let Some(count) = shown.get_mut(importer)
            {
                *count = count.saturating_sub(1);
            }
            exporter != name && importer != name
        });
        self.shown.remove(name);
        self.left.remove(name);
    }

    /// One key of one exporter, in every importer.
    fn check(&mut self, world: &World, exporter: &ClusterName, key: &Key, changes: &mut Changes) {
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
                self.look(world, importer, import, one, changes);
            }
        }
    }

    fn pass(
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
                    self.look(world, name, import, of, changes);
                }
            }
        }
    }

    /// The entries of one import that are of the exporters meant. Nothing is allocated before there is proof: millions
    /// of entries are looked at after a start, nearly all of which have their pool.
    fn look(
        &mut self,
        world: &World,
        importer: &ClusterName,
        import: &LiveImport,
        of: impl Fn(&str) -> bool,
        changes: &mut Changes,
    ) {
        #[cfg(any(test, feature = "fixtures"))]
        {
            self.looked_at += 1;
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
                && self.is_news(importer, &exporter, key)
            {
                changes.withdraw_orphan(&exporter, key, evidence);
            }
        }
    }

    fn is_full(&self, importer: &ClusterName) -> bool {
        self.shown
            .get(importer)
            .is_some_and(|count| *count >= MAX_SHOWN)
    }

    /// Notes that it is told.
    fn is_news(&mut self, importer: &ClusterName, exporter: &ClusterName, key: &Key) -> bool {
        let told = self.told.entry((exporter.clone(), key.clone()));
        let Entry::Vacant(place) = told else {
            return false;
        };
        place.insert(importer.clone());
        let count = self.shown.entry(importer.clone()).or_default();
        *count += 1;
        if *count == MAX_SHOWN {
            tracing::warn!(member = %importer, exports = MAX_SHOWN,
                "its imports carry too many exports that are not there: no more of them are told or drained");
        }
        true
    }
}

#[cfg(test)]
mod tests;
