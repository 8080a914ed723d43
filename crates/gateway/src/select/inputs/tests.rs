use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::fixture::{
    add_slice, include_local, key, mk_import, mk_parent_entry, mk_settings, mk_world,
};
use crate::model::build;
use crate::select::{MetricsRule, Strategy};
use crate::world::{
    Authorities, AuthorityRef, BackendTlsPolicy, BadCredential, ImportedCluster, MetricsPort,
    SecretRef, SubjectName, TlsTarget, TlsValidation,
};

/// The import of these clusters as the model has it.
fn mk_made(world: &mut World, change: impl FnOnce(&mut Vec<ImportedCluster>)) -> Import {
    let mut import = mk_import(&[("east", "10.2.0.9"), ("south", "10.3.0.9")]);
    change(&mut import.clusters);
    world.imports.insert(key("llm"), import);
    let (models, _) = build(world, &mk_settings());
    Import::clone(&models[0].imports[&key("llm")])
}

fn by_metrics() -> BTreeMap<Key, Policy> {
    let policy = Policy {
        strategy: Strategy::MetricsBased(MetricsRule::default()),
        ..Policy::default()
    };
    [(key("llm"), policy)].into()
}

fn mk_around<'s>(world: &'s World, endpoints: &'s Endpoints) -> Surroundings<'s> {
    Surroundings {
        world,
        endpoints,
        pools: BTreeMap::new(),
        health_service: "health",
        deny: &[],
    }
}

fn of(world: &World, import: &Import, policies: &BTreeMap<Key, Policy>) -> Vec<String> {
    let imports = [(import.key.clone(), import)].into();
    let jobs = jobs(&imports, policies, &mk_around(world, &Endpoints::default()));
    let shown = jobs.iter().map(|((id, kind), job)| {
        let cluster = &id.cluster;
        match job {
            Job::Probe(probe) => {
                let (host, port) = &probe.targets.hosts[0];
                format!("{cluster} {kind:?} {:?} {host}:{port}", probe.method)
            }
            Job::Scrape(scrape) => {
                let (host, port) = &scrape.targets.hosts[0];
                let with = if scrape.credential.is_some() {
                    " with a credential"
                } else {
                    ""
                };
                format!("{cluster} {kind:?} {host}:{port}{with}")
            }
        }
    });
    shown.collect()
}

fn picker(cluster: &mut ImportedCluster) -> &mut crate::world::RemotePicker {
    cluster.picker.as_mut().unwrap()
}

#[test]
fn clusters_are_probed_by_grpc_health_where_its_port_is_known_else_by_a_connection() {
    let mut world = mk_world();
    let import = mk_made(&mut world, |clusters| {
        picker(&mut clusters[0]).health_port = Some(9003);
        picker(&mut clusters[0]).port = Some(9002);
        picker(&mut clusters[1]).health_port = None;
        picker(&mut clusters[1]).port = Some(9002);
    });
    let expected = [
        "east Probe Grpc { service: \"health\" } 10.2.0.9:9003",
        "south Probe Tcp 10.3.0.9:9002",
    ];
    assert_eq!(of(&world, &import, &BTreeMap::new()), expected);
}

#[test]
fn nothing_is_observed_where_there_is_no_choice() {
    let mut world = mk_world();
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    assert_eq!(of(&world, &import, &by_metrics()), [""; 0]);
}

#[test]
fn probes_follow_the_policy() {
    let mut world = mk_world();
    let import = mk_made(&mut world, |_| {});
    let mut policies = by_metrics();
    let rule = &mut policies.get_mut(&key("llm")).unwrap().health;
    rule.interval = Duration::from_secs(7);
    rule.timeout = Duration::from_secs(3);
    let imports = [(import.key.clone(), &import)].into();
    let jobs = jobs(
        &imports,
        &policies,
        &mk_around(&world, &Endpoints::default()),
    );
    assert_eq!(jobs.len(), 2);
    for job in jobs.values() {
        let Job::Probe(probe) = job else {
            panic!("{job:?}");
        };
        assert_eq!((probe.interval.as_secs(), probe.timeout.as_secs()), (7, 3));
    }
}

