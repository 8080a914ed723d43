//! Which `BackendTLSPolicy` holds for which backend, and what each reports.

use ::tls::test_pki::Ca;
use rstest::rstest;

use super::super::*;
use crate::feedback::{Feedback, Refused, Rejection};
use crate::fixture::{key, mk_parent_entry, mk_settings, mk_world};
use crate::select::Ineligible;
use crate::world::authorities::{mk_bundle, mk_map};
use crate::world::{
    Authorities, AuthorityRef, BackendTlsPolicy, BadBundle, Bundle, SubjectName, TlsTarget,
    TlsValidation, Touched,
};

const SERVICE: (&str, &str) = ("", "Service");
const IMPORT: (&str, &str) = ("inference.networking.x-k8s.io", "InferencePoolImport");

/// Its host name is its own name.
fn add_policy(
    world: &mut World,
    name: &str,
    created: i64,
    (group, kind): (&str, &str),
    target: &str,
    section: Option<&str>,
) {
    let policy = BackendTlsPolicy {
        generation: 3,
        created,
        targets: vec![TlsTarget {
            group: group.into(),
            kind: kind.into(),
            name: target.into(),
            section: section.map(Into::into),
        }],
        validation: Ok(TlsValidation {
            hostname: name.into(),
            names: vec![SubjectName::Dns(name.into())],
            authorities: Authorities::Named(vec![mk_ref("ca")]),
        }),
    };
    world.tls_policies.insert(key(name), policy);
}

fn mk_ref(name: &str) -> AuthorityRef {
    AuthorityRef {
        group: String::new(),
        kind: "ConfigMap".into(),
        name: name.into(),
    }
}

fn mk_tls_world() -> World {
    let mut world = mk_world();
    let bundle = mk_bundle("ca", &Ca::new("a"));
    world.authorities.insert(key("ca"), Ok(bundle));
    world
}

fn model(world: &World) -> GatewayModel {
    build(world, &mk_settings()).0.remove(0)
}

/// The host name by which the Service `web` is verified.
fn of_web(world: &World) -> String {
    match &model(world).services[&(key("web"), 8080)].security {
        Some(Security::Verified(how)) => how.hostname.clone(),
        Some(Security::Plaintext) => "plaintext".into(),
        Some(Security::Unverified) => "unverified".into(),
        None => "nowhere".into(),
    }
}

/// `gateway Accepted=False/Reason ResolvedRefs=True/Reason` of the policy.
fn said(world: &World, policy: &str) -> Vec<String> {
    said_with(world, &Feedback::default(), policy)
}

fn said_with(world: &World, feedback: &Feedback, policy: &str) -> Vec<String> {
    let (_, wanted) = build_with(world, feedback, &mk_settings());
    let entries = wanted.tls_policies.get(&key(policy));
    let entries = entries.into_iter().flatten().map(|entry| {
        let conditions = entry.conditions.iter().map(|one| {
            assert_eq!(one.generation, 3);
            format!(" {}={:?}/{}", one.kind, one.status, one.reason)
        });
        format!("{}{}", entry.parent.name, conditions.collect::<String>())
    });
    entries.collect()
}

const GOOD: &str = "gw Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs";
const CONFLICTED: &str = "gw Accepted=False/Conflicted ResolvedRefs=True/ResolvedRefs";

#[test]
fn of_two_policies_for_a_target_the_older_one_holds_and_then_the_first_by_name() {
    let mut world = mk_tls_world();
    assert_eq!(of_web(&world), "plaintext");
    add_policy(&mut world, "c", 20, SERVICE, "web", None);
    assert_eq!(
        (of_web(&world), said(&world, "c")),
        ("c".into(), vec![GOOD.to_owned()])
    );
    add_policy(&mut world, "a", 20, SERVICE, "web", None);
    assert_eq!(
        (of_web(&world), said(&world, "c")),
        ("a".into(), vec![CONFLICTED.to_owned()])
    );
    add_policy(&mut world, "b", 10, SERVICE, "web", None);
    assert_eq!(of_web(&world), "b");
    assert_eq!(said(&world, "a"), [CONFLICTED]);
    // An older one that cannot be followed holds nonetheless: a newer one is not what its owner asked for.
    let oldest = world.tls_policies.get_mut(&key("b")).unwrap();
    oldest.validation = Err("bad".into());
    assert_eq!(of_web(&world), "nowhere");
    assert_eq!(
        said(&world, "b"),
        ["gw Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs"]
    );
}

