//! What must be true of the imports, from what was done to the clusters alone: nothing here comes from the controller.
//!
//! P3: no entry goes without evidence. Each change of an import is judged by the moment it was stored at: for every
//! exporter that it no longer lists, evidence must have lasted at that moment, in the history of that exporter and this
//! importer. Evidence is an export that ended, and the faults that [`excuse`] says are evidence. The controller may act
//! on evidence late, by [`ALLOWANCE`]; a fault that keeps it from acting, or from learning that the evidence is over,
//! prolongs that until the fault is over. Silence of a member is no evidence. So an export that never ended is judged
//! strictly whatever else happens, and [`Model::strictness`] says how large a part of all entries that was.
//! ```text
//!  export  ───────┐         ┌────────────────        loss excused:
//!                 └─ended───┘                        ├─ ended ─┤
//!  exporter                    ┌hung┐                          ├ hung, reconnect, allowance ┤
//! ```

mod read;
mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use self::rules::Fault;
use self::rules::{ALLOWANCE, Excuse, Side, blind_after, excuse};

/// Member, by number.
pub type Member = usize;
/// Pool, by number.
pub type Pool = usize;

/// What an import says; none of both where there is no import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Members that have an entry: `status.clusters`.
    pub entries: BTreeSet<Member>,
    /// Members that are named: `exportingClusters` of the controller's own status.
    pub names: BTreeSet<Member>,
}

/// From a moment on, until another if it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: Duration,
    until: Option<Duration>,
}

/// What was done so far. Times are since the soak began.
#[derive(Debug)]
pub struct Model {
    members: usize,
    /// The controller's `--stale-after`.
    stale_after: Duration,
    /// When each pool that was ever exported began (true) and ceased to be, in order; the last may be yet to come.
    exports: BTreeMap<(Member, Pool), Vec<(Duration, bool)>>,
    faults: BTreeMap<Member, Vec<(Fault, Span)>>,
    /// When the controller did not run, or had not opened its gate.
    restarts: Vec<Span>,
    /// Imports as they were last stored.
    imports: BTreeMap<(Member, Pool), Import>,
    /// Entries counted by [`Model::tally`], and those of them for which nothing was an excuse.
    counted: u64,
    strict: u64,
}

/// What is over for so long matters no more: far longer than any fault lasts.
const KEPT: Duration = Duration::from_mins(10);

// === impl Model ===

impl Model {
    /// Nothing is exported yet.
    pub fn new(members: usize, stale_after: Duration) -> Self {
        Self {
            members,
            stale_after,
            exports: BTreeMap::new(),
            faults: BTreeMap::new(),
            restarts: Vec::new(),
            imports: BTreeMap::new(),
            counted: 0,
            strict: 0,
        }
    }

    /// A member exports a pool from now on. Call it after the fact.
    pub fn exported(&mut self, at: Duration, member: Member, pool: Pool) {
        self.turn(at, member, pool, true);
    }

    /// It does so no more from now on, or from a moment to come: the annotation, or the pool, is gone. Call it before
    /// the fact.
    pub fn unexported(&mut self, at: Duration, member: Member, pool: Pool) {
        self.turn(at, member, pool, false);
    }

    fn turn(&mut self, at: Duration, member: Member, pool: Pool, on: bool) {
        let turns = self.exports.entry((member, pool)).or_default();
        // what was to come is overtaken
        turns.retain(|(turn, _)| *turn <= at);
        if turns.last().is_some_and(|(_, last)| *last) != on {
            turns.push((at, on));
        }
    }

    /// A fault begins. One that is evidence is to be reported before the fact.
    pub fn begin(&mut self, at: Duration, fault: Fault, member: Member) {
        let span = Span {
            from: at,
            until: None,
        };
        self.faults.entry(member).or_default().push((fault, span));
        if fault == Fault::NamespaceGone {
            let pools: Vec<Pool> = self.exported_by(at, member).collect();
            for pool in pools {
                self.unexported(at, member, pool);
            }
        }
    }

    /// A fault is over. Call it after the fact.
    pub fn end(&mut self, at: Duration, fault: Fault, member: Member) {
        let faults = self.faults.entry(member).or_default();
        for (one, span) in faults {
            if *one == fault {
                span.until.get_or_insert(at);
            }
        }
    }

    /// The pools CRD is back with other pools than these: those that are missing have had their time to come back after
    /// `--stale-after`.
    pub fn pools_crd_back(&mut self, at: Duration, member: Member, back: &BTreeSet<Pool>) {
        let gone: Vec<Pool> = self
            .exported_by(at, member)
            .filter(|pool| !back.contains(pool))
            .collect();
        for pool in gone {
            self.unexported(at + self.stale_after, member, pool);
        }
    }

