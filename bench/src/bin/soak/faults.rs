//! What goes wrong, when, and how it is put right again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{Ending, Fault as Answer, Flavour, IMPORTS, POOLS, Rule, Server, Verb};
use bench::{Fault, Member, NS, Pool, pool};
use rand::RngExt;

use crate::{EXPORTERS, POOLS_COUNT, STALE_AFTER, SYNC, Soak};

/// Kinds of faults, each with its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stop,
    /// Longer than `--stale-after`.
    LongStop,
    Hang,
    Break,
    PoolsCrd,
    ImportCrd,
    Namespace,
    /// Out of the inventory and back.
    Removal,
    /// Most members at once: out of the inventory, and many of them down.
    Most,
    /// The controller dies and another starts, while a member is down.
    Restart,
}

/// When each kind begins next, in time since things began to happen.
pub(crate) struct Schedule {
    next: Vec<(Kind, Duration, Duration)>,
    /// No restart after this: what follows is measured of one process.
    last_restart: Duration,
    time: Duration,
}

/// How a fault is put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Start(Member),
    Thaw(Member),
    /// The CRD that is terminating goes, to be back later.
    PoolsCrdGoes(Member),
    PoolsCrdBack(Member),
    ImportCrdBack(Member),
    NamespaceBack(Member),
    Admit(Member, Fault),
}

/// First time and period, in seconds. All have happened after half a minute.
const TIMES: [(Kind, f64, f64); 9] = [
    (Kind::Break, 1.2, 2.0),
    (Kind::Hang, 2.0, 6.0),
    (Kind::PoolsCrd, 2.5, 7.0),
    (Kind::LongStop, 3.0, 20.0),
    (Kind::ImportCrd, 3.5, 8.0),
    (Kind::Namespace, 4.5, 9.0),
    (Kind::Removal, 5.0, 8.0),
    (Kind::Restart, 11.0, 20.0),
    (Kind::Most, 26.0, 80.0),
];
/// One member stops each second; in a small fleet fewer, or most would be down at once all the time.
const STOP: f64 = 1.0;
const STOP_OF_ONE: f64 = 60.0;

type Seconds = std::ops::Range<u64>;
const STOPPED: Seconds = 3..15;
/// Before it is noticed, and after it is.
const HUNG: Seconds = 4..14;
const CRD_GONE: Seconds = 2..8;
const UPSTREAM: Seconds = 5..12;
const NAMESPACE_GONE: Seconds = 3..8;
/// Two scans of the directory (4 s) and the guard's 10 s, and some; or too short to be a removal.
const REMOVED: Seconds = 18..24;
const REMOVED_SHORTLY: Seconds = 1..10;
/// Below `--removal-hold` (5 min), above what a removal takes.
const MOST_REMOVED: Seconds = 18..20;
const MOST_STOPPED: Seconds = 8..12;
/// Of all members.
const MOST_SHARE: f64 = 0.7;
const MOST_STOPPED_SHARE: f64 = 0.6;
/// A pool that comes back with its CRD.
const BACK: f64 = 0.8;
/// A CRD that is terminating still answers.
const TERMINATING: Duration = Duration::from_millis(200);

// === impl Schedule ===

impl Schedule {
    pub(crate) fn new(members: usize, time: Duration) -> Self {
        let seconds = Duration::from_secs_f64;
        let stop = seconds(STOP.max(STOP_OF_ONE / members as f64));
        let others = TIMES.iter();
        let others = others.map(|(kind, first, period)| (*kind, seconds(*first), seconds(*period)));
        Self {
            next: others.chain([(Kind::Stop, stop, stop)]).collect(),
            last_restart: time / 3,
            time,
        }
    }

    /// What begins by now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<Kind> {
        let mut due = Vec::new();
        for (kind, next, period) in &mut self.next {
            if *next > now || (*kind == Kind::Restart && *next > self.last_restart) {
                continue;
            }
            *next += *period;
            due.push(*kind);
        }
        due
    }

    /// # Errors
    /// When a kind of fault did not happen that had its time.
    pub(crate) fn missing(&self, counted: &BTreeMap<&'static str, u64>) -> Result<()> {
        let all = TIMES.iter().map(|(kind, first, _)| (kind, *first));
        let due = all.filter(|(_, first)| *first < self.time.as_secs_f64() / 3.0);
        let missing: Vec<&str> = due
            .map(|(kind, _)| kind.name())
            .filter(|name| !counted.contains_key(name))
            .collect();
        ensure!(
            missing.is_empty(),
            "this run proves little: no {}",
            missing.join(", no ")
        );
        Ok(())
    }
}

// === impl Kind ===

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::LongStop => "long stop",
            Self::Hang => "hang",
            Self::Break => "broken watches",
            Self::PoolsCrd => "pools CRD deleted",
            Self::ImportCrd => "upstream's import CRD",
            Self::Namespace => "namespace deleted",
            Self::Removal => "removal",
            Self::Most => "most removed",
            Self::Restart => "restart",
        }
    }
}

// === impl Soak ===

