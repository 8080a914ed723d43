//! HTTPS listeners: their certificates, what is served with them, and what their conditions say.

use ::tls::test_pki::Ca;
use rstest::rstest;

use super::*;
use crate::fixture::mk_https_listener;
use crate::model::certificates::wanted;
use crate::world::secrets::mk_certificate;
use crate::world::{BadSecret, CertificateRef, Gateway, Listener, ReferenceGrant};

/// Certificates of `ns/cert`, `ns/other` and `far/cert`.
fn mk_tls_world(listeners: Vec<Listener>) -> World {
    let mut world = mk_world();
    let gateway = mk_gateway("gw", listeners);
    world.gateways.insert(key("gw"), gateway);
    let certificate = mk_certificate("cert", &Ca::new("a"), "a.b");
    for secret in [key("cert"), key("other"), Key::new("far", "cert")] {
        world.certificates.insert(secret, Ok(certificate.clone()));
    }
    world
}

fn gateway(world: &mut World) -> &mut Gateway {
    world.gateways.get_mut(&key("gw")).unwrap()
}

fn mk_cert_ref(name: &str) -> CertificateRef {
    CertificateRef {
        kind: "Secret".into(),
        name: name.into(),
        ..CertificateRef::default()
    }
}

fn refs(world: &mut World) -> &mut Vec<CertificateRef> {
    let tls = gateway(world).listeners[0].tls.as_mut();
    &mut tls.unwrap().certificates
}

/// Conditions of each listener of the Gateway.
fn listeners(world: &World, settings: &Settings) -> Vec<ListenerStatus> {
    listeners_with(world, Vec::new(), settings)
}

/// The same while Envoys refuse something.
fn listeners_with(
    world: &World,
    rejections: Vec<Rejection>,
    settings: &Settings,
) -> Vec<ListenerStatus> {
    let mut feedback = mk_feedback();
    let listeners = world.gateways[&key("gw")].listeners.iter();
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    infra.ports = listeners.map(|listener| listener.port).collect();
    feedback.rejections.insert(key("gw"), rejections);
    let (_, wanted) = build_with(world, &feedback, settings);
    wanted.gateways[&key("gw")].listeners.clone()
}

fn bad(world: &mut World, why: BadSecret) {
    world.certificates.insert(key("cert"), Err(why));
}

#[test]
fn listener_with_a_certificate_is_programmed() {
    let world = mk_tls_world(vec![mk_https_listener("https", 443, None, &["cert"])]);
    let listener = &listeners(&world, &mk_settings())[0];
    assert_eq!(
        say(&listener.conditions),
        [
            "Accepted=True/Accepted",
            "Conflicted=False/NoConflicts",
            "ResolvedRefs=True/ResolvedRefs",
            "Programmed=True/Programmed"
        ]
    );
    assert_eq!((listener.attached, listener.serves_http_routes), (2, true));
    let (models, wanted) = build_all(&world);
    assert_eq!(models[0].ports[&443].bind, 10_443);
    let certificates: Vec<_> = models[0].certificates.keys().collect();
    assert_eq!(certificates, [&key("cert")]);
    assert_eq!(
        say(&wanted.gateways[&key("gw")].conditions)[0],
        "Accepted=True/Accepted"
    );
}

#[rstest]
#[case::no_reference(|world: &mut World| refs(world).clear(),
    "InvalidCertificateRef", "tls.certificateRefs is empty")]
#[case::no_tls(|world: &mut World| gateway(world).listeners[0].tls = None,
    "InvalidCertificateRef", "tls.certificateRefs is empty")]
#[case::too_many(|world: &mut World| *refs(world) = vec![mk_cert_ref("cert"); 5],
    "InvalidCertificateRef", "has 5 entries: at most 4")]
#[case::other_group(|world: &mut World| refs(world)[0].group = "example.com".into(),
    "InvalidCertificateRef", r#"names "cert" of kind "Secret" of group "example.com": only a Secret"#)]