#[rstest]
#[case::no_secret(None, None, &["east Probe", "east Scrape 10.2.0.9:9090", "south Probe"])]
#[case::of_the_cluster(Some("epp"), Some("east"), &["east Probe", "east Scrape 10.2.0.9:9090 with a credential", "south Probe"])]
#[case::of_another_cluster(Some("epp"), Some("south"), &["east Probe", "south Probe"])]
#[case::unusable(Some("epp"), None, &["east Probe", "south Probe"])]
fn metrics_are_scraped_with_a_credential_that_is_for_that_cluster(
    #[case] secret: Option<&str>,
    #[case] labelled: Option<&str>,
    #[case] expected: &[&str],
) {
    let mut world = mk_world();
    let listed = match labelled {
        Some(cluster) => Ok(crate::world::credentials::mk(cluster, "s3cret")),
        None => Err(BadCredential::NotLabelled),
    };
    world.credentials.insert(key("epp"), listed);
    let import = mk_made(&mut world, |clusters| {
        let secret = secret.map(|name| SecretRef {
            namespace: None,
            name: name.to_owned(),
        });
        picker(&mut clusters[0]).metrics = Some(MetricsPort { port: 9090, secret });
    });
    let seen = of(&world, &import, &by_metrics());
    assert_eq!(seen.len(), expected.len(), "{seen:?}");
    for (seen, expected) in seen.iter().zip(expected) {
        assert!(seen.starts_with(expected), "{seen}");
        assert_eq!(seen.contains("credential"), expected.contains("credential"));
    }
    let imports = [(import.key.clone(), &import)].into();
    let wanted = wanted(&imports, &by_metrics(), &world);
    let why = wanted[&key("llm")].1["east"].unscraped;
    let is_read = expected.iter().any(|one| one.starts_with("east Scrape"));
    assert_eq!(why.is_none(), is_read, "{why:?}");
    let named = credentials(&world, &by_metrics());
    let expected: Vec<Key> = secret.map(key).into_iter().collect();
    assert_eq!(named, expected);
    assert_eq!(credentials(&world, &BTreeMap::new()), []);
    // Equal shares need no metrics.
    assert_eq!(of(&world, &import, &BTreeMap::new()).len(), 2);
}

#[test]
fn readiness_of_entries_is_their_standing() {
    let mut world = mk_world();
    let import = mk_made(&mut world, |clusters| {
        clusters[0].not_ready = Some("NoReadyEndpoint".to_owned());
        clusters[1].drain_until = Some(60);
    });
    let imports = [(import.key.clone(), &import)].into();
    let wanted = wanted(&imports, &BTreeMap::new(), &world);
    let (policy, entries) = &wanted[&key("llm")];
    assert_eq!(*policy, Policy::default());
    let standings = entries.values().map(|entry| entry.standing);
    let standings: Vec<_> = standings.collect();
    assert_eq!(standings, [Standing::NotReady, Standing::Draining]);
}

#[test]
fn gateways_of_parent_mode_are_probed_by_tls_where_they_have_it() {
    let mut world = mk_world();
    let import = mk_made(&mut world, |clusters| {
        *clusters = vec![
            mk_parent_entry("east", "10.2.0.7", &[80], &[]),
            mk_parent_entry("north", "lb.north.example", &[443], &["llm.north.example"]),
        ];
    });
    let expected = [
        "east Probe Tcp 10.2.0.7:80",
        "north Probe Tls { name: \"llm.north.example\", signed: System } lb.north.example:443",
    ];
    assert_eq!(of(&world, &import, &BTreeMap::new()), expected);
}

/// Where the names differ, a handshake of this program asks for another server than one of Envoy.
#[rstest]
#[case::of_the_system(&["gateway.test"], Authorities::System, "Tls { name: \"gateway.test\", signed: System }")]
#[case::of_the_policy(&["gateway.test"], of_map(), "Tls { name: \"gateway.test\", signed: Authorities(")]
#[case::another_name(&["other.test"], of_map(), "Tcp")]
#[case::several_names(&["gateway.test", "other.test"], Authorities::System, "Tcp")]
fn what_a_policy_verifies_is_probed_as_envoy_connects_to_it(
    #[case] names: &[&str],
    #[case] authorities: Authorities,
    #[case] method: &str,
) {
    let mut world = mk_world();
    let bundle = crate::world::authorities::mk_bundle("ca", &tls::test_pki::Ca::new("a"));
    world.authorities.insert(key("ca"), Ok(bundle));
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
            hostname: "gateway.test".into(),
            names: names
                .iter()
                .map(|name| SubjectName::Dns((*name).into()))
                .collect(),
            authorities,
        }),
    };
    world.tls_policies.insert(key("p"), policy);
    let import = mk_made(&mut world, |clusters| {
        let parent = mk_parent_entry("north", "10.3.0.7", &[443], &["llm.north.example"]);
        clusters[1] = parent;
        picker(&mut clusters[0]).port = Some(9002);
        picker(&mut clusters[0]).health_port = None;
    });
    let seen = of(&world, &import, &BTreeMap::new());
    let is_so = |nth: usize, cluster: &str, at: &str| {
        seen[nth].starts_with(&format!("{cluster} Probe {method}")) && seen[nth].ends_with(at)
    };
    assert!(is_so(0, "east", " 10.2.0.9:9002"), "{seen:?}");
    assert!(is_so(1, "north", " 10.3.0.7:443"), "{seen:?}");
}