/// They could be read here, and Envoy is stricter.
#[test]
fn authorities_that_envoys_refuse_are_reported_where_no_envoy_has_them() {
    let mut world = mk_tls_world();
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    let refuse = |name: &str, others_serve| {
        let refused = Rejection {
            of: Refused::Other,
            name: name.to_owned(),
            message: "1 of 1 Envoys refuse it: bad".to_owned(),
            others_serve,
        };
        let mut feedback = Feedback::default();
        feedback.rejections.insert(key("gw"), vec![refused]);
        said_with(&world, &feedback, "p")
    };
    let name = mk_bundle("ca", &Ca::new("a")).name().to_owned();
    let refused =
        "gw Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidCACertificateRef";
    assert_eq!(refuse(&name, false), [refused]);
    assert_eq!(refuse(&name, true), [GOOD]);
    assert_eq!(refuse("other", false), [GOOD]);
}

#[test]
fn policy_for_a_port_goes_before_one_for_the_whole_service() {
    let mut world = mk_tls_world();
    add_policy(&mut world, "whole", 1, SERVICE, "web", None);
    add_policy(&mut world, "port", 9, SERVICE, "web", Some("http"));
    assert_eq!(of_web(&world), "port");
    assert_eq!(
        (said(&world, "whole"), said(&world, "port")),
        (vec![GOOD.into()], vec![GOOD.into()])
    );
    // A port that the Service does not have, one that no route names, and a Service that no route names.
    add_policy(&mut world, "port", 9, SERVICE, "web", Some("https"));
    assert_eq!(of_web(&world), "whole");
    assert_eq!(
        said(&world, "port"),
        ["gw Accepted=False/TargetNotFound ResolvedRefs=True/ResolvedRefs"]
    );
    let mut other = world.services[&key("web")].ports[0].clone();
    (other.name, other.port) = ("https".into(), 8443);
    world
        .services
        .get_mut(&key("web"))
        .unwrap()
        .ports
        .push(other);
    assert_eq!(said(&world, "port"), [""; 0]);
    add_policy(&mut world, "port", 9, SERVICE, "gone", None);
    assert_eq!(said(&world, "port"), [""; 0]);
    // Of another namespace, too.
    let policy = world.tls_policies.remove(&key("whole")).unwrap();
    world
        .tls_policies
        .insert(Key::new("other", "whole"), policy);
    assert_eq!(of_web(&world), "plaintext");
}

fn set_refs(world: &mut World, refs: &[AuthorityRef]) {
    set_refs_of(world, "p", refs);
}

fn set_refs_of(world: &mut World, policy: &str, refs: &[AuthorityRef]) {
    let policy = world.tls_policies.get_mut(&key(policy)).unwrap();
    let validation = policy.validation.as_mut().unwrap();
    validation.authorities = Authorities::Named(refs.to_vec());
}

#[rstest]
#[case::not_there("gone", "ConfigMap", "InvalidCACertificateRef")]
#[case::no_name("a=b", "ConfigMap", "InvalidCACertificateRef")]
#[case::of_another_kind("ca", "Secret", "InvalidKind")]
fn backend_is_not_connected_to_without_an_authority(
    #[case] name: &str,
    #[case] kind: &str,
    #[case] reason: &str,
) {
    let mut world = mk_tls_world();
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    world
        .authorities
        .insert(key("gone"), Err(BadBundle::NotFound));
    let bad = AuthorityRef {
        kind: kind.into(),
        ..mk_ref(name)
    };
    set_refs(&mut world, std::slice::from_ref(&bad));
    assert_eq!(of_web(&world), "nowhere");
    let entry = format!("gw Accepted=False/NoValidCACertificate ResolvedRefs=False/{reason}");
    assert_eq!(said(&world, "p"), [entry]);
    // One that is there is enough, and the other one is reported.
    set_refs(&mut world, &[bad, mk_ref("ca")]);
    assert_eq!(of_web(&world), "p");
    assert_eq!(
        said(&world, "p"),
        [format!(
            "gw Accepted=True/Accepted ResolvedRefs=False/{reason}"
        )]
    );
}

#[test]
fn authorities_that_are_not_listed_yet_are_neither_used_nor_reported() {
    let mut world = mk_tls_world();
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    world.authorities.clear();
    assert_eq!(of_web(&world), "nowhere");
    let (_, wanted) = build(&world, &mk_settings());
    assert!(!wanted.tls_policies.contains_key(&key("p")));
}