#[case::other_kind(|world: &mut World| refs(world)[0].kind = "ConfigMap".into(),
    "InvalidCertificateRef", r#"names "cert" of kind "ConfigMap" of the core group: only a Secret"#)]
#[case::no_secret(|world: &mut World| bad(world, BadSecret::NotFound),
    "InvalidCertificateRef", "Secret ns/cert does not exist")]
#[case::no_name_of_a_secret(|world: &mut World| refs(world)[0].name = "cert,type=Opaque".into(),
    "InvalidCertificateRef", "Secret ns/cert,type=Opaque does not exist")]
#[case::denied(|world: &mut World| bad(world, BadSecret::Denied),
    "InvalidCertificateRef", "Secret ns/cert may not be read")]
#[case::wrong_type(|world: &mut World| bad(world, BadSecret::WrongType("Opaque".into())),
    "InvalidCertificateRef", r#"Secret ns/cert is of type "Opaque": kubernetes.io/tls is needed"#)]
#[case::no_pem(|world: &mut World| bad(world, BadSecret::Chain("there is none")),
    "InvalidCertificateRef", "Secret ns/cert has no certificate in PEM in tls.crt: there is none")]
#[case::key_of_another(|world: &mut World| bad(world, BadSecret::Mismatch),
    "InvalidCertificateRef", "does not belong to the first certificate")]
#[case::other_namespace(|world: &mut World| refs(world)[0].namespace = Some("far".into()),
    "RefNotPermitted", "Secret far/cert is in another namespace: a ReferenceGrant there must allow Gateways of namespace ns")]
fn listener_without_a_certificate_says_why_and_keeps_its_routes(
    #[case] change: fn(&mut World),
    #[case] reason: &str,
    #[case] message: &str,
) {
    let mut world = mk_tls_world(vec![
        mk_https_listener("https", 443, None, &["cert"]),
        mk_listener("http", 80, None),
    ]);
    change(&mut world);
    let listener = &listeners(&world, &mk_settings())[0];
    assert_eq!(
        say(&listener.conditions),
        [
            "Accepted=True/Accepted".to_owned(),
            "Conflicted=False/NoConflicts".to_owned(),
            format!("ResolvedRefs=False/{reason}"),
            "Programmed=False/Invalid".to_owned(),
        ]
    );
    for condition in &listener.conditions[2..] {
        assert!(condition.message.contains(message), "{condition:?}");
    }
    assert_eq!((listener.attached, listener.serves_http_routes), (2, true));
    let (models, wanted) = build_all(&world);
    let chains = |port| models[0].ports[&port].chains.len();
    assert_eq!((chains(443), chains(80)), (0, 1));
    assert!(models[0].certificates.is_empty());
    assert_eq!(
        say(&wanted.gateways[&key("gw")].conditions),
        [
            "Accepted=True/ListenersNotValid",
            "Programmed=True/Programmed"
        ]
    );
}

/// The first 32 are read, however often each is named, and whichever of them another Gateway names as well.
#[test]
fn a_gateway_has_at_most_32_secrets() {
    let names: Vec<String> = (0..33).map(|at| format!("cert-{at}")).collect();
    let one = |name: &String| mk_https_listener(name, 443, Some(&format!("{name}.b")), &[name]);
    let mut of: Vec<_> = names.iter().map(one).collect();
    of.insert(
        1,
        mk_https_listener("again", 443, Some("again.b"), &["cert-0"]),
    );
    let mut world = mk_tls_world(of);
    let certificate = world.certificates[&key("cert")].clone();
    for name in &names {
        world.certificates.insert(key(name), certificate.clone());
    }
    let found = listeners(&world, &mk_settings());
    let (last, others) = found.split_last().unwrap();
    for listener in others {
        assert_eq!(
            say(&listener.conditions)[2],
            "ResolvedRefs=True/ResolvedRefs"
        );
    }
    let resolved = &last.conditions[2];
    assert_eq!(resolved.reason, "InvalidCertificateRef");
    assert!(
        resolved.message.contains("Secret ns/cert-32 is not read")
            && resolved.message.contains("32 Secrets in all"),
        "{resolved:?}"
    );
    let watched = wanted(&world, &mk_settings().controller);
    assert_eq!(watched.len(), 32);
    assert!(!watched.contains(&key("cert-32")));
}

