//! What must be true of the imports, from what was done to the clusters alone: nothing here comes from the controller.
//!
//! P3: no entry goes without evidence. Evidence is what the soak did: an export was taken back, a pool or a namespace
//! deleted, a member removed from the directory. Silence of a member is none. An entry that was seen in an importer and
//! is not there now must have had evidence since it was last seen, or the importer's namespace or import must have gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Member, by number.
type Member = usize;
/// Pool, by number.
type Pool = usize;

/// How long after an export ended and began anew the controller may still act on its end: detection of a silence, a
/// reconnect's longest backoff and a retry. An entry that has outlived this needs new evidence.
const WINDOW: Duration = Duration::from_mins(1);

/// What was done so far.
#[derive(Debug)]
pub struct Model {
    members: usize,
    /// Which pools a member exports now.
    exports: BTreeSet<(Member, Pool)>,
    /// When an export last ended, by the soak's count of steps and its clock.
    ended: BTreeMap<(Member, Pool), (u64, Duration)>,
    /// Members without the namespace, so without imports.
    homeless: BTreeSet<Member>,
    /// When a member last lost its namespace.
    lost_namespace: BTreeMap<Member, u64>,
    /// Entries as last seen, and at which step: importer, pool, exporter.
    seen: BTreeMap<(Member, Pool, Member), u64>,
    step: u64,
    /// Time since the soak began.
    now: Duration,
}

// === impl Model ===

impl Model {
    /// Nothing is exported yet.
    pub fn new(members: usize) -> Self {
        Self {
            members,
            exports: BTreeSet::new(),
            ended: BTreeMap::new(),
            homeless: BTreeSet::new(),
            lost_namespace: BTreeMap::new(),
            seen: BTreeMap::new(),
            step: 0,
            now: Duration::ZERO,
        }
    }

    /// Tells the time since the soak began.
    pub fn at(&mut self, now: Duration) {
        self.now = now;
    }

    /// A member exports a pool from now on.
    pub fn exported(&mut self, member: Member, pool: Pool) {
        self.step += 1;
        if !self.homeless.contains(&member) {
            self.exports.insert((member, pool));
        }
    }

    /// It does so no more: the annotation, or the pool, is gone.
    pub fn unexported(&mut self, member: Member, pool: Pool) {
        self.step += 1;
        if self.exports.remove(&(member, pool)) {
            self.ended.insert((member, pool), (self.step, self.now));
        }
    }

    /// A member's namespace goes, with its pools and imports.
    pub fn namespace_deleted(&mut self, member: Member) {
        self.step += 1;
        self.homeless.insert(member);
        self.lost_namespace.insert(member, self.step);
        let gone: Vec<_> = self
            .exports
            .iter()
            .filter(|(one, _)| *one == member)
            .copied()
            .collect();
        for key in gone {
            self.exports.remove(&key);
            self.ended.insert(key, (self.step, self.now));
        }
    }

    /// And is back, empty.
    pub fn namespace_created(&mut self, member: Member) {
        self.step += 1;
        self.homeless.remove(&member);
    }

    /// Whether a member has the namespace.
    pub fn has_namespace(&self, member: Member) -> bool {
        !self.homeless.contains(&member)
    }

    /// Whether a member exports a pool.
    pub fn exports(&self, member: Member, pool: Pool) -> bool {
        self.exports.contains(&(member, pool))
    }

    /// Looks at the entries that an importer has now; says which vanished without evidence (P3), or lists itself (P4).
    pub fn look(
        &mut self,
        importer: Member,
        pool: Pool,
        entries: &BTreeSet<Member>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        if entries.contains(&importer) {
            wrong.push(format!("member {importer} lists itself for pool {pool}"));
        }
        let range = (importer, pool, 0)..(importer, pool, self.members);
        let known: Vec<(Member, u64)> = self
            .seen
            .range(range)
            .map(|((_, _, exporter), step)| (*exporter, *step))
            .collect();
        for (exporter, last) in known {
            if entries.contains(&exporter) {
                continue;
            }
            self.seen.remove(&(importer, pool, exporter));
            let since = |step: Option<&u64>| step.is_some_and(|step| *step > last);
            let ended = self.ended.get(&(exporter, pool)).map(|(step, _)| step);
            let evidence = since(ended)
                // a past end may have been undone and the entry not come back yet
                || !self.exports.contains(&(exporter, pool))
                || since(self.lost_namespace.get(&importer));
            if !evidence {
                wrong.push(format!("the entry of member {exporter} for pool {pool} went from member {importer} without evidence"));
            }
        }
        for exporter in entries {
            let ended = self.ended.get(&(*exporter, pool));
            let recent = ended.filter(|(_, at)| self.now.saturating_sub(*at) < WINDOW);
            let place = (importer, pool, *exporter);
            match recent {
                // it may be the one from before, which is to go
                Some((step, _)) => {
                    self.seen.entry(place).or_insert(step - 1);
                }
                None => {
                    self.seen.insert(place, self.step);
                }
            }
        }
        wrong
    }

    /// What an importer shall have in the end.
    pub fn wanted(&self, importer: Member, pool: Pool) -> BTreeSet<Member> {
        if self.homeless.contains(&importer) {
            return BTreeSet::new();
        }
        let exporters = (0..self.members)
            .filter(|one| *one != importer && self.exports.contains(&(*one, pool)));
        exporters.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &[Member]) -> BTreeSet<Member> {
        members.iter().copied().collect()
    }

    #[test]
    fn an_entry_that_goes_without_evidence_is_found() {
        let mut model = Model::new(3);
        model.exported(0, 0);
        assert!(model.look(1, 0, &set(&[0])).is_empty());
        assert_eq!(model.look(1, 0, &set(&[])).len(), 1);
    }

    #[test]
    fn an_entry_may_go_after_its_export_ended_even_if_it_began_again() {
        let mut model = Model::new(3);
        model.exported(0, 0);
        model.look(1, 0, &set(&[0]));
        model.unexported(0, 0);
        model.exported(0, 0);
        assert!(model.look(1, 0, &set(&[])).is_empty());
        // back for long, it needs evidence anew, of which the old one is none
        assert!(model.look(1, 0, &set(&[0])).is_empty());
        model.at(WINDOW);
        assert!(model.look(1, 0, &set(&[0])).is_empty());
        assert_eq!(model.look(1, 0, &set(&[])).len(), 1);
        model.exported(2, 0);
        assert_eq!(model.wanted(1, 0), set(&[0, 2]));
    }

    #[test]
    fn an_importer_without_its_namespace_has_nothing() {
        let mut model = Model::new(3);
        model.exported(0, 0);
        model.look(1, 0, &set(&[0]));
        model.namespace_deleted(1);
        assert!(model.look(1, 0, &set(&[])).is_empty());
        assert_eq!(model.wanted(1, 0), set(&[]));
        model.namespace_created(1);
        assert_eq!(model.wanted(1, 0), set(&[0]));
    }

    #[test]
    fn nobody_lists_itself() {
        let mut model = Model::new(3);
        model.exported(1, 0);
        assert_eq!(model.look(1, 0, &set(&[1])).len(), 1);
    }
}
