use crd::{
    ServiceType,
    annotations::{EXPORT, HEALTH_PORT, METRICS_PORT},
    conditions,
};
use rstest::rstest;

use super::{shed::MAX_ENTRY_BYTES, *};
use crate::{
    fixtures::*,
    index::{
        facts::{EppRef, ServiceFacts, SliceFacts},
        member::Fault,
        update::{Change, Update},
    },
};
use moment::Moment;

/// The entry of `a`'s pool, with this Service, slice and annotations.
fn derive(
    service: Option<ServiceFacts>,
    slices: Vec<SliceFacts>,
    change: impl FnOnce(&mut PoolFacts),
) -> ImportedCluster {
    derive_under(&mk_policy(), service, slices, change).entry
}

fn derive_under(
    policy: &Policy,
    service: Option<ServiceFacts>,
    slices: Vec<SliceFacts>,
    change: impl FnOnce(&mut PoolFacts),
) -> Derived {
    let mut world = mk_world(&["a"]);
    let name = mk_name("a");
    let now = Moment::default();
    let services = Update::Services(Change::Listed(service.into_iter().collect()));
    world.update(&name, services, now);
    world.update(&name, Update::Slices(Change::Listed(slices)), now);
    let mut pool = mk_pool("llm", Some("ClusterSet"));
    change(&mut pool);
    world.update(&name, Update::PoolApplied(pool), now);
    let member = member(&world, "a");
    let record = &member.pools.records[&mk_key("llm")];
    let request = record.facts.export.requested().expect("exported");
    derive_entry(policy, &name, member, record, request, Reach::Reachable)
}

fn reasons(entry: &ImportedCluster) -> [&str; 3] {
    [
        conditions::ACCEPTED,
        conditions::RESOLVED_REFS,
        conditions::READY,
    ]
    .map(|type_| {
        conditions::find(&entry.conditions, type_)
            .unwrap_or_else(|| panic!("no {type_}"))
            .reason
            .as_str()
    })
}

fn picker(entry: &ImportedCluster) -> &EndpointPicker {
    entry.endpoint_picker.as_ref().expect("an EPP")
}

#[rstest]
#[case::load_balancer(ServiceType::LoadBalancer, "192.0.2.7", ServiceType::LoadBalancer)]
#[case::hostname(ServiceType::LoadBalancer, "lb.example.com", ServiceType::LoadBalancer)]
#[case::cluster_ip(ServiceType::ClusterIP, "10.96.1.1", ServiceType::ClusterIP)]
#[case::node_port_by_its_cluster_address(
    ServiceType::NodePort,
    "10.96.1.1",
    ServiceType::ClusterIP
)]
fn addresses_follow_the_service_type(
    #[case] type_: ServiceType,
    #[case] address: &str,
    #[case] published: ServiceType,
) {
    let service = mk_service(type_, address);
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(reasons(&entry), ["Accepted", "ResolvedRefs", "Ready"]);
    let service = &picker(&entry).service[0];
    assert_eq!(service.type_, published);
    assert_eq!(service.addresses, [address]);
    assert_eq!(service.ports[0].number, 9002);
    let health = picker(&entry).health.as_ref().map(|health| health.port);
    assert_eq!(health, Some(9003));
    let metrics = picker(&entry).metrics.as_ref().map(|metrics| metrics.port);
    assert_eq!(metrics, Some(9090));
}

#[test]
fn a_headless_service_gives_its_ready_pods_and_their_port() {
    let mut service = mk_service(ServiceType::ClusterIP, "10.96.1.1");
    service.headless = true;
    service.cluster_ips = Vec::new();
    let slices = vec![mk_slice(&["10.0.0.2", "10.0.0.1"])];
    let entry = derive(Some(service), slices, |_| {});
    let published = &picker(&entry).service[0];
    assert_eq!(published.addresses, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(published.ports[0].number, 19002);
}

/// A slice of Service `epp`.
fn mk_named(name: &str, ready: &[&str], terminating: &[&str], ports: &[(&str, u16)]) -> SliceFacts {
    SliceFacts {
        key: mk_key(name),
        terminating: mk_slice(terminating).ready,
        ports: ports.iter().map(|(name, at)| mk_port(name, *at)).collect(),
        ..mk_slice(ready)
    }
}

#[rstest]
#[case::terminating_beside_ready_of_another_slice(
    vec![mk_named("a", &[], &["10.0.0.2"], &[("grpc", 9002)]), mk_named("b", &["10.0.0.1"], &[], &[("grpc", 9002)])],
    &["10.0.0.1"], [9002, 9003], "Ready", None)]