#[test]
fn app_protocol_of_tls_needs_a_policy() {
    let mut world = mk_tls_world();
    let port = &mut world.services.get_mut(&key("web")).unwrap().ports[0];
    port.app_protocol = Some("HTTPS".into());
    let resolved = |world: &World| {
        let (_, wanted) = build(world, &mk_settings());
        wanted.routes[&key("web")][0].conditions[1].reason.clone()
    };
    assert_eq!(resolved(&world), "UnsupportedProtocol");
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    assert_eq!(resolved(&world), "ResolvedRefs");
    assert_eq!(of_web(&world), "p");
}

#[test]
fn endpoint_picker_is_verified_or_not_connected_to() {
    let mut world = mk_tls_world();
    let security = |world: &World, epp_tls| {
        let settings = Settings {
            epp_tls,
            ..mk_settings()
        };
        let (models, wanted) = build(world, &settings);
        let resolved = &wanted.pools[&key("llm")][0].conditions[1];
        let epp = models[0].pools[&key("llm")].epp.clone();
        (epp.map(|epp| epp.security), resolved.reason.clone())
    };
    let (found, resolved) = security(&world, EppTls::Required);
    assert_eq!((found, resolved.as_str()), (None, "InvalidExtensionRef"));
    let (found, _) = security(&world, EppTls::Unverified);
    assert_eq!(found, Some(Security::Unverified));
    add_policy(&mut world, "p", 1, SERVICE, "epp", Some("grpc"));
    let port = &mut world.services.get_mut(&key("epp")).unwrap().ports[0];
    port.app_protocol = Some("kubernetes.io/h2c".into());
    let (found, _) = security(&world, EppTls::Required);
    assert!(matches!(found, Some(Security::Verified(_))), "{found:?}");
    assert_eq!(said(&world, "p"), [GOOD]);
    world.authorities.insert(key("ca"), Err(BadBundle::Missing));
    let (found, resolved) = security(&world, EppTls::Plaintext);
    assert_eq!((found, resolved.as_str()), (None, "InvalidExtensionRef"));
    world.tls_policies.clear();
    let (found, _) = security(&world, EppTls::Required);
    assert_eq!(found, Some(Security::Plaintext));
}

#[test]
fn cluster_of_an_import_is_verified_or_not_used() {
    let mut world = mk_tls_world();
    let parent = mk_parent_entry("south", "10.3.0.7", &[80], &["*.a.example"]);
    world
        .imports
        .get_mut(&key("llm"))
        .unwrap()
        .clusters
        .push(parent);
    let modes = |world: &World| {
        let import = model(world).imports.remove(&key("llm")).unwrap();
        let modes = import.clusters.iter().map(|cluster| match &cluster.mode {
            Ok(Mode::Endpoint(mode)) => format!("{:?}", mode.epp.security),
            Ok(Mode::Parent(mode)) if mode.tls => format!("{:?}", mode.verification),
            Ok(Mode::Parent(_)) => "plaintext".into(),
            Ok(Mode::Local(_)) => "local".into(),
            Err(why) => why.label().to_owned(),
        });
        modes.collect::<Vec<_>>()
    };
    assert_eq!(modes(&world), ["Plaintext", "plaintext"]);
    add_policy(&mut world, "all", 1, IMPORT, "llm", None);
    add_policy(&mut world, "one", 1, IMPORT, "llm", Some("south"));
    let [east, south] = &modes(&world)[..] else {
        panic!("{:?}", modes(&world));
    };
    assert!(east.contains("\"all\""), "{east}");
    // a fixed server name needs no exact host
    assert!(south.contains("\"one\""), "{south}");
    assert_eq!(
        (said(&world, "all"), said(&world, "one")),
        (vec![GOOD.into()], vec![GOOD.into()])
    );
    world.authorities.insert(key("ca"), Err(BadBundle::Missing));
    assert_eq!(modes(&world), ["InvalidTLSPolicy", "InvalidTLSPolicy"]);
    let why = Ineligible::NotSecured(NotSecured::Policy(key("one")));
    assert!(why.to_string().contains("ns/one"), "{why}");
}

