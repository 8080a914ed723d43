//! The hops of modes that clusters of an import have no more.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use moment::Moment;
use rstest::rstest;

use crate::fixture::include_local;
use crate::world::authorities::mk_bundle;
use crate::world::{
    Authorities, AuthorityRef, BackendTlsPolicy, ImportedCluster, TlsTarget, TlsValidation,
};
use crate::xds::{Plan, Resource};

use super::imports::show_shares;
use super::*;

static AUTHORITY: LazyLock<Ca> = LazyLock::new(|| Ca::new("authority"));

fn by_picker(name: &str) -> ImportedCluster {
    mk_import(&[(name, "10.2.0.9")]).clusters.remove(0)
}

fn by_gateway(name: &str) -> ImportedCluster {
    mk_parent_entry(name, "10.3.0.7", &[80], &[])
}

fn without_address(name: &str) -> ImportedCluster {
    let mut entry = by_gateway(name);
    entry.parents[0].addresses.clear();
    entry
}

fn unready(name: &str) -> ImportedCluster {
    let mut entry = by_gateway(name);
    entry.parents[0].unprogrammed = true;
    entry
}

fn mk_world_of(entries: &[ImportedCluster]) -> World {
    let mut world = mk_world();
    world.imports.get_mut(&key("llm")).unwrap().clusters = entries.to_vec();
    world
}

/// As the index follows an import.
fn set_entries(world: &mut World, entries: &[ImportedCluster]) {
    let World {
        imports, formers, ..
    } = world;
    let import = imports.get_mut(&key("llm")).unwrap();
    let before = import.clone();
    import.clusters = entries.to_vec();
    formers.follow(&key("llm"), Some(&before), Some(import), Moment::START);
}

fn changed(before: &[ImportedCluster], now: &[ImportedCluster]) -> World {
    let mut world = mk_world_of(before);
    set_entries(&mut world, now);
    world
}

fn snapshot(world: &World) -> Snapshot {
    mk_snapshot(world, &mk_settings())
}

/// Has the import verified by the authorities in a `ConfigMap`.
fn verify(world: &mut World, hostname: &str) {
    let ca = AuthorityRef {
        group: String::new(),
        kind: "ConfigMap".into(),
        name: "ca".into(),
    };
    let policy = BackendTlsPolicy {
        generation: 1,
        created: 0,
        targets: vec![TlsTarget {
            group: "inference.networking.x-k8s.io".into(),
            kind: "InferencePoolImport".into(),
            name: "llm".into(),
            section: None,
        }],
        validation: Ok(TlsValidation {
            hostname: hostname.into(),
            names: Vec::new(),
            authorities: Authorities::Named(vec![ca]),
        }),
    };
    world.tls_policies.insert(key("llm"), policy);
    let bundle = mk_bundle("ca", &AUTHORITY);
    world.authorities.insert(key("ca"), Ok(bundle));
}

/// The hops of which Envoys have a listener.
fn hops(snapshot: &Snapshot) -> Vec<&str> {
    let names = snapshot.listeners.keys();
    names
        .filter_map(|name| name.strip_prefix("hop/ns/llm/"))
        .collect()
}

#[rstest]
#[case::to_parents(&[by_picker("east")], &[by_gateway("east")], "east/@parent 1000 anew; east 1")]
#[case::to_endpoints(&[by_gateway("east")], &[by_picker("east")], "east 1000 anew; east/@parent 1")]
#[case::not_ready(&[by_picker("east")], &[unready("east")], "east 1")]
#[case::without_an_address(&[by_picker("east")], &[without_address("east")], "east 1")]
#[case::all_at_once(
    &[by_picker("east"), by_picker("south")], &[without_address("east"), by_gateway("south")],
    "south/@parent 1000 anew; east 1, south 1")]
fn former_hops_come_after_all_others_as_they_were(
    #[case] before: &[ImportedCluster],
    #[case] now: &[ImportedCluster],
    #[case] shares: &str,
) {
    let during = snapshot(&changed(before, now));
    let shown = show_shares(&during).into_iter();
    let shown = shown.map(|hosts| hosts.join(", "));
    assert_eq!(shown.collect::<Vec<_>>().join("; "), shares);
    // all that both modes lead to is there, and nothing that Envoys have changes
    for alone in [before, now].map(|entries| snapshot(&mk_world_of(entries))) {
        for kind in Kind::ALL {
            let is_there = |(name, one): (&String, &Arc<Resource>)| {
                let leads_to_both = kind == Kind::Endpoints && name == "import/ns/llm";
                leads_to_both || during.of(kind).get(name) == Some(one)
            };
            assert!(alone.of(kind).iter().all(is_there), "{kind:?}");
        }
    }
}

/// Envoy sets aside a host that does not serve for up to 30 s, which must not last longer than the former mode.
#[test]
fn hop_is_another_host_once_the_former_mode_is_over() {
    let mut world = changed(&[by_picker("east")], &[by_gateway("east")]);
    let over = Moment::START.plus(Duration::from_secs(30));
    assert_eq!(world.formers.expire(over), [key("llm")].into());
    let after = snapshot(&world);
    assert_eq!(show_shares(&after), [["east/@parent 1000"]]);
    assert_eq!(after, snapshot(&mk_world_of(&[by_gateway("east")])));
}

