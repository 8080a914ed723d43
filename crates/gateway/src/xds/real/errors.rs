//! Errors of Envoy itself, as clients see them, and requests for which Envoy avoids them.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use crd::networks::Cidr;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixture::{add_route, add_slice, key, mk_ref, mk_route, mk_rule, mk_service};
use crate::world::World;

use super::bed::{Answer, Bed, EPP, FORBIDDEN, OUTSIDE, POD_B, REMOTE_EPP, REMOTE_POD, SECOND_EPP};
use super::epp::{Behaviour, REFUSAL};
use super::pod::{HANG, ORDER};

/// An address without a model server.
const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 99);

/// A weight beside which a backend of weight 1 gets almost no requests.
const MOST: u32 = 1_000_000;

/// Adds a Service that has its own path.
fn add_service(world: &mut World, name: &str) {
    world
        .services
        .insert(key(name), mk_service(&[("http", 8080)]));
    let rule = mk_rule(&format!("/{name}"), vec![mk_ref("service", name, 1)]);
    add_route(world, mk_route(name, vec![rule]));
}

/// The status of an answer, and the type of its error.
fn kind(answer: &Answer) -> (u16, String) {
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"));
    assert!(
        answer.head.contains("content-type: application/json"),
        "{answer:?}"
    );
    assert!(!answer.head.contains("x-isthmus"), "{answer:?}");
    let error = &body["error"];
    assert_eq!(error["code"], json!(answer.status), "{answer:?}");
    assert!(error["message"].as_str().unwrap().len() > 20, "{answer:?}");
    (answer.status, error["type"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_envoy_are_objects_that_clients_of_models_parse() {
    let faulty = |world: &mut World| {
        world.routes.remove(&key("web"));
        add_service(world, "empty");
        add_service(world, "refusing");
        let mut slow = mk_rule(HANG, vec![mk_ref("service", "web", 1)]);
        slow.request_timeout = Some("100ms".into());
        let broken = mk_rule("/broken", vec![mk_ref("service", "missing", 1)]);
        add_route(world, mk_route("more", vec![slow, broken]));
    };
    let mut bed = Bed::start(faulty).await;
    let pods = bed.pods;
    add_slice(
        &mut bed.endpoints,
        "refusing",
        &NOBODY.to_string(),
        &[("http", pods)],
    );
    bed.publish();
    bed.until("/broken", 500).await;
    for (path, status, wanted) in [
        ("/none", 404, "route-not-found"),
        ("/broken", 500, "route-not-usable"),
        ("/empty", 503, "no-endpoint"),
        ("/refusing", 503, "endpoint-failed"),
        ("/pool", 503, "endpoint-picker-failed"),
        ("/import", 503, "endpoint-picker-failed"),
        (HANG, 504, "timeout"),
    ] {
        let answer = bed.post(path, 10).await;
        assert_eq!(
            kind(&answer),
            (status, wanted.to_owned()),
            "{path} {answer:?}"
        );
    }
    let bad = "POST /none HTTP/1.1\r\nhost: any\r\ncontent-length: many\r\n\r\n";
    let answer = bed.exchange(bad, b"").await;
    assert_eq!(kind(&answer), (400, "bad-request".to_owned()));

    let answer = bed.send("HEAD", "/none", "", 0).await;
    assert_eq!((answer.status, &*answer.body), (404, ""));
    assert!(!answer.head.contains("application/json"), "{answer:?}");
}

/// As of a picker that answers in a newer form of the protocol, which this Envoy does not know.
#[rstest]
#[case::pool("/pool", EPP, POD_B)]
#[case::import("/import", REMOTE_EPP, REMOTE_POD)]
#[tokio::test(flavor = "multi_thread")]
async fn answer_of_a_picker_that_cannot_be_used_is_an_error_with_a_body(
    #[case] path: &str,
    #[case] of: Ipv4Addr,
    #[case] pod: Ipv4Addr,
) {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(pod);
    let epp = bed.epp(of, pick).await;
    bed.until(path, 200).await;
    let no_header = Behaviour::PickAndSet(format!("{pod}:{}", bed.pods), "x-any", "a\nb");
    for behaviour in [Behaviour::Empty, no_header] {
        epp.set(behaviour.clone());
        for bytes in [0, 1000] {
            let answer = bed.post(path, bytes).await;
            assert_eq!(
                kind(&answer),
                (503, "endpoint-picker-failed".to_owned()),
                "{behaviour:?}, {bytes} bytes: {answer:?}"
            );
        }
    }
}

/// Clients that first try an upgrade use HTTP after this status, and after others only when they have tried for a while.
#[tokio::test(flavor = "multi_thread")]
async fn websocket_is_answered_by_the_status_after_which_clients_use_http() {
    let mut bed = Bed::start(|_| {}).await;
    // The picker also receives the answer's headers; where it does not listen, Envoy makes another answer.
    let pick = bed.at(POD_B);
    let _epp = bed.epp(EPP, pick).await;
    bed.until("/pool", 200).await;
    for path in ["/pool", "/import", "/service"] {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: any\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        );
        let answer = bed.exchange(&head, b"").await;
        assert_eq!(kind(&answer), (426, "upgrade-not-served".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_clients_and_answers_of_pickers_are_left_alone() {
    let mut bed = Bed::start(|world| add_service(world, "empty")).await;
    let post = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\ncontent-type: application/grpc\r\ncontent-length: 0\r\n\r\n"
        )
    };
    let answer = bed.exchange(&post("/empty"), b"").await;
    assert!(
        answer.head.contains("grpc-message: no healthy upstream"),
        "{answer:?}"
    );
    let answer = bed.exchange(&post("/import"), b"").await;
    assert!(answer.head.contains("grpc-status: 14"), "{answer:?}");
    assert!(!answer.head.contains("grpc-message: %7B"), "{answer:?}");
    assert!(!answer.head.contains("x-isthmus"), "{answer:?}");

    let local = bed.epp(EPP, Behaviour::Refuse(503)).await;
    let remote = bed.epp(REMOTE_EPP, Behaviour::Refuse(503)).await;
    for path in ["/pool", "/import"] {
        bed.wait("the picker refuses", || async {
            bed.get(path).await.body == REFUSAL
        })
        .await;
    }
    local.set(Behaviour::Refuse(429));
    remote.set(Behaviour::Refuse(429));
    for path in ["/pool", "/import"] {
        let answer = bed.get(path).await;
        assert_eq!((answer.status, &*answer.body), (429, REFUSAL), "{path}");
    }
}

/// By default nginx uses HTTP/1.0. A host name with a trailing dot means the same as without it.
#[rstest]
#[case::http_1_0("GET / HTTP/1.0\r\nhost: api.example\r\n\r\n")]
#[case::dot("GET / HTTP/1.1\r\nhost: api.example.\r\nconnection: close\r\n\r\n")]
#[case::dot_and_port("GET / HTTP/1.1\r\nhost: api.example.:8080\r\nconnection: close\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn request_reaches_the_route_of_its_host(#[case] head: &str) {
    let hosted = |world: &mut World| {
        add_service(world, "hosted");
        let mut route = mk_route(
            "hosted",
            vec![mk_rule("/", vec![mk_ref("service", "hosted", 1)])],
        );
        route.hostnames = vec!["api.example".into()];
        add_route(world, route);
    };
    let mut bed = Bed::start(hosted).await;
    let pods = bed.pods;
    add_slice(
        &mut bed.endpoints,
        "hosted",
        &POD_B.to_string(),
        &[("http", pods)],
    );
    bed.publish();
    bed.wait("it is served", || async {
        let usual = "GET / HTTP/1.1\r\nhost: api.example\r\nconnection: close\r\n\r\n";
        bed.exchange(usual, b"").await.status == 200
    })
    .await;
    let answer = bed.exchange(head, b"").await;
    assert_eq!((answer.status, answer.body), (200, format!("{POD_B} 0")));
}

/// This happens where a server's keep-alive time ends just when the next request is sent. Imports already had the
/// retry.
#[tokio::test(flavor = "multi_thread")]
async fn request_of_a_pool_that_meets_a_connection_as_it_closes_is_sent_again() {
    let mut bed = Bed::start(|_| {}).await;
    let closing = bed.closing_pod().await;
    let pods = bed.pods;
    let of_pool = bed.endpoints.pods.get_mut(&key("llm")).unwrap();
    of_pool.insert("closing".to_owned(), closing.into());
    bed.publish();
    // Most pickers name one endpoint, so the other attempts have no other endpoint.
    let _epp = bed
        .epp(EPP, Behaviour::Pick(format!("{closing}:{pods}")))
        .await;
    bed.until("/pool", 200).await;
    for _ in 0..4 {
        let answer = bed.get("/pool").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// A server that was killed may have processed the request. Of several backends of a rule, the first gets almost all
/// requests.
#[rstest]
#[case::service(&[("service", "web", 1)], 1, None)]
#[case::service_beside_a_pool(&[("service", "web", MOST), ("pool", "llm", 1)], 1, None)]
#[case::service_beside_an_import(&[("service", "web", MOST), ("import", "many", 1)], 1, None)]
#[case::pool(&[("pool", "llm", 1)], 2, None)]
#[case::pool_behind_a_hop(&[("pool", "llm", 1)], 2, Some("20s"))]
#[case::pool_beside_an_import(&[("pool", "llm", MOST), ("import", "llm", 1)], 2, None)]
#[case::pool_beside_an_import_of_many(&[("pool", "llm", MOST), ("import", "many", 1)], 1, None)]
#[tokio::test(flavor = "multi_thread")]
async fn request_that_a_server_has_read_is_not_done_often(
    #[case] backends: &[(&str, &str, u32)],
    #[case] times: usize,
    #[case] limit: Option<&str>,
) {
    let to_dying = |world: &mut World| {
        let entry = world.imports[&key("llm")].clusters[0].clone();
        let many = world.imports[&key("llm")].clone();
        let many = world.imports.entry(key("many")).or_insert(many);
        for number in 1..5 {
            let mut entry = entry.clone();
            entry.name = format!("{}-{number}", entry.name);
            entry.pod_cidrs = vec!["127.0.0.13/32".parse().unwrap()];
            many.clusters.push(entry);
        }
        let backends = backends.iter();
        let backends = backends.map(|(kind, name, weight)| mk_ref(kind, name, *weight));
        let mut rule = mk_rule("/dying", backends.collect());
        rule.request_timeout = limit.map(Into::into);
        add_route(world, mk_route("dying", vec![rule]));
    };
    let mut bed = Bed::start(to_dying).await;
    let (dying, posts) = bed.dying_pod().await;
    let pods = bed.pods;
    let ip = dying.to_string();
    add_slice(&mut bed.endpoints, "web", &ip, &[("http", pods)]);
    let of_pool = bed.endpoints.pods.get_mut(&key("llm")).unwrap();
    of_pool.insert("dying".to_owned(), dying.into());
    bed.publish();
    let _epp = bed.epp(EPP, bed.at(dying)).await;
    bed.wait("the server is reached", || async {
        let answer = bed.get("/dying").await;
        answer.status == 200 && answer.body.is_empty()
    })
    .await;
    let head = format!(
        "POST /dying HTTP/1.1\r\nhost: any\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        ORDER.len()
    );
    let answer = bed.exchange(&head, ORDER).await;
    assert_eq!(kind(&answer), (503, "endpoint-failed".to_owned()));
    assert_eq!(posts.load(Ordering::Relaxed), times);
}

/// The picker picks the denied address, then one outside the networks of the entry itself, then an allowed one.
#[tokio::test(flavor = "multi_thread")]
async fn picks_lead_into_the_entrys_own_networks_less_what_is_denied_there() {
    let own = |world: &mut World| {
        let import = world.imports.get_mut(&key("llm")).unwrap();
        import.clusters[0].pod_cidrs = vec!["127.0.0.0/28".parse().unwrap()];
        world.own_networks = vec![Cidr::host(FORBIDDEN.into())];
    };
    let mut bed = Bed::start(own).await;
    bed.settings.pod_cidrs.clear();
    bed.publish();
    let epp = bed.epp(REMOTE_EPP, bed.at(REMOTE_POD)).await;
    bed.until("/import", 200).await;
    for pod in [FORBIDDEN, OUTSIDE] {
        epp.set(bed.at(pod));
        let refused = bed.get("/import").await;
        assert_eq!(
            kind(&refused),
            (502, "endpoint-not-allowed".to_owned()),
            "{pod}"
        );
    }
    for pod in [REMOTE_POD, POD_B] {
        epp.set(bed.at(pod));
        let answer = bed.get("/import").await;
        assert_eq!((answer.status, answer.body), (200, format!("{pod} 0")));
    }
}

/// The refusal is an answer like the picker's 429, and no other cluster's picker is called.
#[tokio::test(flavor = "multi_thread")]
async fn policy_of_a_remote_picker_is_final() {
    let two = |world: &mut World| {
        let import = world.imports.get_mut(&key("llm")).unwrap();
        let mut south = import.clusters[0].clone();
        south.name = "south".into();
        south.picker.as_mut().unwrap().addresses = vec![SECOND_EPP.to_string()];
        import.clusters.push(south);
    };
    let mut bed = Bed::start(two).await;
    let first = bed.epp(REMOTE_EPP, Behaviour::Refuse(403)).await;
    let second = bed.epp(SECOND_EPP, Behaviour::Refuse(403)).await;
    bed.until("/import", 403).await;
    let before = first.asked() + second.asked();
    let answer = bed.get("/import").await;
    assert_eq!((answer.status, &*answer.body), (403, REFUSAL));
    assert_eq!(first.asked() + second.asked(), before + 1);
}