#[rstest]
#[case::passthrough(
    |listener: &mut Listener| listener.tls.as_mut().unwrap().passthrough = true,
    "Accepted=False/UnsupportedValue", "HTTPS needs Terminate")]
#[case::client_certificates(
    |listener: &mut Listener| listener.checks_clients = true,
    "Accepted=False/UnsupportedValue", "spec.tls.frontend asks for certificates of clients")]
#[case::tls(
    |listener: &mut Listener| listener.protocol = "TLS".into(),
    "Accepted=False/UnsupportedProtocol", "only the protocols HTTP and HTTPS")]
fn tls_that_is_not_supported_is_not_served(
    #[case] change: fn(&mut Listener),
    #[case] accepted: &str,
    #[case] message: &str,
) {
    let mut world = mk_tls_world(vec![
        mk_https_listener("https", 443, None, &["cert"]),
        mk_listener("http", 80, None),
    ]);
    change(&mut gateway(&mut world).listeners[0]);
    let listener = &listeners(&world, &mk_settings())[0];
    assert!(has(&say(&listener.conditions), accepted), "{listener:?}");
    assert!(listener.conditions[0].message.contains(message));
    assert_eq!(listener.attached, 0);
    let (models, _) = build_all(&world);
    assert_eq!(models[0].ports.keys().collect::<Vec<_>>(), [&80]);
}

const GATEWAYS: &str = "gateway.networking.k8s.io";

#[rstest]
#[case::this_secret((GATEWAYS, "Gateway", "ns"), ("", "Secret", Some("cert")), "far", true)]
#[case::all_of_the_namespace((GATEWAYS, "Gateway", "ns"), ("", "Secret", None), "far", true)]
#[case::in_another_namespace((GATEWAYS, "Gateway", "ns"), ("", "Secret", None), "elsewhere", false)]
#[case::from_another_group(("example.com", "Gateway", "ns"), ("", "Secret", None), "far", false)]
#[case::from_routes((GATEWAYS, "HTTPRoute", "ns"), ("", "Secret", None), "far", false)]
#[case::from_another_namespace((GATEWAYS, "Gateway", "other"), ("", "Secret", None), "far", false)]
#[case::to_another_group((GATEWAYS, "Gateway", "ns"), ("example.com", "Secret", None), "far", false)]
#[case::to_another_kind((GATEWAYS, "Gateway", "ns"), ("", "Service", None), "far", false)]
#[case::to_another_secret((GATEWAYS, "Gateway", "ns"), ("", "Secret", Some("other")), "far", false)]
fn secret_of_another_namespace_is_read_where_a_grant_allows_it(
    #[case] from: (&str, &str, &str),
    #[case] to: (&str, &str, Option<&str>),
    #[case] namespace: &str,
    #[case] permitted: bool,
) {
    let mut world = mk_tls_world(vec![mk_https_listener("https", 443, None, &["cert"])]);
    refs(&mut world)[0].namespace = Some("far".into());
    let grant = ReferenceGrant {
        from: vec![(from.0.into(), from.1.into(), from.2.into())],
        to: vec![(to.0.into(), to.1.into(), to.2.map(Into::into))],
    };
    world.grants.insert(Key::new(namespace, "grant"), grant);
    let says = say(&listeners(&world, &mk_settings())[0].conditions);
    let resolved = "ResolvedRefs=True/ResolvedRefs";
    assert_eq!(has(&says, resolved), permitted, "{says:?}");
    let secrets = wanted(&world, crate::fixture::CONTROLLER);
    let expected = permitted.then(|| Key::new("far", "cert"));
    assert_eq!(secrets, expected.into_iter().collect::<Vec<_>>());
}

