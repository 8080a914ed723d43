//! What should be, said as simply as possible: from what the controller was told, never from what it made of it.

use std::time::Duration;

use jiff::Timestamp;
use moment::Moment;
use serde_json::{Value, json};

use super::{
    MEMBERS, POOLS,
    cluster::{Cluster, Epp, address, text},
};
use crate::index::{facts::CrdCheck, rules::Rules};

/// What the controller was last told of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    /// Nothing since it started.
    Nothing,
    Exported,
    /// It is there, and asks for no export, or for an illegal one.
    NotExported,
    /// The watch said that it was deleted, under a CRD that stood.
    Deleted,
    /// It was not on a complete list, under the CRD that it was on a list of before.
    Absent,
    /// It is gone, but so was its CRD, or it is another.
    Doubted,
}

/// What an importer should have of an exporter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Due {
    Entry,
    /// Whatever is there, or nothing.
    Either,
    /// Only what drains.
    Drain,
    Nothing,
}

pub(super) struct Oracle {
    rules: Rules,
    members: Vec<Seen>,
    guard_since: Option<Moment>,
    calm_since: Option<Moment>,
}

#[derive(Clone)]
struct Seen {
    told: Vec<Told>,
    /// Generation and target port of each pool as it was last seen.
    pools: Vec<Option<(i64, u16)>>,
    epp: Epp,
    /// Why there is no contact, and since when.
    silence: Option<(&'static str, Moment)>,
    /// The CRD of its pools is not served.
    crd_missing: bool,
    /// Of the CRD at its last complete list under one that stood.
    uid: Option<String>,
    /// Since when a CRD has stood that may yet bring back what is doubted.
    stands_since: Option<Moment>,
    left_at: Option<Moment>,
    fresh_loss: Option<Moment>,
    silent_since: Option<Moment>,
}

/// The longest drain that anybody may ask for.
const MAX_DRAIN: Duration = Duration::from_hours(1);

pub(super) fn wall(now: Moment) -> Timestamp {
    Timestamp::UNIX_EPOCH + now.since_start()
}

impl Oracle {
    pub(super) fn new(members: usize, rules: Rules) -> Self {
        let seen = Seen {
            told: vec![Told::Nothing; POOLS.len()],
            pools: vec![None; POOLS.len()],
            epp: Epp::At(1),
            silence: None,
            crd_missing: false,
            uid: None,
            stands_since: None,
            left_at: None,
            fresh_loss: None,
            silent_since: None,
        };
        Self {
            rules,
            members: vec![seen; members],
            guard_since: None,
            calm_since: None,
        }
    }

    /// A new controller knows nothing of what the old one was told.
    pub(super) fn restarted(&mut self, recorded: usize, gone: usize, now: Moment) {
        self.guard_since =
            (self.rules.isolation_guard && gone >= 2 && gone * 2 > recorded).then_some(now);
        self.calm_since = None;
        for m in 0..self.members.len() {
            self.unheard(m);
            let seen = &mut self.members[m];
            seen.silence = None;
            seen.fresh_loss = None;
            seen.silent_since = Some(now);
        }
    }

    pub(super) fn unheard(&mut self, m: usize) {
        let seen = &mut self.members[m];
        seen.told = vec![Told::Nothing; POOLS.len()];
        seen.pools = vec![None; POOLS.len()];
        seen.crd_missing = false;
        seen.uid = None;
        seen.stands_since = None;
    }

    /// The controller hears of what is behind the pools now.
    pub(super) fn sees(&mut self, m: usize, cluster: &Cluster) {
        let seen = &mut self.members[m];
        seen.epp = if cluster.namespace.is_none() {
            Epp::Gone
        } else {
            cluster.epp
        };
        for (p, known) in seen.pools.iter_mut().enumerate() {
            if let Some(pool) = cluster
                .pool(POOLS[p])
                .filter(|_| seen.told[p] != Told::Nothing)
            {
                let generation = pool["metadata"]["generation"].as_i64();
                let port = pool["spec"]["targetPorts"][0]["number"].as_u64();
                let port = u16::try_from(port.expect("a port")).expect("a port");
                *known = Some((generation.expect("a generation"), port));
            }
        }
    }