#[test]
fn policies_of_a_namespace_have_a_bounded_number_of_config_maps() {
    let mut world = mk_tls_world();
    for number in 0..70 {
        let name = format!("p{number:02}");
        add_policy(&mut world, &name, 100 - number, SERVICE, "web", None);
        set_refs_of(&mut world, &name, &[mk_ref(&name)]);
    }
    let named = backend_tls::named_maps(&world);
    assert_eq!(named.len(), 64);
    // those of older policies
    assert!(named.contains(&key("p69")) && !named.contains(&key("p05")));
    assert_eq!(
        said(&world, "p05"),
        ["gw Accepted=False/Conflicted ResolvedRefs=False/InvalidCACertificateRef"]
    );
}

/// How the Service `web` and the endpoint picker are verified.
fn verifications(model: &GatewayModel) -> [Arc<Verification>; 2] {
    let web = model.services[&(key("web"), 8080)].security.as_ref();
    let epp = model.pools[&key("llm")].epp.as_ref();
    [web, epp.map(|epp| &epp.security)].map(|security| match security {
        Some(Security::Verified(how)) => Arc::clone(how),
        other => panic!("{other:?}"),
    })
}

fn bundle(verification: &Verification) -> &Bundle {
    match &verification.authorities {
        Trusted::Bundle(bundle) => bundle,
        Trusted::System => panic!("of the system"),
    }
}

/// Policies for `web` and the endpoint picker, by the authorities in `ca` and `cb`.
fn mk_world_of_two() -> World {
    let mut world = mk_tls_world();
    let other = mk_bundle("cb", &Ca::new("b"));
    world.authorities.insert(key("cb"), Ok(other));
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    add_policy(&mut world, "q", 1, SERVICE, "epp", None);
    set_refs_of(&mut world, "p", &[mk_ref("ca"), mk_ref("cb")]);
    set_refs_of(&mut world, "q", &[mk_ref("cb"), mk_ref("ca")]);
    world
}

fn is_same(one: &Verification, other: &Verification) -> bool {
    Arc::ptr_eq(bundle(one).resource(), bundle(other).resource())
}

#[test]
fn config_map_that_a_policy_names_often_is_read_once() {
    let mut world = mk_world_of_two();
    let refs = [(); 8].map(|()| mk_ref("ca"));
    set_refs(&mut world, &refs);
    let [web, _] = verifications(&model(&world));
    let there = world.authorities[&key("ca")].as_ref().unwrap();
    assert!(Arc::ptr_eq(bundle(&web).resource(), there.resource()));
}

/// The authorities of a ConfigMap may have 256 KiB, and those of all that a policy names no more than that.
#[test]
fn authorities_of_a_policy_have_a_bounded_size() {
    let mut world = mk_tls_world();
    let pem = String::from_utf8(Ca::new("a").pem()).unwrap();
    let half = pem.repeat((128 << 10) / pem.len());
    for name in ["a", "b", "c"] {
        let bundle = Bundle::read(&mk_map(name, &half)).unwrap();
        world.authorities.insert(key(name), Ok(bundle));
    }
    add_policy(&mut world, "p", 1, SERVICE, "web", None);
    let [a, b, c] = ["a", "b", "c"].map(mk_ref);
    set_refs(&mut world, &[a.clone(), b.clone(), a.clone(), b.clone()]);
    assert_eq!(
        (of_web(&world), said(&world, "p")),
        ("p".into(), vec![GOOD.to_owned()])
    );
    set_refs(&mut world, &[a, b, c]);
    assert_eq!(of_web(&world), "nowhere");
    assert_eq!(
        said(&world, "p"),
        ["gw Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs"]
    );
    let (_, wanted) = build(&world, &mk_settings());
    let message = &wanted.tls_policies[&key("p")][0].conditions[0].message;
    let size = (3 * half.len() + 2).to_string();
    assert!(
        message.contains(&size) && message.contains("262144"),
        "{message}"
    );
}

#[test]
fn policies_that_name_the_same_config_maps_share_their_authorities() {
    let [web, epp] = verifications(&model(&mk_world_of_two()));
    assert!(is_same(&web, &epp), "{web:?} {epp:?}");
}