#[test]
fn secrets_of_others_gateways_and_protocols_are_not_read() {
    let mut world = mk_tls_world(vec![mk_https_listener(
        "https",
        443,
        None,
        &["cert", "other"],
    )]);
    let secrets = |world: &World| wanted(world, crate::fixture::CONTROLLER);
    assert_eq!(secrets(&world), [key("cert"), key("other")]);
    gateway(&mut world).listeners[0].protocol = "TLS".into();
    assert_eq!(secrets(&world), []);
    gateway(&mut world).listeners[0].protocol = "HTTPS".into();
    gateway(&mut world).class = "other".into();
    assert_eq!(secrets(&world), []);
}

#[test]
fn certificate_that_is_good_is_served_beside_one_that_is_not() {
    let mut world = mk_tls_world(vec![mk_https_listener(
        "https",
        443,
        None,
        &["cert", "other"],
    )]);
    bad(&mut world, BadSecret::NotFound);
    let says = say(&listeners(&world, &mk_settings())[0].conditions);
    assert!(has(&says, "ResolvedRefs=False/InvalidCertificateRef"));
    assert!(has(&says, "Programmed=True/Programmed"), "{says:?}");
    let (models, _) = build_all(&world);
    let certificates: Vec<_> = models[0].certificates.keys().collect();
    assert_eq!(certificates, [&key("other")]);
}

#[rstest]
#[case(("HTTP", None), "ProtocolConflict")]
#[case(("TCP", None), "ProtocolConflict")]
#[case(("HTTPS", Some("A.b")), "HostnameConflict")]
#[case(("TLS", Some("a.b")), "HostnameConflict")]
#[case(("HTTPS", Some("c.b")), "NoConflicts")]
#[case(("TLS", None), "NoConflicts")]
#[case(("UDP", None), "NoConflicts")]
fn listeners_share_a_port_where_a_client_hello_tells_them_apart(
    #[case] (protocol, host): (&str, Option<&str>),
    #[case] reason: &str,
) {
    let mut other = mk_https_listener("other", 443, host, &["cert"]);
    other.protocol = protocol.into();
    let https = mk_https_listener("https", 443, Some("a.b"), &["cert"]);
    let world = mk_tls_world(vec![https, other]);
    let status = listeners(&world, &mk_settings());
    assert_eq!(status[0].conditions[1].reason, reason);
}

/// What a request gets over a connection: the route that it matches, or a status.
fn answer(model: &GatewayModel, server_name: &str, host: &str) -> String {
    let named = |pattern: &Hostname, name: &str| pattern.covers(&Hostname::parse(Some(name)));
    let mut chains = model.ports[&443].chains.iter();
    let chain = chains.find(|chain| match &chain.protocol {
        Protocol::Https { hostname, .. } => named(hostname, server_name),
        Protocol::Http => false,
    });
    let Some(chain) = chain else {
        return "no chain".to_owned();
    };
    let vhost = chain.vhosts.iter().find(|one| named(&one.domain, host));
    match vhost {
        Some(vhost) if vhost.misdirected => "421".to_owned(),
        Some(vhost) if !vhost.rules.is_empty() => vhost.rules[0].id.route.name.clone(),
        Some(_) | None => "404".to_owned(),
    }
}

fn mk_isolated(wild: &str) -> World {
    let mut world = mk_tls_world(vec![
        mk_https_listener("any", 443, None, &["cert"]),
        mk_https_listener("second", 443, Some("second.org"), &["cert"]),
        mk_https_listener("wild", 443, Some("*.wild.org"), &[wild]),
        mk_https_listener("exact", 443, Some("x.wild.org"), &["cert"]),
    ]);
    world.routes.clear();
    add_route(&mut world, hosted("first", &["first.org"], Some("any")));
    for listener in ["second", "wild", "exact"] {
        add_route(&mut world, hosted(listener, &[], Some(listener)));
    }
    world
}