    pub(super) fn showed(&mut self, m: usize, p: usize, cluster: &Cluster) {
        self.members[m].told[p] = if cluster.exports(POOLS[p]) {
            Told::Exported
        } else {
            Told::NotExported
        };
    }

    pub(super) fn deleted(&mut self, m: usize, p: usize, crd: &CrdCheck) {
        let seen = &mut self.members[m];
        if uid(crd).is_some() && seen.uid == uid(crd) {
            seen.told[p] = Told::Deleted;
        } else if !matches!(seen.told[p], Told::Deleted | Told::NotExported) {
            seen.told[p] = Told::Doubted;
        }
    }

    pub(super) fn listed(&mut self, m: usize, cluster: &Cluster, crd: &CrdCheck, now: Moment) {
        let seen = &mut self.members[m];
        let same = uid(crd).is_some() && seen.uid == uid(crd);
        if uid(crd).is_some() {
            if !same {
                seen.stands_since = Some(now);
            }
            seen.stands_since.get_or_insert(now);
            seen.uid = uid(crd);
        } else {
            seen.stands_since = None;
        }
        seen.crd_missing = false;
        for (p, pool) in POOLS.iter().enumerate() {
            if cluster.pool(pool).is_some() {
                self.showed(m, p, cluster);
                continue;
            }
            let told = &mut self.members[m].told[p];
            *told = match *told {
                // it had ended before
                Told::Deleted | Told::NotExported => Told::Deleted,
                Told::Absent => Told::Absent,
                Told::Exported if same => Told::Absent,
                Told::Exported | Told::Doubted | Told::Nothing => Told::Doubted,
            };
        }
    }

    pub(super) fn crd_gone(&mut self, m: usize) {
        self.members[m].stands_since = None;
        self.members[m].crd_missing = true;
    }

    pub(super) fn lost(&mut self, m: usize, why: &'static str, now: Moment) {
        let seen = &mut self.members[m];
        seen.silence.get_or_insert((why, now));
        seen.fresh_loss = Some(now);
        seen.silent_since.get_or_insert(now);
        self.count(now);
    }

    /// It is known where it is, so it does not count as lost.
    pub(super) fn refused(&mut self, m: usize, now: Moment) {
        let silence = &mut self.members[m].silence;
        silence.get_or_insert(("ConnectionLost", now));
    }

    pub(super) fn back(&mut self, m: usize, now: Moment) {
        let seen = &mut self.members[m];
        seen.silence = None;
        seen.silent_since = None;
        if seen.left_at.is_none() {
            seen.fresh_loss = None;
        }
        self.count(now);
    }

    pub(super) fn left(&mut self, m: usize, now: Moment) {
        self.members[m].left_at = Some(now);
        self.members[m].fresh_loss = Some(now);
        self.count(now);
    }

    pub(super) fn back_in_inventory(&mut self, m: usize) {
        self.members[m].left_at = None;
        self.members[m].fresh_loss = None;
    }

    pub(super) fn ticked(&mut self, lost: usize, now: Moment) {
        self.count(now);
        for seen in &mut self.members {
            let stood = stood(seen, &self.rules, now);
            let silent = seen.silence.is_some() || seen.silent_since.is_some();
            if stood && !silent && self.guard_since.is_none() {
                let doubts = seen.told.iter_mut();
                doubts
                    .filter(|told| **told == Told::Doubted)
                    .for_each(|told| *told = Told::Absent);
            }
        }
        let all = self.members.len();
        if self.guard_since.is_some() {
            if lost >= 2 && lost * 2 > all {
                self.calm_since = None;
            } else {
                let since = *self.calm_since.get_or_insert(now);
                if now.since(since).as_secs() >= 30 {
                    self.guard_since = None;
                    self.calm_since = None;
                }
            }
        }
    }