    /// The controller ends, to be started again.
    pub fn stopped(&mut self, at: Duration) {
        self.restarts.push(Span {
            from: at,
            until: None,
        });
    }

    /// It writes again.
    pub fn restarted(&mut self, at: Duration) {
        for span in &mut self.restarts {
            span.until.get_or_insert(at);
        }
    }

    /// The next export that ends by itself, if one does: see [`Model::pools_crd_back`].
    pub fn next_end(&self, at: Duration) -> Option<Duration> {
        let turns = self.exports.values().flatten().map(|(turn, _)| *turn);
        turns.filter(|turn| *turn > at).min()
    }

    /// Whether a fault lasts.
    pub fn has(&self, at: Duration, fault: Fault, member: Member) -> bool {
        let faults = self.faults.get(&member).into_iter().flatten();
        faults
            .filter(|(one, _)| *one == fault)
            .any(|(_, span)| span.holds(at))
    }

    /// Whether a member exports a pool.
    pub fn exports(&self, at: Duration, member: Member, pool: Pool) -> bool {
        let turns = self.exports.get(&(member, pool));
        turns.is_some_and(|turns| exports_at(turns, at))
    }

    fn exported_by(&self, at: Duration, member: Member) -> impl Iterator<Item = Pool> {
        let pools = self.exports.range((member, 0)..(member + 1, 0));
        pools
            .filter(move |(_, turns)| exports_at(turns, at))
            .map(|((_, pool), _)| *pool)
    }

    /// An import changed: says which entries went without evidence (P3), and whether it lists itself (P4).
    pub fn changed(
        &mut self,
        at: Duration,
        importer: Member,
        pool: Pool,
        import: Import,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let seconds = at.as_secs_f64();
        if import.entries.contains(&importer) {
            wrong.push(format!(
                "at {seconds:.3} s member {importer} lists itself for pool {pool}"
            ));
        }
        let before = self.imports.remove(&(importer, pool)).unwrap_or_default();
        for exporter in before.entries.union(&before.names).copied() {
            let has = |what: &BTreeSet<Member>| what.contains(&exporter);
            let named = has(&import.names);
            let entry_lost = has(&before.entries) && !has(&import.entries);
            let name_lost = has(&before.names) && !named;
            // its own name stands in an import only beside others
            if exporter == importer || !(entry_lost || name_lost) {
                continue;
            }
            if !self.excused(at, importer, pool, exporter, named) {
                let what = if entry_lost { "entry" } else { "name" };
                wrong.push(format!(
                    "at {seconds:.3} s the {what} of member {exporter} for pool {pool} went from member {importer} \
                     without evidence ({}; {})",
                    self.describe_export(at, exporter, pool),
                    self.describe_faults(at, [exporter, importer]),
                ));
            }
        }
        self.imports.insert((importer, pool), import);
        wrong
    }

    /// Whether evidence lasts at that moment, or did and may still be acted on.
    fn excused(
        &self,
        at: Duration,
        importer: Member,
        pool: Pool,
        exporter: Member,
        named: bool,
    ) -> bool {
        let faults = |member, side| {
            let faults = self.faults.get(&member).into_iter().flatten();
            faults.map(move |(fault, span)| (excuse(*fault, side), *fault, *span))
        };
        let both = || faults(exporter, Side::Exporter).chain(faults(importer, Side::Importer));
        let evidence = both().filter(|(excuse, _, _)| match excuse {
            Excuse::Any => true,
            Excuse::EntryIfNamed => named,
            Excuse::Delay | Excuse::Nothing => false,
        });
        let evidence =
            evidence.map(|(_, _, span)| (span.from, span.until.map(|end| end + ALLOWANCE)));
        let turns = self.exports.get(&(exporter, pool));
        let turns = turns.map_or(&[][..], Vec::as_slice);
        if !exports_at(turns, at) {
            return true;
        }
        let ended =
            ends(turns).map(|gap| (gap.from, gap.until.map(|end| end.max(gap.from + ALLOWANCE))));
        let delays: Vec<(Duration, Option<Duration>)> = both()
            .filter(|(excuse, _, _)| *excuse == Excuse::Delay)
            .map(|(_, fault, span)| (span, blind_after(fault, self.stale_after)))
            .chain(self.restarts.iter().map(|span| (*span, self.stale_after)))
            .map(|(span, blind)| (span.from, span.until.map(|end| end + blind + ALLOWANCE)))
            .collect();
        evidence
            .chain(ended)
            .filter(|(from, _)| *from <= at)
            .any(|(_, until)| until.is_none_or(|until| lasts(until, &delays, at)))
    }