fn of_map() -> Authorities {
    Authorities::Named(vec![AuthorityRef {
        group: String::new(),
        kind: "ConfigMap".into(),
        name: "ca".into(),
    }])
}

/// Its endpoint picker is where its Service leads to at the moment.
#[test]
fn local_pool_is_one_of_the_clusters_and_is_probed_where_its_pods_are() {
    let mut world = mk_world();
    include_local(&mut world);
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    let (models, _) = build(&world, &mk_settings());
    let mut endpoints = Endpoints::default();
    let ports = [("grpc", 9002), ("health", 9003)];
    add_slice(&mut endpoints, "epp", "10.1.0.9", &ports);
    let pool = &models[0].pools[&key("llm")];
    let around = Surroundings {
        pools: [(key("llm"), pool.as_ref())].into(),
        ..mk_around(&world, &endpoints)
    };
    let imports = [(import.key.clone(), &import)].into();
    let jobs = jobs(&imports, &BTreeMap::new(), &around);
    let id = ClusterId {
        import: key("llm"),
        cluster: mk_settings().cluster_name,
    };
    let Job::Probe(probe) = &jobs[&(id.clone(), Kind::Probe)] else {
        panic!("{jobs:?}");
    };
    assert_eq!(probe.targets.hosts, [("10.1.0.9".to_owned(), 9003)]);
    assert!(matches!(probe.method, Method::Grpc { .. }), "{probe:?}");
    let wanted = wanted(&imports, &BTreeMap::new(), &world);
    assert!(wanted[&key("llm")].1[&id.cluster].is_local);
}

/// Whoever may write EndpointSlices would else let the gateway connect to anything that it reaches.
#[rstest]
#[case::anywhere("10.1.0.9", true)]
#[case::a_pod_in_a_network_that_is_denied_to_other_clusters("10.9.1.7", true)]
#[case::denied("10.9.2.7", false)]
#[case::metadata_of_a_cloud("169.254.169.254", false)]
fn local_pool_is_probed_where_it_may_be(#[case] ip: &str, #[case] is_probed: bool) {
    let mut world = mk_world();
    include_local(&mut world);
    world.own_pods = vec!["10.9.1.0/24".parse().unwrap()];
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    let (models, _) = build(&world, &mk_settings());
    let mut endpoints = Endpoints::default();
    let ports = [("grpc", 9002), ("health", 9003)];
    add_slice(&mut endpoints, "epp", ip, &ports);
    let deny = crate::select::denied(&["10.9.0.0/16".parse().unwrap()]);
    let around = Surroundings {
        pools: [(key("llm"), models[0].pools[&key("llm")].as_ref())].into(),
        deny: &deny,
        ..mk_around(&world, &endpoints)
    };
    let imports = [(import.key.clone(), &import)].into();
    let jobs = jobs(&imports, &BTreeMap::new(), &around);
    let probed = jobs.iter().find_map(|((id, _), job)| match job {
        Job::Probe(probe) if id.cluster == "west" => {
            Some((probe.targets.hosts.clone(), probe.method.clone()))
        }
        _ => None,
    });
    let (hosts, method) = probed.expect("a probe");
    let expected = is_probed.then(|| (ip.to_owned(), 9003));
    assert_eq!(hosts, Vec::from_iter(expected));
    // It serves requests whether or not it may be dialled from here.
    assert_eq!(method == Method::Assumed, !is_probed);
}

/// Nothing is assumed of a picker that has no endpoint at all.
#[test]
fn local_pool_without_an_endpoint_of_its_picker_is_not_assumed_to_be_healthy() {
    let mut world = mk_world();
    include_local(&mut world);
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    let (models, _) = build(&world, &mk_settings());
    let endpoints = Endpoints::default();
    let around = Surroundings {
        pools: [(key("llm"), models[0].pools[&key("llm")].as_ref())].into(),
        ..mk_around(&world, &endpoints)
    };
    let (_, mode) = import
        .hops()
        .find(|(cluster, _)| cluster.name == "west")
        .unwrap();
    let (hosts, method) = around.probed(mode);
    assert_eq!(hosts, []);
    assert_ne!(method, Method::Assumed);
}