    /// More members than there are at most, so that it turns on late rather than early.
    fn count(&mut self, now: Moment) {
        let fresh = self.members.iter().filter(|seen| {
            let loss = seen.fresh_loss;
            loss.is_some_and(|at| now.since(at).as_secs() < 10)
        });
        let fresh = fresh.count();
        if self.rules.isolation_guard && fresh >= 2 && fresh * 2 > self.members.len() {
            self.guard_since.get_or_insert(now);
        }
    }

    /// A write of ours on the entry of an exporter: it goes only with evidence, and of one that was not heard of since
    /// the start nothing is made up.
    pub(super) fn judge_write(
        &self,
        m: usize,
        p: usize,
        was: &Value,
        is: Option<&Value>,
        now: Moment,
    ) {
        let told = self.members[m].told[p];
        let Some(is) = is else {
            let drains = text(was, "/drainUntil").parse().ok();
            let may = self.may_go(m, p, drains, now);
            assert!(may, "{} of {} goes, {told:?}", POOLS[p], MEMBERS[m]);
            return;
        };
        let known = |field: &str| was.get(field) == is.get(field);
        let carried = ["endpointPicker", "targetPorts", "targetPortNumber"].map(known);
        assert!(
            told != Told::Nothing || carried == [true; 3],
            "{} of {} changes, and nobody said so: {was} to {is}",
            POOLS[p],
            MEMBERS[m]
        );
    }

    /// Whether an importer may lose the entry of this exporter's pool now.
    fn may_go(&self, m: usize, p: usize, drains: Option<Timestamp>, now: Moment) -> bool {
        let seen = &self.members[m];
        let guarded = self.guard_since.is_some_and(|since| since < now);
        // removed, and not just now among most others: then it is as if it had stayed
        if let Some(left) = seen.left_at
            && !(guarded && now.since(left) < self.rules.removal_hold)
        {
            return true;
        }
        if self.is_withdrawn(m, now) {
            return true;
        }
        let ended = match seen.told[p] {
            Told::Nothing | Told::Exported => false,
            Told::NotExported | Told::Deleted | Told::Absent => true,
            Told::Doubted => stood(seen, &self.rules, now),
        };
        // one past any that we write is forged
        let forged = wall(now) + MAX_DRAIN * 2;
        let drained = drains.is_none_or(|until| until <= wall(now) || until > forged);
        ended && drained
    }

    /// Silent for longer than the operator waits.
    fn is_withdrawn(&self, m: usize, now: Moment) -> bool {
        let silent = self.members[m].silent_since;
        let after = self.rules.withdraw_after;
        after
            .zip(silent)
            .is_some_and(|(after, since)| now.since(since) >= after)
    }

    /// Whether the controller was told anything of the pool since it started, but for its absence under a new CRD.
    pub(super) fn is_known(&self, m: usize, p: usize) -> bool {
        let seen = &self.members[m];
        match seen.told[p] {
            Told::Nothing => false,
            Told::Doubted => seen.pools[p].is_some(),
            Told::Exported | Told::NotExported | Told::Deleted | Told::Absent => true,
        }
    }

    pub(super) fn told(&self, m: usize, p: usize) -> Told {
        self.members[m].told[p]
    }

    /// What the others should have of an exporter; `healed`: whatever waited has had its time.
    pub(super) fn due(&self, m: usize, p: usize, healed: bool, now: Moment) -> Due {
        let seen = &self.members[m];
        // what the guard holds, and for how long, is not judged but for its end
        let may_wait = self.rules.isolation_guard && !healed;
        if seen.left_at.is_some() {
            return if may_wait { Due::Either } else { Due::Nothing };
        }
        if self.is_withdrawn(m, now) {
            return Due::Either;
        }
        match seen.told[p] {
            Told::Nothing => Due::Either,
            // what was not seen since the start is left to the importers
            Told::Doubted if seen.pools[p].is_none() || stood(seen, &self.rules, now) => {
                Due::Either
            }
            Told::Absent if may_wait => Due::Either,
            Told::Exported | Told::Doubted => Due::Entry,
            Told::NotExported | Told::Deleted | Told::Absent => Due::Drain,
        }
    }