impl Soak {
    /// Begins a fault, in a member that is free for it.
    pub(crate) async fn fail(&mut self, kind: Kind) -> Result<()> {
        let count = self.faults.get(kind.name()).copied().unwrap_or_default();
        let begun = match kind {
            Kind::Stop => {
                let member = self.rng.random_range(0..self.members());
                self.stop(member, STOPPED)
            }
            Kind::LongStop => {
                let member = self.any_exporter();
                let least = STALE_AFTER.as_secs() + 3;
                self.stop(member, least..least + 5)
            }
            Kind::Hang => self.hang(),
            Kind::Break => self.break_watches(),
            Kind::PoolsCrd => self.delete_pools_crd(),
            Kind::ImportCrd => self.swap_import_crd(),
            Kind::Namespace => self.delete_namespace(),
            // every other one of an exporter, and for long
            Kind::Removal if count.is_multiple_of(2) => {
                let member = self.any_exporter();
                self.remove(member, REMOVED)?
            }
            Kind::Removal => {
                let member = self.rng.random_range(0..self.members());
                self.remove(member, REMOVED_SHORTLY)?
            }
            Kind::Most => self.remove_most()?,
            Kind::Restart => self.restart().await?,
        };
        if begun {
            *self.faults.entry(kind.name()).or_default() += 1;
        }
        Ok(())
    }

    fn any_exporter(&mut self) -> Member {
        let pool = self.rng.random_range(0..POOLS_COUNT);
        let step = self.rng.random_range(0..EXPORTERS);
        self.exporter(pool, step)
    }

    fn server(&self, member: Member) -> Option<&Server> {
        self.fleet.servers().get(member).map(AsRef::as_ref)
    }

    fn later(&mut self, seconds: Seconds, undo: Undo) {
        let millis = self
            .rng
            .random_range(seconds.start * 1000..seconds.end * 1000);
        self.undo
            .push((self.now() + Duration::from_millis(millis), undo));
    }

    /// Whether it answers nothing.
    fn is_silent(&self, member: Member) -> bool {
        let has = |fault| self.model.has(self.now(), fault, member);
        has(Fault::Stopped) || has(Fault::Hung)
    }

    /// Whether it is in the middle of something that others would mix up.
    fn is_busy(&self, member: Member) -> bool {
        let faults = [
            Fault::PoolsCrdGone,
            Fault::UpstreamCrd,
            Fault::NamespaceGone,
            Fault::Removed,
            Fault::RemovedWithMost,
        ];
        let mut faults = faults.into_iter();
        faults.any(|fault| self.model.has(self.now(), fault, member))
    }

    /// Whether most members are out of the inventory: then the removal of one more is held, and a new controller, which
    /// has no record of them, would take them for removed.
    fn most_are_removed(&self) -> bool {
        let mut members = 0..self.members();
        members.any(|member| self.model.has(self.now(), Fault::RemovedWithMost, member))
    }

    fn stop(&mut self, member: Member, seconds: Seconds) -> bool {
        if self.is_silent(member) {
            return false;
        }
        self.model.begin(self.now(), Fault::Stopped, member);
        if let Some(server) = self.server(member) {
            server.stop();
        }
        self.later(seconds, Undo::Start(member));
        true
    }

    fn hang(&mut self) -> bool {
        let member = self.any_exporter();
        if self.is_silent(member) {
            return false;
        }
        self.model.begin(self.now(), Fault::Hung, member);
        if let Some(server) = self.server(member) {
            server.hang();
        }
        self.later(HUNG, Undo::Thaw(member));
        true
    }

    fn break_watches(&mut self) -> bool {
        let member = self.any_exporter();
        if self.is_silent(member) {
            return false;
        }
        let how = self.rng.random_range(0..4);
        self.model.begin(self.now(), Fault::Broken, member);
        if let Some(server) = self.server(member) {
            match how {
                0 => server.cut_connections(),
                1 => server.end_watches(&POOLS, Ending::InJson),
                2 => {
                    // the lists that follow break off, too
                    let lists = Rule::all(Answer::Truncated).verb(Verb::List);
                    server.add_fault(lists.resource(POOLS.plural).times(2));
                    server.expire(&POOLS);
                }
                _ => server.expire(&IMPORTS),
            }
        }
        self.model.end(self.now(), Fault::Broken, member);
        true
    }

    fn delete_pools_crd(&mut self) -> bool {
        let member = self.any_exporter();
        if self.is_busy(member) {
            return false;
        }
        self.model.begin(self.now(), Fault::PoolsCrdGone, member);
        if let Some(server) = self.server(member) {
            server.terminate_crd(&POOLS);
        }
        self.undo
            .push((self.now() + TERMINATING, Undo::PoolsCrdGoes(member)));
        true
    }

    /// Its pools come back with it, or most of them.
    fn restore_pools_crd(&mut self, member: Member) {
        let now = self.now();
        let exported = (0..POOLS_COUNT).filter(|pool| self.model.exports(now, member, *pool));
        let exported: Vec<Pool> = exported.collect();
        let back: BTreeSet<Pool> = exported
            .into_iter()
            .filter(|_| self.rng.random_bool(BACK))
            .collect();
        if let Some(server) = self.server(member) {
            server.install_crd(&POOLS);
            for one in &back {
                server.export(NS, &pool(*one));
            }
        }
        self.model.pools_crd_back(now, member, &back);
        self.model.end(self.now(), Fault::PoolsCrdGone, member);
    }