/// As those of other clusters are: it would else count as their mean, whatever its load is.
#[rstest]
#[case::by_the_name_of_its_port(&["metrics"], None, None, Some("10.1.0.9:9090"))]
#[case::by_another_name(&["stats"], Some("stats"), None, Some("10.1.0.9:9090"))]
#[case::by_number(&[], Some("9999"), None, Some("10.1.0.9:9999"))]
#[case::with_a_credential(&["http-metrics"], None, Some("west"), Some("10.1.0.9:9090 with a credential"))]
#[case::with_that_of_another_cluster(&["metrics"], None, Some("east"), None)]
#[case::without_a_port(&[], None, None, None)]
#[case::of_a_name_that_there_is_not(&["metrics"], Some("stats"), None, None)]
fn metrics_of_the_local_pool_are_read_at_its_endpoint_picker(
    #[case] ports: &[&str],
    #[case] annotation: Option<&str>,
    #[case] labelled: Option<&str>,
    #[case] scraped: Option<&str>,
) {
    let mut world = mk_world();
    let policy = Policy {
        include_local: true,
        ..by_metrics().remove(&key("llm")).unwrap()
    };
    crate::fixture::add_policy(&mut world, policy.clone());
    let all: Vec<(&str, u16)> = [("grpc", 9002)]
        .into_iter()
        .chain(ports.iter().map(|name| (*name, 9090)))
        .collect();
    let service = crate::fixture::mk_service(&all);
    world.services.insert(key("epp"), service);
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.metrics_port = annotation.map(ToOwned::to_owned);
    pool.metrics_secret = labelled.map(|_| "token".to_owned());
    if let Some(cluster) = labelled {
        let listed = crate::world::credentials::mk(cluster, "s3cret");
        world.credentials.insert(key("token"), Ok(listed));
    }
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    let mut endpoints = Endpoints::default();
    add_slice(&mut endpoints, "epp", "10.1.0.9", &all);
    let policies: BTreeMap<Key, Policy> = [(key("llm"), policy)].into();
    let imports = [(import.key.clone(), &import)].into();
    let jobs = jobs(&imports, &policies, &mk_around(&world, &endpoints));
    let found = jobs.iter().find_map(|((id, _), job)| match job {
        Job::Scrape(scrape) if id.cluster == "west" => {
            let (host, port) = &scrape.targets.hosts[0];
            let with = scrape
                .credential
                .as_ref()
                .map_or("", |_| " with a credential");
            Some(format!("{host}:{port}{with}"))
        }
        _ => None,
    });
    assert_eq!(found.as_deref(), scraped);
    let wanted = wanted(&imports, &policies, &world);
    let why = wanted[&key("llm")].1["west"].unscraped;
    assert_eq!(why.is_none(), scraped.is_some(), "{why:?}");
    let named = credentials(&world, &policies);
    assert_eq!(named.len(), usize::from(labelled.is_some()));
}

/// Whoever may write EndpointSlices would else let the gateway ask nodes and API servers.
#[rstest]
#[case::anywhere("10.1.0.9", true)]
#[case::a_pod_in_a_network_that_is_denied_to_other_clusters("10.9.1.7", true)]
#[case::denied("10.9.2.7", false)]
#[case::a_node_or_an_api_server("10.9.1.2", false)]
#[case::metadata_of_a_cloud("169.254.169.254", false)]
fn metrics_of_the_local_pool_are_read_at_pods_alone(#[case] ip: &str, #[case] is_read: bool) {
    let mut world = mk_world();
    let policy = Policy {
        include_local: true,
        ..by_metrics().remove(&key("llm")).unwrap()
    };
    crate::fixture::add_policy(&mut world, policy.clone());
    let ports = [("grpc", 9002), ("metrics", 9090)];
    world
        .services
        .insert(key("epp"), crate::fixture::mk_service(&ports));
    world.own_but_pods = vec!["10.9.1.2/32".parse().unwrap()];
    world.own_pods = vec!["10.9.1.0/24".parse().unwrap()];
    let import = mk_made(&mut world, |clusters| clusters.truncate(1));
    let mut endpoints = Endpoints::default();
    add_slice(&mut endpoints, "epp", ip, &ports);
    let deny = crate::select::denied(&["10.9.0.0/16".parse().unwrap()]);
    let around = Surroundings {
        deny: &deny,
        ..mk_around(&world, &endpoints)
    };
    let policies: BTreeMap<Key, Policy> = [(key("llm"), policy)].into();
    let imports = [(import.key.clone(), &import)].into();
    let jobs = jobs(&imports, &policies, &around);
    let scraped = jobs.iter().find_map(|((id, _), job)| match job {
        Job::Scrape(scrape) if id.cluster == "west" => Some(scrape.targets.hosts.clone()),
        _ => None,
    });
    let expected: Vec<_> = is_read.then(|| (ip.to_owned(), 9090)).into_iter().collect();
    assert_eq!(scraped, Some(expected));
}