#[case::none_is_ready(
    vec![mk_named("a", &[], &["10.0.0.2"], &[("grpc", 9002)]), mk_named("b", &[], &["10.0.0.1"], &[("grpc", 9002)])],
    &["10.0.0.1", "10.0.0.2"], [9002, 9003], "Ready", None)]
#[case::terminating_on_another_port(
    vec![mk_named("a", &[], &["10.0.0.2"], &[("grpc", 9002)]), mk_named("b", &["10.0.0.1"], &[], &[("grpc", 9102)])],
    &["10.0.0.1"], [9102, 9003], "Ready", None)]
#[case::one_name_and_two_numbers(
    vec![mk_named("a", &["10.0.0.1"], &[], &[("grpc", 9002)]), mk_named("b", &["10.0.0.2", "10.0.0.3"], &[], &[("grpc", 9102)])],
    &["10.0.0.2", "10.0.0.3"], [9102, 9003], "Ready", Some("1"))]
#[case::as_many_of_each_number(
    vec![mk_named("a", &["10.0.0.1"], &[], &[("grpc", 9102)]), mk_named("b", &["10.0.0.2"], &[], &[("grpc", 9002)])],
    &["10.0.0.2"], [9002, 9003], "Ready", Some("1"))]
#[case::another_number_of_the_health_port(
    vec![mk_named("a", &["10.0.0.1"], &[], &[("grpc", 9002), ("health", 9113)]),
      mk_named("b", &["10.0.0.2", "10.0.0.3"], &[], &[("grpc", 9002), ("health", 9103)])],
    &["10.0.0.2", "10.0.0.3"], [9002, 9103], "Ready", Some("1"))]
#[case::another_port_lends_no_address(
    vec![mk_named("a", &["10.0.0.1"], &[], &[("grpc", 9002)]), mk_named("b", &["10.0.0.2"], &[], &[("metrics", 9090)])],
    &["10.0.0.1"], [9002, 9003], "Ready", None)]
#[case::no_ports(
    vec![mk_named("a", &["10.0.0.1"], &[], &[])],
    &[], [9002, 9003], "NoReadyEndpoint", None)]
fn addresses_of_a_headless_service_have_the_ports_of_the_entry(
    #[case] slices: Vec<SliceFacts>,
    #[case] addresses: &[&str],
    #[case] ports: [u16; 2],
    #[case] ready: &str,
    #[case] left_out: Option<&str>,
) {
    let service = ServiceFacts {
        headless: true,
        cluster_ips: Vec::new(),
        ..mk_service(ServiceType::ClusterIP, "10.96.1.1")
    };
    let entry = derive(Some(service), slices, |_| {});
    let picker = picker(&entry);
    let published = &picker.service[0];
    assert_eq!(published.addresses, addresses);
    let health = picker.health.as_ref().expect("a port").port;
    assert_eq!([published.ports[0].number, health], ports);
    assert_eq!(reasons(&entry), ["Accepted", "ResolvedRefs", ready]);
    let accepted = conditions::find(&entry.conditions, conditions::ACCEPTED).expect("a condition");
    let count = accepted.message.rsplit_once("most listen on others: ");
    assert_eq!(count.map(|(_, count)| count), left_out);
}

#[test]
fn a_service_whose_ready_endpoints_lack_its_port_is_not_ready() {
    let slices = vec![
        mk_named("a", &["10.0.0.1"], &[], &[("metrics", 9090)]),
        mk_named("b", &[], &["10.0.0.2"], &[("metrics", 9090)]),
    ];
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service), slices, |_| {});
    let ready = conditions::find(&entry.conditions, conditions::READY).expect("a condition");
    assert_eq!(ready.reason, "NoReadyEndpoint");
    assert!(
        ready.message.contains("has its port 9002"),
        "{}",
        ready.message
    );
}

#[test]
fn endpoints_that_mean_harm_are_left_out_like_addresses() {
    let policy = Policy {
        epp_endpoints: true,
        ..mk_policy()
    };
    let slices = vec![mk_slice(&["10.0.0.1", "127.0.0.1", "169.254.169.254"])];
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let derived = derive_under(&policy, Some(service.clone()), slices.clone(), |_| {});
    assert_eq!(picker(&derived.entry).endpoints, ["10.0.0.1"]);
    assert_eq!(derived.rejected.len(), 2);
    let headless = ServiceFacts {
        headless: true,
        cluster_ips: Vec::new(),
        ..service
    };
    let derived = derive_under(&policy, Some(headless), slices, |_| {});
    assert_eq!(picker(&derived.entry).endpoints, ["10.0.0.1"]);
    assert_eq!(derived.rejected.len(), 2, "each once");
}