#[test]
fn connection_serves_the_hosts_of_its_listener_alone() {
    let (models, _) = build_all(&mk_isolated("cert"));
    for (server_name, host, expected) in [
        ("first.org", "first.org", "first"),
        ("first.org", "second.org", "421"),
        ("first.org", "unknown.org", "404"),
        ("second.org", "second.org", "second"),
        ("second.org", "first.org", "421"),
        ("second.org", "unknown.org", "421"), // the listener without a host name has it
        ("a.wild.org", "a.wild.org", "wild"),
        ("a.wild.org", "b.wild.org", "wild"),
        ("a.wild.org", "x.wild.org", "421"),
        ("a.wild.org", "second.org", "421"),
        ("x.wild.org", "x.wild.org", "exact"),
        ("x.wild.org", "a.wild.org", "421"),
        ("unknown.org", "first.org", "first"),
    ] {
        let found = answer(&models[0], server_name, host);
        assert_eq!(found, expected, "{server_name} {host}");
    }
    // without a listener for all hosts
    let mut world = mk_isolated("cert");
    gateway(&mut world).listeners.remove(0);
    let (models, _) = build_all(&world);
    for (server_name, host, expected) in [
        ("unknown.org", "unknown.org", "no chain"),
        ("second.org", "unknown.org", "404"),
    ] {
        let found = answer(&models[0], server_name, host);
        assert_eq!(found, expected, "{server_name} {host}");
    }
}

#[test]
fn hosts_of_a_listener_without_a_certificate_are_nobody_elses() {
    let mut world = mk_isolated("gone");
    world
        .certificates
        .insert(key("gone"), Err(BadSecret::NotFound));
    let (models, _) = build_all(&world);
    for (server_name, host, expected) in [
        ("a.wild.org", "a.wild.org", "421"),
        ("x.wild.org", "x.wild.org", "exact"),
        ("second.org", "second.org", "second"),
    ] {
        let found = answer(&models[0], server_name, host);
        assert_eq!(found, expected, "{server_name} {host}");
    }
}

#[test]
fn listeners_that_share_hosts_say_so() {
    let overlapping = |world: &World| -> Vec<(String, String)> {
        let status = listeners(world, &mk_settings());
        let found = status.into_iter().filter_map(|listener| {
            let mut conditions = listener.conditions.into_iter();
            let found = conditions.find(|one| one.kind == "OverlappingTLSConfig")?;
            assert_eq!(
                say(std::slice::from_ref(&found)),
                ["OverlappingTLSConfig=True/OverlappingHostnames"]
            );
            Some((listener.name, found.message))
        });
        found.collect()
    };
    let mut world = mk_isolated("cert");
    gateway(&mut world).listeners.remove(0);
    let found = overlapping(&world);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].0 == "wild" && found[0].1.contains("exact"),
        "{found:?}"
    );
    assert!(
        found[1].0 == "exact" && found[1].1.contains("wild"),
        "{found:?}"
    );
    gateway(&mut world).listeners.pop();
    assert_eq!(overlapping(&world), []);
}

#[test]
fn refusal_shows_on_the_listeners_that_it_concerns() {
    let world = mk_isolated("other");
    let certificate = |name: &str| Refused::Certificate(key(name));
    let table = Refused::Table {
        port: 443,
        hostname: Some("*.wild.org".into()),
    };
    let all = vec!["any", "second", "wild", "exact"];
    for (refused, concerned) in [
        (certificate("cert"), vec!["any", "second", "exact"]),
        (certificate("other"), vec!["wild"]),
        (table, vec!["wild"]),
        (Refused::Port(443), all),
        (Refused::Port(80), vec![]),
    ] {
        let rejection = mk_rejection(refused.clone(), "any");
        let status = listeners_with(&world, vec![rejection], &mk_settings());
        let found = status
            .iter()
            .filter(|one| has(&say(&one.conditions), "Programmed=False/Invalid"));
        let found: Vec<_> = found.map(|one| one.name.as_str()).collect();
        assert_eq!(found, concerned, "{refused:?}");
    }
}