#[test]
fn authorities_are_made_again_only_when_they_are_others() {
    let mut world = mk_world_of_two();
    let mut built = Built::default();
    built.update(&world, &mk_settings(), &Touched::all());
    let mut before = Arc::clone(&built.models[&key("gw")]);
    let mut follow = |world: &World, touched: &Touched| {
        built.update(world, &mk_settings(), touched);
        let now = Arc::clone(&built.models[&key("gw")]);
        assert_ne!(before, now);
        let [web, _] = verifications(&before);
        before = Arc::clone(&now);
        (web, verifications(&now)[0].clone())
    };
    let touched = Touched {
        routes: [key("web")].into(),
        ..Touched::default()
    };
    world.routes.get_mut(&key("web")).unwrap().created += 1;
    let (web, next) = follow(&world, &touched);
    assert!(Arc::ptr_eq(&web, &next), "a route event");
    // Another policy is edited, and ConfigMaps are listed again.
    let policy = world.tls_policies.get_mut(&key("q")).unwrap();
    policy.validation.as_mut().unwrap().hostname = "epp.test".into();
    let (web, next) = follow(&world, &Touched::all());
    assert!(is_same(&web, &next), "another policy is edited");
    let other = mk_bundle("cb", &Ca::new("c"));
    world.authorities.insert(key("cb"), Ok(other));
    let (web, next) = follow(&world, &Touched::all());
    assert_ne!(bundle(&web), bundle(&next));
}

/// Another name would be another cluster, which ends the streams of the one before.
#[test]
fn name_of_authorities_stays_where_one_of_them_goes_bad() {
    let mut world = mk_world_of_two();
    let [good, _] = verifications(&model(&world));
    world.authorities.insert(key("cb"), Err(BadBundle::Missing));
    let [bad, _] = verifications(&model(&world));
    assert_eq!(bundle(&good).name(), bundle(&bad).name());
    assert_ne!(bundle(&good), bundle(&bad));
}

/// Each such list costs as much memory as its authorities have.
#[test]
fn policies_of_a_namespace_have_a_bounded_number_of_lists_of_config_maps() {
    let mut world = mk_tls_world();
    let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
    for name in &names {
        let bundle = mk_bundle(name, &Ca::new("a"));
        world.authorities.insert(key(name), Ok(bundle));
    }
    let pairs = names.iter().enumerate().flat_map(|(at, one)| {
        let others = names.iter().skip(at + 1);
        others.map(move |other| [mk_ref(one), mk_ref(other)])
    });
    let pairs: Vec<_> = pairs.take(65).collect();
    for (number, pair) in pairs.iter().take(64).enumerate() {
        let name = format!("a{number}");
        add_policy(&mut world, &name, 1, SERVICE, &name, None);
        set_refs_of(&mut world, &name, pair);
    }
    add_policy(&mut world, "p", 2, SERVICE, "web", None);
    set_refs(&mut world, &pairs[64]);
    assert_eq!(of_web(&world), "nowhere");
    assert_eq!(
        said(&world, "p"),
        ["gw Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs"]
    );
    let [one, other] = pairs[63].clone();
    for refs in [vec![other, one.clone()], vec![one]] {
        set_refs(&mut world, &refs);
        assert_eq!(of_web(&world), "p");
    }
}

/// Pods would else get requests that no endpoint picker has seen, in the place of 503.
#[test]
fn pool_whose_endpoint_picker_may_not_be_asked_does_not_fail_open() {
    let mut world = mk_tls_world();
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.picker.as_mut().unwrap().fail_open = true;
    let fails_open = |world: &World, epp_tls| {
        let settings = Settings {
            epp_tls,
            ..mk_settings()
        };
        let (models, _) = build(world, &settings);
        models[0].pools[&key("llm")].fail_open
    };
    assert!(fails_open(&world, EppTls::Unverified));
    assert!(!fails_open(&world, EppTls::Required));
    add_policy(&mut world, "p", 1, SERVICE, "epp", None);
    assert!(fails_open(&world, EppTls::Required));
    world.authorities.insert(key("ca"), Err(BadBundle::Missing));
    assert!(!fails_open(&world, EppTls::Unverified));
}

/// Its author expects TLS to the pods, which there is not.
#[test]
fn policy_for_a_pool_says_that_it_has_no_effect() {
    let mut world = mk_tls_world();
    let pool = ("inference.networking.k8s.io", "InferencePool");
    add_policy(&mut world, "p", 1, pool, "llm", None);
    add_policy(&mut world, "q", 2, pool, "llm", Some("http"));
    let expected = ["gw Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs"];
    assert_eq!(said(&world, "p"), expected);
    assert_eq!(said(&world, "q"), expected);
}