#[test]
fn the_pool_is_passed_on_as_it_is() {
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |pool| {
        pool.target_ports = vec![8000, 8001];
        pool.app_protocol = Some("kubernetes.io/h2c".to_owned());
    });
    assert_eq!(entry.name, "a");
    assert_eq!(entry.target_port_number, 8000);
    assert_eq!(entry.target_ports.len(), 2);
    assert_eq!(entry.app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    let failure_mode = picker(&entry).failure_mode;
    assert_eq!(failure_mode, Some(crd::FailureMode::FailOpen));
    let mut generations = entry.conditions.iter().map(|one| one.observed_generation);
    assert!(generations.all(|generation| generation == Some(3)));
}

#[rstest]
#[case::no_reference(|pool: &mut PoolFacts| pool.epp = None, "EndpointPickerRefMissing")]
#[case::other_kind(|pool: &mut PoolFacts| set_epp(pool, |epp| epp.kind = "Deployment".to_owned()), "InvalidKind")]
#[case::other_group(|pool: &mut PoolFacts| set_epp(pool, |epp| epp.group = "x.io".to_owned()), "InvalidKind")]
#[case::other_name(|pool: &mut PoolFacts| set_epp(pool, |epp| epp.name = "nobody".to_owned()), "BackendNotFound")]
#[case::other_port(|pool: &mut PoolFacts| set_epp(pool, |epp| epp.port = Some(1)), "PortNotFound")]
fn references_that_lead_nowhere_keep_the_entry(
    #[case] change: fn(&mut PoolFacts),
    #[case] expected: &str,
) {
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], change);
    assert_eq!(reasons(&entry), ["Accepted", expected, expected]);
    assert_eq!(entry.target_port_number, 8000);
    assert!(entry.endpoint_picker.is_none());
}

fn set_epp(pool: &mut PoolFacts, change: impl FnOnce(&mut EppRef)) {
    change(pool.epp.as_mut().expect("a reference"));
}

#[test]
fn an_entry_waits_for_its_address_and_for_an_endpoint() {
    let mut service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service.clone()), vec![mk_slice(&[])], |_| {});
    assert_eq!(
        reasons(&entry),
        ["Accepted", "ResolvedRefs", "NoReadyEndpoint"]
    );
    service.ingress.clear();
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(
        reasons(&entry),
        ["Accepted", "ResolvedRefs", "AddressNotAssigned"]
    );
}

#[test]
fn addresses_that_mean_harm_are_left_out() {
    let mut service = mk_service(ServiceType::LoadBalancer, "127.0.0.1");
    let entry = derive(Some(service.clone()), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(
        reasons(&entry),
        ["InvalidAddress", "ResolvedRefs", "InvalidAddress"]
    );
    assert!(picker(&entry).service[0].addresses.is_empty());
    service.ingress = vec!["169.254.169.254".to_owned(), "192.0.2.1".to_owned()];
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(picker(&entry).service[0].addresses, ["192.0.2.1"]);
    assert_eq!(reasons(&entry)[0], "Accepted");
}

#[test]
fn ten_thousand_addresses_are_cut() {
    let mut service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    service.ingress = (0..10_000_u32)
        .map(|n| {
            let long = "x".repeat(60);
            format!("lb-{n}.{long}.{long}.example.com")
        })
        .collect();
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(reasons(&entry)[0], "Truncated");
    let size = serde_json::to_vec(&entry).expect("serialises").len();
    assert!(size <= MAX_ENTRY_BYTES, "{size}");
    assert_eq!(reasons(&entry)[2], "Ready");
}

#[test]
fn no_entry_is_larger_than_the_limit() {
    let mut service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    service.ports[0].app_protocol = Some("x".repeat(20_000));
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    let size = serde_json::to_vec(&entry).expect("serialises").len();
    assert!(size <= MAX_ENTRY_BYTES, "{size}");
    assert_eq!(reasons(&entry), ["Truncated", "ResolvedRefs", "Ready"]);
    assert_eq!(picker(&entry).service[0].addresses, ["192.0.2.7"]);
}

#[rstest]
#[case::number(false, "9090", 9090, &[])]
#[case::name(false, "metrics", 9090, &[])]
#[case::unknown_number_is_ignored(false, "1234", 9003, &[HEALTH_PORT])]
#[case::unknown_name_is_ignored(false, "nothing", 9003, &[HEALTH_PORT])]
#[case::headless_takes_any_number(true, "1234", 1234, &[])]
#[case::headless_takes_no_unknown_name(true, "nothing", 9003, &[HEALTH_PORT])]
fn annotations_override_the_health_port(
    #[case] headless: bool,
    #[case] value: &str,
    #[case] expected: u16,
    #[case] ignored: &[&str],
) {
    let service = ServiceFacts {
        headless,
        ..mk_service(ServiceType::LoadBalancer, "192.0.2.7")
    };
    let slices = vec![mk_slice(&["10.0.0.1"])];
    let derived = derive_under(&mk_policy(), Some(service), slices, |pool| {
        pool.export = mk_export(&[(EXPORT, "ClusterSet"), (HEALTH_PORT, value)]);
    });
    let health = picker(&derived.entry).health.as_ref();
    assert_eq!(health.map(|health| health.port), Some(expected));
    assert_eq!(derived.ignored, ignored);
}

#[test]
fn an_annotation_without_a_service_is_not_judged() {
    let derived = derive_under(&mk_policy(), None, Vec::new(), |pool| {
        pool.export = mk_export(&[
            (EXPORT, "ClusterSet"),
            (HEALTH_PORT, "1234"),
            (METRICS_PORT, "1234"),
        ]);
    });
    assert_eq!(derived.ignored, [""; 0]);
}

#[rstest]
#[case::number("9003", Some(9003))]
#[case::name("health", Some(9003))]
#[case::unknown_number_is_ignored("1234", Some(9090))]
#[case::unknown_name_is_ignored("nothing", Some(9090))]
fn annotations_override_the_metrics_port(#[case] value: &str, #[case] expected: Option<u16>) {
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |pool| {
        pool.export = mk_export(&[(EXPORT, "ClusterSet"), (METRICS_PORT, value)]);
    });
    let metrics = picker(&entry).metrics.as_ref().map(|metrics| metrics.port);
    assert_eq!(metrics, expected);
    let health = picker(&entry).health.as_ref().map(|health| health.port);
    assert_eq!(health, Some(9003), "it is not the other's");
}

