//! Gauges, read from the last overview when the page is scraped.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder, MetricEncoder},
    metrics::MetricType,
    registry::Unit,
};

use crate::{
    name::ClusterName,
    overview::{MemberView, Overview, STATES},
};

/// The overview, as the registry sees it.
#[derive(Debug)]
pub(super) struct Gauges(pub(super) Arc<ArcSwap<Overview>>);

/// The value of a sample: a count, or base units.
#[derive(Clone, Copy)]
enum Value {
    Count(usize),
    Float(f64),
}

/// A gauge of the whole controller.
struct Global {
    name: &'static str,
    help: &'static str,
    read: fn(&Overview) -> Value,
}

/// A gauge per member, and how it is read.
struct PerMember {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: Read,
}

enum Read {
    One(fn(&MemberView) -> Value),
    /// With one more label: its name, and its label values with their samples.
    By(&'static str, fn(&MemberView) -> Vec<(&'static str, Value)>),
}

const GLOBALS: [Global; 3] = [
    Global {
        name: "mci_isolation_guard",
        help: "1 while withdrawals are held since many members were lost at once",
        read: |overview| Value::Count(overview.guard.into()),
    },
    Global {
        name: "mci_leader",
        help: "1 while this controller leads, so that it alone writes",
        read: |overview| Value::Count(overview.leader.into()),
    },
    Global {
        name: "mci_conflicts",
        help: "Imports that bear a planned name and are not ours, or that somebody keeps undoing",
        read: |overview| Value::Count(overview.conflicts),
    },
];

const PER_MEMBER: [PerMember; 11] = [
    PerMember {
        name: "mci_member_up",
        help: "1 while the member is in contact",
        unit: None,
        read: Read::One(|member| Value::Count(member.up.into())),
    },
    PerMember {
        name: "mci_member_state",
        help: "1 for the reason of the member's condition Active",
        unit: None,
        read: Read::By("reason", |member| {
            one_of(&STATES, Some(member.active.reason))
        }),
    },
    PerMember {
        name: "mci_member_last_contact",
        help: "Time since the member was last in contact, 0 while it is",
        unit: Some(Unit::Seconds),
        read: Read::One(|member| Value::Float(member.silent.as_secs_f64())),
    },
    PerMember {
        name: "mci_member_crd_flavour",
        help: "1 for the import CRD that the member serves",
        unit: None,
        read: Read::By("flavour", |member| one_of(&FLAVOURS, member.flavour)),
    },
    PerMember {
        name: "mci_exported_pools",
        help: "Pools that the member exports",
        unit: None,
        read: Read::One(|member| Value::Count(member.counts.exported_pools)),
    },
    PerMember {
        name: "mci_imports",
        help: "Imports of ours in the member",
        unit: None,
        read: Read::One(|member| Value::Count(member.counts.imports)),
    },
    PerMember {
        name: "mci_import_entries",
        help: "Entries of our imports in the member, by their condition Ready",
        unit: None,
        read: Read::By("ready", |member| {
            vec![
                ("True", Value::Count(member.counts.entries_ready)),
                ("False", Value::Count(member.counts.entries_not_ready)),
                ("Unknown", Value::Count(member.counts.entries_unknown)),
            ]
        }),
    },
    PerMember {
        name: "mci_queue_keys",
        help: "Objects that wait to be written",
        unit: None,
        read: Read::One(|member| Value::Count(member.queue.keys)),
    },
    PerMember {
        name: "mci_queue_oldest",
        help: "How long the oldest of them has waited",
        unit: Some(Unit::Seconds),
        read: Read::One(|member| Value::Float(member.queue.oldest.as_secs_f64())),
    },
    PerMember {
        name: "mci_inflight_limit",
        help: "Writes that may be in flight at once; falls where the API server is slow",
        unit: None,
        read: Read::One(|member| Value::Count(member.queue.limit)),
    },
    PerMember {
        name: "mci_breaker_open",
        help: "1 while writes are held back because none got through",
        unit: None,
        read: Read::One(|member| Value::Count(member.queue.breaker_open.into())),
    },
];

/// Values of `flavour`.
const FLAVOURS: [&str; 4] = ["Superset", "Earlier", "Upstream", "Absent"];

/// All values of a set, with 1 for the one that holds; one outside of the set is added.
fn one_of(set: &[&'static str], holds: Option<&'static str>) -> Vec<(&'static str, Value)> {
    let odd = holds.filter(|one| !set.contains(one));
    let all = set.iter().copied().chain(odd);
    all.map(|one| (one, Value::Count(usize::from(holds == Some(one)))))
        .collect()
}

// === impl Gauges ===

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let overview = self.0.load_full();
        for Global { name, help, read } in &GLOBALS {
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&read(&overview))?;
        }
        for gauge in &PER_MEMBER {
            let PerMember {
                name,
                help,
                unit,
                read,
            } = gauge;
            let mut metric =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for member in &overview.clusters {
                read.encode(&mut metric, &member.name, member)?;
            }
        }
        Ok(())
    }
}

// === impl Read ===

impl Read {
    fn encode(
        &self,
        metric: &mut MetricEncoder,
        name: &ClusterName,
        member: &MemberView,
    ) -> fmt::Result {
        let cluster = ("cluster", name.as_str());
        match self {
            Self::One(read) => metric
                .encode_family(&[cluster])?
                .encode_gauge(&read(member)),
            Self::By(label, read) => read(member).into_iter().try_for_each(|(value, number)| {
                metric
                    .encode_family(&[cluster, (*label, value)])?
                    .encode_gauge(&number)
            }),
        }
    }
}

// === impl Value ===

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder) -> fmt::Result {
        match self {
            Self::Count(count) => count.encode(encoder),
            Self::Float(number) => number.encode(encoder),
        }
    }
}
