//! Entries of imports: which of them can be used, and what is reported of them.

use super::*;
use crate::fixture::include_local;

#[test]
fn entries_that_cannot_be_used_are_named() {
    let mut world = mk_world();
    let mut import = mk_import(&[
        ("denied", "127.0.0.1"),
        ("draining", "10.2.0.7"),
        ("east", "10.2.0.9"),
        ("late", ""),
        ("parent", "10.2.0.5"),
        ("sick", "10.2.0.4"),
        ("south", "epp.south.example"),
        ("strange", "10.2.0.3"),
    ]);
    import.clusters[1].not_ready = Some("Draining".into());
    import.clusters[3]
        .picker
        .as_mut()
        .unwrap()
        .addresses
        .clear();
    import.clusters[4] = mk_parent_entry("parent", "10.2.0.5", &[443], &[]);
    import.clusters[5].not_ready = Some("NoReadyEndpoint".into());
    import.clusters[7].accepted = false;
    world.imports.insert(key("llm"), import);
    let (_, wanted) = build_all(&world);
    let programmed = &import_conditions(&wanted, "llm")[2];
    let expected = "draining Draining, east 500, south 500; denied AddressDenied (address \"127.0.0.1\" is not allowed), late AddressNotAssigned, \
                    parent HostnameUnknown (its Gateways listen for HTTPS and name no host without a wildcard, so there is none by which \
                    their certificates can always be verified: give the listener or the HTTPRoute there such a hostname), sick NoReadyEndpoint, strange NotAccepted";
    assert_eq!(programmed.message, expected);
}

#[test]
fn entry_goes_to_the_networks_that_are_said_of_it_and_to_no_others() {
    let mut world = mk_world();
    world.own_networks = vec![
        "10.2.255.2/32".parse().unwrap(),
        "10.9.0.0/16".parse().unwrap(),
    ];
    let usable = |world: &World, settings: &Settings| {
        let (models, wanted) = build(world, settings);
        let import = models[0].imports[&key("llm")].clone();
        let message = import_conditions(&wanted, "llm")[2].message.clone();
        let texts = |networks: &[Cidr]| -> Vec<String> {
            networks.iter().map(ToString::to_string).collect()
        };
        let mode = import.clusters[0].mode.clone();
        mode.map(|mode| {
            let Mode::Endpoint(mode) = mode else {
                panic!("{mode:?}");
            };
            (texts(&mode.cidrs), texts(&mode.denied))
        })
        .map_err(|why| format!("{}: {message}", why.reason()))
    };
    let mut settings = mk_settings();
    // only the denied networks that are within them
    let (cidrs, denied) = usable(&world, &settings).unwrap();
    assert_eq!(cidrs, ["10.2.0.0/16"]);
    assert_eq!(denied, ["10.2.255.2/32"]);
    // the ranges of this cluster's pods, where both clusters use the same network
    let own = std::mem::replace(
        &mut world.own_networks,
        vec!["10.2.4.0/24".parse().unwrap()],
    );
    assert_eq!(usable(&world, &settings).unwrap().1, ["10.2.4.0/24"]);
    // many nodes result in few rules
    world.own_networks = (0..3000u32)
        .map(|node| Cidr::host(std::net::Ipv4Addr::from(0x0a02_0101 + 2 * node).into()))
        .collect();
    let denied = usable(&world, &settings).unwrap().1;
    assert!(denied.len() <= 128, "{denied:?}");
    world.own_networks = own;
    // an entry's own network may contain networks that are always denied
    let import = world.imports.get_mut(&key("llm")).unwrap();
    let shared = vec!["100.64.0.0/10".parse().unwrap()];
    let stated = std::mem::replace(&mut import.clusters[0].pod_cidrs, shared);
    let clouds = ["100.80.80.80/32", "100.96.0.96/32", "100.100.100.200/32"];
    assert_eq!(usable(&world, &settings).unwrap().1, clouds);
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters[0].pod_cidrs = stated;
    // the flag for the cluster overrides the entry, the flag for all clusters does not
    let any = vec!["10.0.0.0/8".parse().unwrap()];
    settings.pod_cidrs.insert("*".into(), any);
    assert_eq!(usable(&world, &settings).unwrap().0, ["10.2.0.0/16"]);
    let east = vec!["10.2.1.0/24".parse().unwrap()];
    settings.pod_cidrs.insert("east".into(), east);
    assert_eq!(usable(&world, &settings).unwrap().0, ["10.2.1.0/24"]);
    // all of them are this cluster's own
    let own = vec!["10.9.1.0/24".parse().unwrap()];
    settings.pod_cidrs.insert("east".into(), own);
    let refused = usable(&world, &settings).unwrap_err();
    assert!(
        refused.starts_with("AddressDenied: east AddressDenied (all networks"),
        "{refused}"
    );
    // neither a flag nor the entry has a network
    settings.pod_cidrs.clear();
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters[0].pod_cidrs.clear();
    let refused = usable(&world, &settings).unwrap_err();
    for said in [
        "AddressDenied",
        "isthmus.dev/pod-cidrs",
        "pod-cidrs of east at home (kubectl mci check",
        "the CRD of InferencePoolImport here",
        "--pod-cidr east=CIDR",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
}

/// No route names the pool.
#[test]
fn local_pool_of_an_import_has_the_users_and_refusals_of_the_import() {
    let mut world = mk_world();
    world.routes.clear();
    world
        .imports
        .insert(key("llm"), mk_import(&[("east", "10.2.0.9")]));
    let rule = mk_rule("/", vec![mk_ref("import", "llm", 1)]);
    add_route(&mut world, mk_route("r", vec![rule]));
    let says = |world: &World, refused: Refused| {
        let mut feedback = mk_feedback();
        let refused = mk_rejection(refused, "any");
        feedback.rejections.insert(key("gw"), vec![refused]);
        let said = route_says_with(world, &feedback, "r");
        let users = build_all(world).1.pools[&key("llm")].len();
        (has(&said, "Programmed=False/ProxyRejected"), users)
    };
    let pool = || Refused::Pool(key("llm"));
    assert_eq!(says(&world, pool()), (false, 0));
    include_local(&mut world);
    for refused in [pool(), Refused::Import(key("llm"))] {
        assert_eq!(says(&world, refused.clone()), (true, 1), "{refused:?}");
    }
    let other = Refused::Pool(key("other"));
    assert_eq!(says(&world, other), (false, 1));
}