/// Its pods are reached, not itself: they may listen on what it does not list.
#[rstest]
#[case::any_number("1234", 1234)]
#[case::name_of_a_port_of_the_pods("grpc", 19002)]
fn annotations_of_a_headless_service_name_any_port(#[case] value: &str, #[case] expected: u16) {
    let mut service = mk_service(ServiceType::ClusterIP, "10.96.1.1");
    service.headless = true;
    service.cluster_ips = Vec::new();
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |pool| {
        pool.export = mk_export(&[
            (EXPORT, "ClusterSet"),
            (HEALTH_PORT, value),
            (METRICS_PORT, value),
        ]);
    });
    let picker = picker(&entry);
    let ports = [&picker.health, &picker.metrics].map(|aside| aside.as_ref().map(|it| it.port));
    assert_eq!(ports, [Some(expected); 2]);
}

#[test]
fn ports_nobody_names_are_left_out() {
    let mut service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    service.ports = vec![mk_port("", 9002)];
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    assert_eq!(picker(&entry).health, None);
    assert_eq!(picker(&entry).service[0].ports[0].name, None);
}

#[test]
fn secrets_of_other_namespaces_are_not_passed_on() {
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |pool| {
        pool.export = mk_export(&[
            (EXPORT, "ClusterSet"),
            (crd::annotations::HEALTH_SECRET, "mine"),
            (crd::annotations::METRICS_SECRET, "other/theirs"),
        ]);
    });
    assert_eq!(reasons(&entry), ["Accepted", "RefNotPermitted", "Ready"]);
    let health = picker(&entry).health.as_ref().expect("a port");
    let secret = health.secret_ref.as_ref().expect("a secret");
    assert_eq!(
        (secret.name.as_deref(), secret.namespace.as_deref()),
        (Some("mine"), None)
    );
    let metrics = picker(&entry).metrics.as_ref().expect("a port");
    assert_eq!(metrics.secret_ref, None);
}

#[test]
fn a_pool_whose_crd_vanished_keeps_its_readiness() {
    let service = mk_service(ServiceType::LoadBalancer, "192.0.2.7");
    let mut entry = derive(Some(service), vec![mk_slice(&["10.0.0.1"])], |_| {});
    set_reach(&mut entry, Reach::Reachable, true);
    let reachable = conditions::find(&entry.conditions, conditions::REACHABLE).expect("there");
    assert_eq!(
        (reachable.status.as_str(), reachable.reason.as_str()),
        ("False", "CRDMissing")
    );
    assert_eq!(reasons(&entry)[2], "Ready");
    set_reach(&mut entry, Reach::Stale(Fault::AuthFailed), false);
    assert_eq!(reasons(&entry)[2], "Stale");
}
