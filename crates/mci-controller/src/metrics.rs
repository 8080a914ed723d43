//! The controller's metrics (spec section 7). Handles are cheap to clone; labels are member names and fixed reasons.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{
    index::{
        Evidence, World,
        facts::Claim,
        member::{Fault, Link, Member, PoolRecord},
    },
    name::ClusterName,
};

type Labels = Vec<(&'static str, String)>;

/// All metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    up: Family<Labels, Gauge>,
    state: Family<Labels, Gauge>,
    exported_pools: Family<Labels, Gauge>,
    imports: Family<Labels, Gauge>,
    conflicts: Gauge,
    queue_keys: Family<Labels, Gauge>,
    patches: Family<Labels, Counter>,
    watch_restarts: Family<Labels, Counter>,
    rejected_addresses: Family<Labels, Counter>,
    withdrawals: Family<Labels, Counter>,
    withheld_withdrawals: Family<Labels, Counter>,
    propagation: Histogram,
    last_contact: Family<Labels, Gauge<f64, AtomicU64>>,
}

/// 1 ms to 65 s, doubling: the goal is 100 ms plus a round trip, the worst case a minute of backoff.
const PROPAGATION_BUCKETS: usize = 17;

/// Values of `reason` of `mci_member_state`; exactly one is 1.
const STATES: [&str; 8] = [
    "Active",
    "Connecting",
    "ConnectionLost",
    "AuthFailed",
    "BadCredentials",
    "InsecureCredentials",
    "DuplicateCluster",
    "IdentityChanged",
];

