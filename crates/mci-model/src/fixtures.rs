//! Worlds for tests: members, pools, and an API server reduced to the effect of an apply.
#![allow(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "for tests, which end by panicking"
)]

use std::{collections::BTreeMap, sync::Arc};

use crd::{
    FailureMode, Hostname, InferencePoolImportStatus, ListenerProtocol, RoutingMode, ServiceType,
    annotations,
};
use jiff::Timestamp;

use crate::{
    export::{Export, parse_export},
    index::{
        World,
        digest::LiveStatus,
        entry::{Entry, ImportStatus},
        facts::{
            Admits, Claim, CrdCheck, EppRef, GatewayFacts, ListenerFacts, LiveImport,
            NamespaceFacts, PoolFacts, PortFacts, Programmed, RouteFacts, RouteParent,
            ServiceFacts, SliceFacts,
        },
        flavour::{Flavour, ImportCrd},
        member::{Fault, Member},
        record::Record,
        rules::Rules,
        update::{Change, Update},
    },
    name::{ClusterName, Key},
    plan::{
        ImportInExporter, ImportPlan, PlannedImport, Policy, PoolPlan, desired,
        diff::{PoolStep, Step, diff, diff_pool},
    },
};
use moment::Moment;

/// Namespace of every object made here.
pub const NS: &str = "ml";
/// Silence after which members of these worlds are stale.
pub const STALE_AFTER: std::time::Duration = std::time::Duration::from_mins(1);

/// `name` must be an RFC-1123 label.
pub fn mk_name(name: &str) -> ClusterName {
    ClusterName::new(name).expect("a label")
}

/// A key in [`NS`].
pub fn mk_key(name: &str) -> Key {
    Key::new(NS, name)
}

/// The program's defaults: EndpointMode, no import in a sole exporter.
pub fn mk_policy() -> Policy {
    Policy {
        clusterset: "default".to_owned(),
        instance: "default".to_owned(),
        controller_name: annotations::MCI_CONTROLLER.to_owned(),
        strict_exported: false,
        default_mode: RoutingMode::EndpointMode,
        import_in_exporter: ImportInExporter::WhenRemote,
        epp_endpoints: false,
        own_namespace: "isthmus-system".to_owned(),
    }
}

/// No guard, and no withdrawal for silence.
pub fn mk_rules() -> Rules {
    Rules {
        stale_after: STALE_AFTER,
        withdraw_after: None,
        drain: std::time::Duration::ZERO,
        isolation_guard: false,
        removal_hold: std::time::Duration::from_mins(5),
    }
}

/// A member's record of the cluster with this uid.
pub fn mk_record(uid: &str) -> Record {
    Record {
        uid: uid.to_owned(),
        source: String::new(),
        first_seen: None,
    }
}

/// An import CRD of this flavour.
pub fn mk_import_crd(flavour: Flavour) -> ImportCrd {
    ImportCrd {
        flavour,
        uid: Some("import-crd-1".to_owned()),
        generation: 1,
    }
}

/// The export that these annotations ask for.
pub fn mk_export(annotations: &[(&str, &str)]) -> Export {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    parse_export(&annotations.iter().map(owned).collect())
}

/// A pool with one target port and Service `epp` as its endpoint picker; `export` is the annotation's value.
pub fn mk_pool(name: &str, export: Option<&str>) -> PoolFacts {
    PoolFacts {
        key: mk_key(name),
        uid: format!("uid-{name}"),
        generation: 3,
        created: Timestamp::UNIX_EPOCH,
        export: mk_export(export.map(|value| (annotations::EXPORT, value)).as_slice()),
        epp: Some(EppRef {
            group: String::new(),
            kind: "Service".to_owned(),
            name: "epp".to_owned(),
            port: Some(9002),
            failure_mode: Some(FailureMode::FailOpen),
        }),
        target_ports: vec![8000],
        app_protocol: Some("http".to_owned()),
        exported: None,
        status_full: false,
        parents: Vec::new(),
    }
}

/// A pool that is exported in ParentMode and was accepted by Gateway `gw`.
pub fn mk_parent_pool(name: &str) -> PoolFacts {
    let mut pool = mk_pool(name, Some("ClusterSet"));
    pool.export = mk_export(&[
        (annotations::EXPORT, "ClusterSet"),
        (annotations::EXPORT_MODE, "ParentMode"),
    ]);
    pool.parents = vec![mk_key("gw")];
    pool
}