    fn swap_import_crd(&mut self) -> bool {
        let member = self.rng.random_range(0..self.members());
        if self.is_busy(member) {
            return false;
        }
        self.model.begin(self.now(), Fault::UpstreamCrd, member);
        if let Some(server) = self.server(member) {
            server.install_import_crd(Flavour::Upstream);
        }
        self.later(UPSTREAM, Undo::ImportCrdBack(member));
        true
    }

    fn delete_namespace(&mut self) -> bool {
        let member = self.rng.random_range(0..self.members());
        if self.is_busy(member) {
            return false;
        }
        self.model.begin(self.now(), Fault::NamespaceGone, member);
        if let Some(server) = self.server(member) {
            server.delete_namespace(NS);
        }
        self.later(NAMESPACE_GONE, Undo::NamespaceBack(member));
        true
    }

    fn remove(&mut self, member: Member, seconds: Seconds) -> Result<bool> {
        if self.is_busy(member) || self.most_are_removed() {
            return Ok(false);
        }
        self.model.begin(self.now(), Fault::Removed, member);
        self.fleet.dismiss(member)?;
        self.later(seconds, Undo::Admit(member, Fault::Removed));
        Ok(true)
    }

    fn remove_most(&mut self) -> Result<bool> {
        let members = self.members();
        let free: Vec<Member> = (0..members).filter(|one| !self.is_busy(*one)).collect();
        let wanted = (members as f64 * MOST_SHARE).ceil();
        let mut left = wanted;
        let mut removed = Vec::new();
        for member in free {
            if left > 0.0 {
                removed.push(member);
                left -= 1.0;
            }
        }
        // fewer would be removals of their own
        if removed.len() * 2 <= members {
            return Ok(false);
        }
        for member in removed {
            self.model.begin(self.now(), Fault::RemovedWithMost, member);
            self.fleet.dismiss(member)?;
            let undo = Undo::Admit(member, Fault::RemovedWithMost);
            self.later(MOST_REMOVED, undo);
        }
        for member in 0..members {
            if self.rng.random_bool(MOST_STOPPED_SHARE) {
                self.stop(member, MOST_STOPPED);
            }
        }
        Ok(true)
    }

    async fn restart(&mut self) -> Result<bool> {
        if self.most_are_removed() || !self.writes {
            return Ok(false);
        }
        // still down when the gate opens: its entries are carried over
        let member = self.any_exporter();
        let least = SYNC.as_secs() + 8;
        self.stop(member, least..least + 4);
        self.model.stopped(self.now());
        let old = self.controller.take().context("no controller")?;
        old.crash().await?;
        self.writes = false;
        self.memory.restart();
        self.controller = Some(self.fleet.controller_with("soak", None, &self.flags)?);
        Ok(true)
    }

    /// Notes when a new controller begins to write.
    pub(crate) async fn check_gate(&mut self) {
        let Some(controller) = self.controller.as_ref().filter(|_| !self.writes) else {
            return;
        };
        let answer = controller.get("/readyz").await;
        if answer.is_ok_and(|(status, _)| status == 200) {
            self.writes = true;
            self.model.restarted(self.now());
        }
    }

    /// Puts right what is due, or all.
    pub(crate) async fn undo(&mut self, all: bool) -> Result<()> {
        loop {
            let now = self.now();
            let due = self.undo.iter().position(|(at, _)| all || *at <= now);
            let Some(due) = due else {
                return Ok(());
            };
            let (_, undo) = self.undo.swap_remove(due);
            self.put_right(undo).await?;
        }
    }

    async fn put_right(&mut self, undo: Undo) -> Result<()> {
        let server = |member: Member| {
            let servers = self.fleet.servers();
            servers.get(member).cloned().context("no such member")
        };
        match undo {
            Undo::Start(member) => {
                server(member)?.restart().await?;
                self.model.end(self.now(), Fault::Stopped, member);
            }
            Undo::Thaw(member) => {
                server(member)?.thaw();
                self.model.end(self.now(), Fault::Hung, member);
            }
            Undo::PoolsCrdGoes(member) => {
                server(member)?.delete_crd(&POOLS);
                self.later(CRD_GONE, Undo::PoolsCrdBack(member));
            }
            Undo::PoolsCrdBack(member) => self.restore_pools_crd(member),
            Undo::ImportCrdBack(member) => {
                server(member)?.install_import_crd(Flavour::Superset);
                self.model.end(self.now(), Fault::UpstreamCrd, member);
            }
            Undo::NamespaceBack(member) => {
                server(member)?.add_epp(NS, "192.0.2.1");
                self.model.end(self.now(), Fault::NamespaceGone, member);
            }
            Undo::Admit(member, fault) => {
                self.fleet.admit(member)?;
                self.model.end(self.now(), fault, member);
            }
        }
        Ok(())
    }
}