#[rstest]
#[case::withdrawn(&[])]
#[case::another_cluster_instead(&[by_gateway("south")])]
#[case::draining(&[ImportedCluster { drain_until: Some(9), ..by_gateway("east") }])]
#[case::not_accepted(&[ImportedCluster { accepted: false, ..by_gateway("east") }])]
#[case::address_denied(&[mk_parent_entry("east", "169.254.169.254", &[80], &[])])]
fn there_is_no_former_hop_of_a_cluster_that_gets_nothing(#[case] entries: &[ImportedCluster]) {
    let mut world = changed(&[by_picker("east")], &[without_address("east")]);
    assert_eq!(hops(&snapshot(&world)), ["east"]);
    set_entries(&mut world, entries);
    let now = snapshot(&world);
    assert_eq!(now, snapshot(&mk_world_of(entries)));
}

/// What is allowed and how it is verified is never that of before.
#[rstest]
#[case::node_among_pods(|world: &mut World| world.own_networks = vec!["10.2.7.0/24".parse().unwrap()])]
#[case::policy(|world: &mut World| verify(world, "east.example"))]
fn former_hop_has_the_networks_and_policies_of_now(#[case] change: fn(&mut World)) {
    let mut world = changed(&[by_picker("east")], &[without_address("east")]);
    let before = snapshot(&world);
    change(&mut world);
    let during = snapshot(&world);
    assert_ne!(during.clusters, before.clusters);
    let mut alone = mk_world_of(&[by_picker("east")]);
    change(&mut alone);
    let alone = snapshot(&alone);
    assert_eq!(during.clusters, alone.clusters);
    assert_eq!(during.secrets, alone.secrets);
}

#[test]
fn former_hop_goes_once_it_is_not_allowed_or_not_secured() {
    let mut world = changed(&[by_picker("east")], &[without_address("east")]);
    let is_there = |world: &World, epp_tls| {
        let settings = Settings {
            epp_tls,
            ..mk_settings()
        };
        !hops(&mk_snapshot(world, &settings)).is_empty()
    };
    assert!(is_there(&world, EppTls::Unverified));
    assert!(!is_there(&world, EppTls::Required));
    verify(&mut world, "east.example");
    assert!(is_there(&world, EppTls::Required));
    world.own_networks = vec!["10.2.0.0/24".parse().unwrap()];
    assert!(!is_there(&world, EppTls::Required));
}

/// A former mode that is dead would take attempts and the allowance of hosts that are set aside from those that serve.
#[rstest]
#[case::another_cluster(&[by_picker("east"), by_picker("south")], &[by_gateway("east"), by_picker("south")], false)]
#[case::without_an_address(&[by_picker("east"), by_picker("south")], &[without_address("east"), by_picker("south")], false)]
#[case::one_that_joins(&[by_picker("east")], &[by_gateway("east"), by_picker("south")], false)]
#[case::one_that_is_not_ready(
    &[by_picker("east")],
    &[by_gateway("east"), ImportedCluster { not_ready: Some("NoEndpoints".into()), ..by_picker("south") }],
    false)]
#[case::local_pool(&[by_picker("east")], &[by_gateway("east")], true)]
fn there_is_no_former_hop_where_another_cluster_can_serve(
    #[case] before: &[ImportedCluster],
    #[case] now: &[ImportedCluster],
    #[case] has_local: bool,
) {
    let (mut world, mut alone) = (changed(before, now), mk_world_of(now));
    assert!(world.formers.of(&key("llm"), "east").is_some());
    if has_local {
        include_local(&mut world);
        include_local(&mut alone);
    }
    assert_eq!(snapshot(&world), snapshot(&alone));
}

/// Another cluster that requests cannot get to does not serve.
#[test]
fn former_hop_stays_beside_a_cluster_without_an_address() {
    let now = [by_gateway("east"), without_address("south")];
    let world = changed(&[by_picker("east")], &now);
    let shares = show_shares(&snapshot(&world));
    assert_eq!(shares, [["east/@parent 1000 anew"], ["east 1"]]);
}

/// It has the hop that an entry of its name would have.
#[test]
fn pool_of_this_cluster_has_no_former_hop() {
    let mut world = changed(&[by_picker("west")], &[by_gateway("west")]);
    include_local(&mut world);
    assert_eq!(show_shares(&snapshot(&world)), [["west 1000"]]);
}

#[test]
fn each_gateway_has_the_former_hop() {
    let mut world = changed(&[by_picker("east")], &[without_address("east")]);
    let mut second = world.gateways[&key("gw")].clone();
    second.key = key("second");
    world.gateways.insert(key("second"), second);
    let mut route = world.routes.values().next().unwrap().clone();
    route.key = key("second");
    route.parents[0].name = "second".into();
    add_route(&mut world, route);
    let (models, _) = build(&world, &mk_settings());
    let has_hop = |plan: Plan| plan.listeners.contains_key("hop/ns/llm/east");
    let plans = models.iter().map(|model| translate(model, &mk_options()));
    let served = plans.map(has_hop);
    assert_eq!(served.collect::<Vec<_>>(), [true, true]);
}

#[test]
fn message_of_an_import_names_the_former_mode() {
    let world = changed(&[by_picker("east")], &[without_address("east")]);
    let (models, wanted) = build(&world, &mk_settings());
    let (import, selection) = (&models[0].imports[&key("llm")], mk_selection(&wanted));
    assert_eq!(
        crate::select::summary(import, &selection),
        "east AddressNotAssigned; what east cannot serve yet goes there by EndpointMode"
    );
    assert!(crate::select::is_used(import, &selection));
}