/// A Gateway that works, with one listener for any host.
pub fn mk_gateway(name: &str) -> GatewayFacts {
    GatewayFacts {
        key: mk_key(name),
        programmed: Programmed::Yes,
        addresses: vec!["192.0.2.10".to_owned()],
        listeners: vec![ListenerFacts {
            name: "web".to_owned(),
            port: 80,
            protocol: ListenerProtocol::Http,
            hostname: Hostname::Any,
            admits: Admits::SameNamespace,
        }],
    }
}

/// A route on a Gateway to a pool, for `llm.example.com`.
pub fn mk_route(name: &str, gateway: &str, pool: &str) -> RouteFacts {
    RouteFacts {
        key: mk_key(name),
        parents: vec![RouteParent {
            gateway: mk_key(gateway),
            section: None,
            port: None,
        }],
        hostnames: vec![Hostname::Exact("llm.example.com".to_owned())],
        pools: [mk_key(pool)].into(),
        imports: [].into(),
    }
}

/// A port without protocols.
pub fn mk_port(name: &str, number: u16) -> PortFacts {
    PortFacts {
        name: name.to_owned(),
        number,
        protocol: None,
        app_protocol: None,
    }
}

/// Service `epp` with one address, the load balancer's or else its cluster IP, and the three usual ports.
pub fn mk_service(type_: ServiceType, address: &str) -> ServiceFacts {
    let addresses = vec![address.to_owned()];
    let balanced = type_ == ServiceType::LoadBalancer;
    ServiceFacts {
        key: mk_key("epp"),
        type_,
        cluster_ips: if balanced {
            vec!["10.96.0.9".to_owned()]
        } else {
            addresses.clone()
        },
        headless: false,
        ingress: if balanced { addresses } else { Vec::new() },
        ports: vec![
            mk_port("grpc", 9002),
            mk_port("health", 9003),
            mk_port("metrics", 9090),
        ],
    }
}

/// The only slice of Service `epp`, with these endpoints ready.
pub fn mk_slice(ready: &[&str]) -> SliceFacts {
    SliceFacts {
        key: mk_key("epp-1"),
        service: "epp".into(),
        ready: ready.iter().map(|ip| ip.parse().expect("an IP")).collect(),
        terminating: Vec::new(),
        ports: vec![mk_port("grpc", 19002)],
    }
}

/// Namespace [`NS`].
pub fn mk_namespace(terminating: bool) -> NamespaceFacts {
    NamespaceFacts {
        name: NS.into(),
        terminating,
    }
}

/// The pools CRD, not being deleted; always the same uid.
pub fn mk_crd() -> CrdCheck {
    CrdCheck::Serving {
        uid: "crd-1".to_owned(),
    }
}

/// A status, as it is held.
pub fn mk_status(status: InferencePoolImportStatus) -> ImportStatus {
    let InferencePoolImportStatus {
        observed_generation,
        conditions,
        controllers,
        clusters,
    } = status;
    ImportStatus {
        observed_generation,
        conditions,
        controllers,
        clusters: clusters.into_iter().map(Entry::new).collect(),
    }
}

/// A live import of ours with this status.
pub fn mk_live(key: &Key, planned: &PlannedImport, version: u64) -> LiveImport {
    let entries = planned.status.clusters.iter();
    LiveImport {
        key: key.clone(),
        uid: format!("import-{key}"),
        resource_version: version.to_string(),
        generation: 1,
        claim: Claim::Ours,
        owned_entries: Arc::new(entries.map(|entry| entry.name.clone()).collect()),
        status: LiveStatus::new(planned.status.clone(), annotations::MCI_CONTROLLER),
    }
}

/// The first lists of a connected member, with the namespace and an EPP.
pub fn first_lists(pools: Vec<PoolFacts>, imports: Vec<LiveImport>) -> Vec<Update> {
    vec![
        Update::Connected {
            uid: String::new(),
            clusterset: None,
        },
        Update::ImportCrd(mk_import_crd(Flavour::Superset)),
        Update::Namespaces(Change::Listed(vec![mk_namespace(false)])),
        Update::Services(Change::Listed(vec![mk_service(
            ServiceType::LoadBalancer,
            "192.0.2.1",
        )])),
        Update::Slices(Change::Listed(vec![mk_slice(&["10.0.0.1"])])),
        Update::Imports(Change::Listed(imports)),
        Update::PoolsListed {
            pools,
            odd: std::collections::BTreeSet::new(),
            crd: mk_crd(),
        },
        Update::Live,
    ]
}

/// The same, from this cluster.
pub fn connect(
    world: &mut World,
    name: &str,
    pools: Vec<PoolFacts>,
    imports: Vec<LiveImport>,
    now: Moment,
) {
    connect_under(world, name, mk_crd(), pools, imports, now);
}