    /// The entry of a pool that is exported, without texts and times and with conditions by type; none: it is not known
    /// how it was exported. `Ready` is left out where the guard may keep it from turning unknown.
    pub(super) fn entry(&self, m: usize, p: usize, now: Moment) -> Option<Value> {
        let seen = &self.members[m];
        let (generation, port) = seen.pools[p]?;
        let (reachable, reason) = match seen.silence {
            Some((reason, _)) => ("False", reason),
            None if seen.crd_missing || seen.told[p] == Told::Doubted => ("False", "CRDMissing"),
            None => ("True", "Reachable"),
        };
        let stale = |(_, since): (_, Moment)| now.since(since) >= self.rules.stale_after;
        let is_stale = seen.silence.is_some_and(stale);
        let blocked = match seen.epp {
            Epp::Loopback => Some("InvalidAddress"),
            Epp::Gone => Some("BackendNotFound"),
            Epp::NoPort => Some("PortNotFound"),
            Epp::Unassigned => Some("AddressNotAssigned"),
            Epp::Idle(_) => Some("NoReadyEndpoint"),
            Epp::At(_) | Epp::ClusterIp(_) | Epp::NoMetrics => None,
        };
        let refused = blocked.filter(|_| seen.epp == Epp::Loopback);
        let unresolved = blocked.filter(|_| matches!(seen.epp, Epp::Gone | Epp::NoPort));
        let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "observedGeneration": generation});
        let unless = |type_: &str, blocked: Option<&str>| match blocked {
            Some(reason) => condition(type_, "False", reason),
            None => condition(type_, "True", type_),
        };
        let reachable = condition("Reachable", reachable, reason);
        let mut conditions = vec![unless("Accepted", refused), reachable];
        if is_stale && !self.rules.isolation_guard {
            conditions.push(condition("Ready", "Unknown", "Stale"));
        } else if !is_stale {
            conditions.push(unless("Ready", blocked));
        }
        conditions.push(unless("ResolvedRefs", unresolved));
        let mut entry = json!({
            "name": MEMBERS[m], "routingMode": "EndpointMode", "targetPortNumber": port,
            "targetPorts": [{"number": port}], "conditions": conditions,
        });
        if unresolved.is_none() {
            let (type_, addresses) = match seen.epp {
                Epp::ClusterIp(n) => ("ClusterIP", vec![address(n)]),
                Epp::At(n) | Epp::Idle(n) => ("LoadBalancer", vec![address(n)]),
                Epp::Unassigned | Epp::Loopback => ("LoadBalancer", Vec::new()),
                _ => ("LoadBalancer", vec![address(1)]),
            };
            let mut service = json!({"type": type_, "ports": [
                {"number": 9002, "name": "grpc", "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}]});
            if !addresses.is_empty() {
                service["addresses"] = json!(addresses);
            }
            entry["endpointPicker"] = json!({"name": "epp", "service": [service], "health": {"port": 9003},
                "failureMode": "FailOpen"});
            if seen.epp != Epp::NoMetrics {
                entry["endpointPicker"]["metrics"] = json!({"port": 9090});
            }
        }
        Some(entry)
    }
}

fn stood(seen: &Seen, rules: &Rules, now: Moment) -> bool {
    let since = seen.stands_since;
    since.is_some_and(|since| now.since(since) >= rules.stale_after)
}

fn uid(crd: &CrdCheck) -> Option<String> {
    match crd {
        CrdCheck::Serving { uid } => Some(uid.clone()),
        CrdCheck::Doubtful => None,
    }
}