// === impl Metrics ===

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            up: Family::default(),
            state: Family::default(),
            exported_pools: Family::default(),
            imports: Family::default(),
            conflicts: Gauge::default(),
            queue_keys: Family::default(),
            patches: Family::default(),
            watch_restarts: Family::default(),
            rejected_addresses: Family::default(),
            withdrawals: Family::default(),
            withheld_withdrawals: Family::default(),
            propagation: Histogram::new(buckets()),
            last_contact: Family::default(),
        };
        registry.register(
            "mci_member_up",
            "1 while the member is in contact",
            metrics.up.clone(),
        );
        registry.register(
            "mci_member_state",
            "1 for the state that the member is in",
            metrics.state.clone(),
        );
        registry.register_with_unit(
            "mci_member_last_contact",
            "Time since the member was last in contact",
            Unit::Seconds,
            metrics.last_contact.clone(),
        );
        registry.register(
            "mci_exported_pools",
            "Pools that the member exports",
            metrics.exported_pools.clone(),
        );
        registry.register(
            "mci_imports",
            "Imports of ours in the member",
            metrics.imports.clone(),
        );
        registry.register(
            "mci_conflicts",
            "Imports that bear a planned name and are not ours",
            metrics.conflicts.clone(),
        );
        registry.register(
            "mci_queue_keys",
            "Objects that wait to be written",
            metrics.queue_keys.clone(),
        );
        registry.register(
            "mci_patches",
            "Writes into the member, by how they ended",
            metrics.patches.clone(),
        );
        registry.register(
            "mci_watch_restarts",
            "Watches and lists that failed and began again",
            metrics.watch_restarts.clone(),
        );
        registry.register(
            "mci_rejected_addresses",
            "Addresses of the member that were not passed on",
            metrics.rejected_addresses.clone(),
        );
        registry.register(
            "mci_withdrawals",
            "Exports that ended, by evidence",
            metrics.withdrawals.clone(),
        );
        registry.register(
            "mci_withheld_withdrawals",
            "Exports that vanished without evidence and were retained, by what it looked like",
            metrics.withheld_withdrawals.clone(),
        );
        registry.register_with_unit(
            "mci_propagation",
            "From the arrival of an event to the import applied in one member",
            Unit::Seconds,
            metrics.propagation.clone(),
        );
        metrics
    }

    pub(crate) fn patched(&self, member: &ClusterName, result: &'static str) {
        let labels = vec![
            ("cluster", member.to_string()),
            ("result", result.to_owned()),
        ];
        self.patches.get_or_create(&labels).inc();
    }

    pub(crate) fn propagated(&self, time: Duration) {
        self.propagation.observe(time.as_secs_f64());
    }

    pub(crate) fn watch_failed(&self, member: &ClusterName, kind: &'static str, reason: &str) {
        let labels = vec![
            ("cluster", member.to_string()),
            ("kind", kind.to_owned()),
            ("reason", reason.to_owned()),
        ];
        self.watch_restarts.get_or_create(&labels).inc();
    }

    pub(crate) fn rejected_address(&self, member: &ClusterName, reason: &'static str) {
        let labels = vec![
            ("cluster", member.to_string()),
            ("reason", reason.to_owned()),
        ];
        self.rejected_addresses.get_or_create(&labels).inc();
    }

    pub(crate) fn withdrawn(&self, evidence: Evidence) {
        let labels = vec![("reason", evidence.reason().to_owned())];
        self.withdrawals.get_or_create(&labels).inc();
    }

    pub(crate) fn withheld(&self, looks_like: Evidence, count: usize) {
        let labels = vec![("reason", looks_like.reason().to_owned())];
        self.withheld_withdrawals
            .get_or_create(&labels)
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn set_conflicts(&self, count: usize) {
        self.conflicts.set(gauge(count));
    }

    pub(crate) fn set_queue(&self, member: &ClusterName, waiting: usize) {
        let labels = vec![("cluster", member.to_string())];
        self.queue_keys.get_or_create(&labels).set(gauge(waiting));
    }

    /// Sets what is counted from the world.
    pub(crate) fn observe(&self, world: &World, now: moment::Moment) {
        for (name, member) in &world.members {
            let cluster = || ("cluster", name.to_string());
            let up = i64::from(member.in_contact());
            self.up.get_or_create(&vec![cluster()]).set(up);
            let silent = member
                .silence
                .map_or(Duration::ZERO, |silence| now.since(silence.since));
            self.last_contact
                .get_or_create(&vec![cluster()])
                .set(silent.as_secs_f64());
            let current = state(member);
            for reason in STATES {
                let labels = vec![cluster(), ("reason", reason.to_owned())];
                self.state
                    .get_or_create(&labels)
                    .set(i64::from(reason == current));
            }
            let pools = member
                .pools
                .values()
                .filter(|one| PoolRecord::is_exported(one));
            self.exported_pools
                .get_or_create(&vec![cluster()])
                .set(gauge(pools.count()));
            let imports = member.imports.items.values();
            let ours = imports.filter(|import| import.claim == Claim::Ours);
            self.imports
                .get_or_create(&vec![cluster()])
                .set(gauge(ours.count()));
        }
    }

    /// Drops the series of a member that was forgotten.
    pub(crate) fn forget(&self, member: &ClusterName) {
        let cluster = vec![("cluster", member.to_string())];
        self.up.remove(&cluster);
        self.last_contact.remove(&cluster);
        self.exported_pools.remove(&cluster);
        self.imports.remove(&cluster);
        self.queue_keys.remove(&cluster);
        for reason in STATES {
            let labels = vec![
                ("cluster", member.to_string()),
                ("reason", reason.to_owned()),
            ];
            self.state.remove(&labels);
        }
    }
}

/// The state as `mci_member_state` names it.
pub(crate) fn state(member: &Member) -> &'static str {
    match member.link {
        Link::Live | Link::Suspect | Link::Removing => "Active",
        Link::Connecting | Link::Syncing => "Connecting",
        Link::Lost => {
            let fault = member.silence.map(|silence| silence.fault);
            fault.unwrap_or(Fault::ConnectionLost).reason()
        }
        Link::Refused(refusal) => refusal.reason(),
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn buckets() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(0.001), |bound| Some(bound * 2.0)).take(PROPAGATION_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{member, mk_name, mk_world},
        index::update::Update,
    };

    #[test]
    fn refused_credentials_are_a_state_of_their_own() {
        let mut world = mk_world(&["a"]);
        let now = moment::Moment::default();
        world.update(&mk_name("a"), Update::Lost(Fault::AuthFailed), now);
        assert_eq!(state(member(&world, "a")), "AuthFailed");
        assert!(STATES.contains(&"AuthFailed"));
        world.update(&mk_name("a"), Update::Lost(Fault::ConnectionLost), now);
        assert_eq!(state(member(&world, "a")), "ConnectionLost");
    }
}
