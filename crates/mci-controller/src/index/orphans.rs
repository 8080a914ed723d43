//! Exports that ended while no controller ran: importers still carry entries that have no pool behind them.

use std::collections::BTreeSet;

use super::{
    Changes, World,
    changes::Evidence,
    facts::{Claim, LiveImport},
    member::Unseen,
};
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
    told: BTreeSet<(ClusterName, Key)>,
    /// Imports looked at, ever.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

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
    pub(super) fn forget(&mut self, exporter: &ClusterName) {
        self.told.retain(|(told, _)| told != exporter);
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
        for importer in world.members.values() {
            if let Some(import) = importer.imports.items.get(key) {
                let one = |name: &str| name == exporter.as_str();
                self.look(world, key, import, one, changes);
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
                for (key, import) in &member.imports.items {
                    self.look(world, key, import, of, changes);
                }
            }
        }
    }

    /// The entries of one import that are of the exporters meant. Nothing is allocated before there is proof: millions
    /// of entries are looked at after a start, nearly all of which have their pool.
    fn look(
        &mut self,
        world: &World,
        key: &Key,
        import: &LiveImport,
        of: impl Fn(&str) -> bool,
        changes: &mut Changes,
    ) {
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        if import.claim != Claim::Ours {
            return;
        }
        for entry in &import.status.clusters {
            // one that is draining already was told by whoever began it
            if entry.drain_until.is_some() || !of(&entry.name) {
                continue;
            }
            let exporting = world.members.get(entry.name.as_str());
            let evidence = match exporting {
                Some(exporting) => exporting.lacks_export(key),
                None => world.listed.then_some(Evidence::MemberRemoved),
            };
            if let Some(evidence) = evidence
                && let Ok(exporter) = ClusterName::new(&entry.name)
                && self.told.insert((exporter.clone(), key.clone()))
            {
                changes.withdraw(&exporter, key, evidence, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::update::Update, *};
    use crate::fixtures::*;
    use moment::Moment;

    const NOW: Moment = Moment::from_millis(100_000);
    const POOLS: usize = 10;

    /// A controller that has just started, and two importers that carry ten pools of each of `a` and `b`, of which
    /// these list this one alone.
    fn mk_restarted(left: &str) -> World {
        let names: Vec<String> = (0..POOLS).map(|at| format!("p{at}")).collect();
        let mut before = mk_world(&["a", "b", "c", "d"]);
        for name in &names {
            export(&mut before, "a", name);
            export(&mut before, "b", name);
        }
        settle(&mut before, &mk_policy(), NOW);
        let mut world = World::new(mk_rules());
        for name in ["a", "b", "c", "d"] {
            world.add_member(&mk_name(name), NOW);
        }
        world.inventory_listed(NOW);
        for name in ["c", "d"] {
            let imports = member(&before, name).imports.items.values();
            connect(
                &mut world,
                name,
                Vec::new(),
                imports.cloned().collect(),
                NOW,
            );
        }
        for name in ["a", "b"] {
            let pools = vec![mk_pool(left, Some("ClusterSet"))];
            connect(&mut world, name, pools, Vec::new(), NOW);
        }
        world
    }

    #[test]
    fn doubts_that_end_together_cost_one_pass() {
        let mut world = mk_restarted("p0");
        world.orphans.looked_at = 0;
        let changes = world.tick(NOW + STALE_AFTER);
        assert_eq!(changes.withdrawals.len(), 2 * (POOLS - 1));
        assert_eq!(world.orphans.looked_at, 2 * POOLS, "each import once");
    }

    #[test]
    fn a_pool_that_shows_costs_a_look_at_its_own_imports() {
        let mut world = mk_restarted("p0");
        world.orphans.looked_at = 0;
        for _ in 0..5 {
            let gone = Update::PoolApplied(mk_pool("p1", None));
            let changes = world.update(&mk_name("a"), gone, NOW);
            assert!(changes.withdrawals.len() <= 1, "told once");
        }
        assert!(world.orphans.looked_at <= 2, "{}", world.orphans.looked_at);
    }

    #[test]
    fn a_first_list_costs_a_look_at_what_it_lists() {
        let mut world = mk_restarted("p0");
        let mut fresh = World::new(mk_rules());
        for (name, known) in &world.members {
            fresh.add_member(name, NOW);
            let imports = known.imports.items.values().cloned().collect();
            if name.as_str() != "a" {
                connect(&mut fresh, name.as_str(), Vec::new(), imports, NOW);
            }
        }
        world = fresh;
        world.orphans.looked_at = 0;
        let listed = Update::PoolsListed {
            pools: vec![mk_pool("p1", None)],
            odd: BTreeSet::new(),
            crd: mk_crd(),
        };
        let changes = world.update(&mk_name("a"), listed, NOW);
        assert_eq!(changes.withdrawals.len(), 1);
        assert_eq!(world.orphans.looked_at, 2);
    }
}