/// The same, with this state of the pools CRD.
pub fn connect_under(
    world: &mut World,
    name: &str,
    crd: CrdCheck,
    pools: Vec<PoolFacts>,
    imports: Vec<LiveImport>,
    now: Moment,
) {
    for update in first_lists(pools, imports) {
        let update = match update {
            Update::PoolsListed { pools, odd, .. } => Update::PoolsListed {
                pools,
                odd,
                crd: crd.clone(),
            },
            Update::Connected { .. } => Update::Connected {
                uid: format!("cluster-{name}"),
                clusterset: None,
            },
            other => other,
        };
        world.update(&mk_name(name), update, now);
    }
}

/// A world of members in contact that have only an EPP.
pub fn mk_world(names: &[&str]) -> World {
    let mut world = World::new(mk_rules());
    for name in names {
        world.add_member(&mk_name(name), Moment::default());
        connect(&mut world, name, Vec::new(), Vec::new(), Moment::default());
    }
    world
}

/// A member of this name, which must be there.
pub fn member<'a>(world: &'a World, name: &str) -> &'a Member {
    &world.members[&mk_name(name)]
}

/// Exports a pool from a member.
pub fn export(world: &mut World, from: &str, pool: &str) {
    let pool = mk_pool(pool, Some("ClusterSet"));
    world.update(&mk_name(from), Update::PoolApplied(pool), Moment::default());
}

/// Loses the connection to a member at `now`.
pub fn lose(world: &mut World, name: &str, now: Moment) {
    let lost = Update::Lost(Fault::ConnectionLost);
    world.update(&mk_name(name), lost, now);
}

/// Writes the plan once to every member in contact, as its API server would store it. Returns the number of writes.
pub fn write_once(world: &mut World, policy: &Policy, now: Moment) -> usize {
    let plans = desired(world, policy, now);
    let mut writes = 0;
    let mut updates: Vec<(ClusterName, Update)> = Vec::new();
    for (key, plan) in &plans {
        for (name, import) in &plan.imports {
            let member = &world.members[name];
            if !member.contact.is_up() {
                continue;
            }
            let live = member.imports.items.get(key);
            let version = live.map_or(0, |live| live.resource_version.parse().unwrap_or(0)) + 1;
            let change = match (diff(import, live), import) {
                (Step::None | Step::Conflict, _) => continue,
                (Step::Delete, _) => Change::Deleted(key.clone()),
                (_, ImportPlan::Present(planned)) => {
                    Change::Applied(mk_live(key, planned, version))
                }
                _ => continue,
            };
            updates.push((name.clone(), Update::Imports(change)));
        }
        for (name, pool) in &plan.pools {
            let member = &world.members[name];
            // a pool that vanished cannot be written
            if !member.contact.is_up() || member.pools.records[key].doubt.is_some() {
                continue;
            }
            let mut facts = member.pools.records[key].facts.clone();
            facts.exported = match diff_pool(pool, facts.exported.as_deref()) {
                PoolStep::None => continue,
                PoolStep::Set(condition) => Some(vec![condition]),
                PoolStep::Remove => None,
            };
            updates.push((name.clone(), Update::PoolApplied(facts)));
        }
    }
    for (name, update) in updates {
        writes += 1;
        world.update(&name, update, now);
    }
    writes
}

/// Writes until nothing changes. Returns the number of writes.
pub fn settle(world: &mut World, policy: &Policy, now: Moment) -> usize {
    let mut writes = 0;
    for _ in 0..10 {
        match write_once(world, policy, now) {
            0 => return writes,
            more => writes += more,
        }
    }
    panic!("the plan does not settle");
}

/// The live entries of a key in a member.
pub fn entries(world: &World, importer: &str, key: &Key) -> Vec<String> {
    let live = member(world, importer).imports.items.get(key);
    live.map(|live| {
        let clusters = live.status.clusters.iter();
        clusters.map(|entry| entry.name.clone()).collect()
    })
    .unwrap_or_default()
}

/// Status, reason and message of `Exported`, as planned.
pub fn exported(
    world: &World,
    policy: &Policy,
    exporter: &str,
    key: &Key,
    now: Moment,
) -> (String, String, String) {
    let plans: BTreeMap<Key, _> = desired(world, policy, now);
    match &plans[key].pools[&mk_name(exporter)] {
        PoolPlan::NoEntry => (String::new(), String::new(), String::new()),
        PoolPlan::Exported { condition, .. } => (
            condition.status.clone(),
            condition.reason.clone(),
            condition.message.clone(),
        ),
    }
}