    /// Counts how many of all entries could not go now without being found.
    pub fn tally(&mut self, at: Duration) {
        let (mut counted, mut strict) = (0, 0);
        for ((importer, pool), import) in &self.imports {
            for exporter in import.entries.iter().filter(|one| *one != importer) {
                counted += 1;
                strict += u64::from(!self.excused(at, *importer, *pool, *exporter, false));
            }
        }
        self.counted += counted;
        self.strict += strict;
        self.prune(at);
    }

    /// The share of entries that could not go without being found, over all tallies.
    pub fn strictness(&self) -> f64 {
        self.strict as f64 / (self.counted as f64).max(1.0)
    }

    /// Forgets what is over for long.
    fn prune(&mut self, now: Duration) {
        let old = now.saturating_sub(KEPT);
        let is_kept = |span: &Span| span.until.is_none_or(|until| until > old);
        for faults in self.faults.values_mut() {
            faults.retain(|(_, span)| is_kept(span));
        }
        self.restarts.retain(is_kept);
        for turns in self.exports.values_mut() {
            // the one before the last that is old says what held since
            let passed = turns.partition_point(|(turn, _)| *turn <= old);
            turns.drain(..passed.saturating_sub(1));
        }
    }

    /// An import as it was last stored.
    pub fn import(&self, importer: Member, pool: Pool) -> Import {
        self.imports
            .get(&(importer, pool))
            .cloned()
            .unwrap_or_default()
    }

    /// What an importer shall have in the end.
    pub fn wanted(&self, at: Duration, importer: Member, pool: Pool) -> BTreeSet<Member> {
        if self.has(at, Fault::NamespaceGone, importer) {
            return BTreeSet::new();
        }
        let exporters =
            (0..self.members).filter(|one| *one != importer && self.exports(at, *one, pool));
        exporters.collect()
    }

    fn describe_export(&self, at: Duration, exporter: Member, pool: Pool) -> String {
        let mut turns = self.exports.get(&(exporter, pool)).into_iter().flatten();
        match turns.rfind(|(turn, _)| *turn <= at) {
            Some((turn, true)) => format!("exported since {:.1} s", turn.as_secs_f64()),
            Some((turn, false)) => format!("not exported since {:.1} s", turn.as_secs_f64()),
            None => "never exported".to_owned(),
        }
    }

    fn describe_faults(&self, at: Duration, members: [Member; 2]) -> String {
        let mut lines = Vec::new();
        for member in members {
            for (fault, span) in self.faults.get(&member).into_iter().flatten() {
                if span.from <= at && span.until.is_none_or(|until| until + ALLOWANCE > at) {
                    lines.push(format!("member {member} {fault:?} {span}"));
                }
            }
        }
        for span in self.restarts.iter().filter(|span| span.from <= at) {
            lines.push(format!("controller restarted {span}"));
        }
        if lines.is_empty() {
            lines.push("no faults".to_owned());
        }
        lines.join(", ")
    }
}

/// Whether what lasts until a moment, or a fault that keeps it from being noticed, lasts at another.
fn lasts(mut until: Duration, delays: &[(Duration, Option<Duration>)], at: Duration) -> bool {
    while until <= at {
        let longer = delays
            .iter()
            .filter(|(from, _)| *from <= until)
            .find(|(_, end)| end.is_none_or(|end| end > until));
        match longer {
            Some((_, Some(end))) => until = *end,
            Some((_, None)) => return true,
            None => return false,
        }
    }
    true
}

fn exports_at(turns: &[(Duration, bool)], at: Duration) -> bool {
    let past = turns.iter().rfind(|(turn, _)| *turn <= at);
    past.is_some_and(|(_, on)| *on)
}

/// From each end of an export until it began again, if it did.
fn ends(turns: &[(Duration, bool)]) -> impl Iterator<Item = Span> {
    let ends = turns.iter().enumerate().filter(|(_, (_, on))| !on);
    ends.map(|(position, (from, _))| Span {
        from: *from,
        until: turns.get(position + 1).map(|(turn, _)| *turn),
    })
}

// === impl Span ===

impl Span {
    fn holds(self, at: Duration) -> bool {
        self.from <= at && self.until.is_none_or(|until| until > at)
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "since {:.1} s", self.from.as_secs_f64())?;
        match self.until {
            Some(until) => write!(f, " until {:.1} s", until.as_secs_f64()),
            None => Ok(()),
        }
    }
}
