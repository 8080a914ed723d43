//! The real Envoy at our ADS server, with scripted EPPs and pods on loopback addresses: only this
//! shows that the resources do what they shall.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use rstest::rstest;
use tokio::time::Instant;

use crate::fixture::{add_route, add_slice, key, mk_own_parameters, mk_ref, mk_route, mk_rule};
use crate::parameters;
use crate::world::World;

mod backend_tls;
mod bed;
mod control_channel;
mod credentials;
mod envoy;
mod epp;
mod errors;
mod features;
mod headers;
mod https;
mod imports;
mod loss;
mod modes;
mod pod;
mod selection;

use bed::{Bed, EPP, FORBIDDEN, POD_A, POD_B, REMOTE_EPP, REMOTE_POD, SECOND_EPP};
use epp::{Behaviour, Epp};
use pod::STREAM;

#[tokio::test(flavor = "multi_thread")]
async fn pool_goes_where_its_epp_says() {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    bed.until("/pool", 200).await;
    for bytes in [0, 1000, 300_000] {
        let answer = bed.post("/pool", bytes).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, format!("{POD_B} {bytes}").as_str())
        );
    }
    let served = epp.served();
    assert_eq!(
        served.last().map(String::as_str),
        Some(format!("{POD_B}:{}", bed.pods).as_str())
    );
}

/// A pod of the pool that refuses connections, and an endpoint picker whose list has it before [`POD_B`].
async fn pick_refusing_pod_first(bed: &mut Bed) -> Epp {
    let gone = Ipv4Addr::new(127, 0, 0, 15);
    let pods = bed.endpoints.pods.get_mut(&key("llm")).unwrap();
    pods.insert("gone".to_owned(), gone.into());
    bed.publish();
    let list = format!("{gone}:{0},{POD_B}:{0}", bed.pods);
    bed.epp(EPP, Behaviour::Pick(list)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_that_refuses_is_passed_over_for_the_next_of_the_list() {
    let mut bed = Bed::start(|_| {}).await;
    let epp = pick_refusing_pod_first(&mut bed).await;
    bed.until("/pool", 200).await;
    let answer = bed.post("/pool", 1000).await;
    assert_eq!(answer.body, format!("{POD_B} 1000"), "{}", answer.head);
    // one retry
    assert_eq!(epp.lists().last().map(String::as_str), Some("2"));
    assert_eq!(
        epp.served().last().map(String::as_str),
        Some(format!("{POD_B}:{}", bed.pods).as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn import_goes_through_its_hop_where_the_remote_epp_says() {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(REMOTE_POD);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/import", 200).await;
    let answer = bed.post("/import", 100_000).await;
    assert_eq!(
        answer.body,
        format!("{REMOTE_POD} 100000"),
        "{}",
        answer.head
    );
    assert!(
        !answer
            .head
            .contains("x-gateway-destination-endpoint-served"),
        "{}",
        answer.head
    );
    assert!(!answer.head.contains("x-isthmus"), "{}", answer.head);
    let served = epp.served();
    assert_eq!(
        served.last().map(String::as_str),
        Some(format!("{REMOTE_POD}:{}", bed.pods).as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pick_outside_the_exporters_pods_is_refused() {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(FORBIDDEN);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/import").await;
        epp.asked() > 0
    })
    .await;
    let answer = bed.get("/import").await;
    assert_eq!(answer.status, 502, "{answer:?}");
}

/// The EPP of another cluster may choose an endpoint and may not change the request; that of this cluster may.
#[tokio::test(flavor = "multi_thread")]
async fn remote_epp_does_not_choose_the_path() {
    let mut bed = Bed::start(|_| {}).await;
    let behaviour =
        |pod| Behaviour::PickAndSet(format!("{pod}:{}", bed.pods), ":path", "/stream?1");
    let (local, remote) = (behaviour(POD_B), behaviour(REMOTE_POD));
    bed.epp(EPP, local).await;
    bed.epp(REMOTE_EPP, remote).await;
    assert_eq!(bed.until("/pool", 200).await.body, "piece");
    let answer = bed.until("/import", 200).await;
    assert_eq!(answer.body, format!("{REMOTE_POD} 0"), "{}", answer.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_headers_do_not_choose_the_endpoint() {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    let pick = bed.at(REMOTE_POD);
    let remote = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    let forged = format!(
        "x-gateway-destination-endpoint: {FORBIDDEN}:{0}\r\nx-gateway-destination-endpoint-subset: {FORBIDDEN}:{0}\r\n\
         x-isthmus-failover: 1\r\nx-gateway-destination-endpoint-served: x\r\n",
        bed.pods
    );
    for (path, pod) in [("/pool", POD_B), ("/import", REMOTE_POD)] {
        let answer = bed.send("GET", path, &forged, 0).await;
        assert_eq!(answer.body, format!("{pod} 0"), "{path}");
    }
    for seen in epp.headers().into_iter().chain(remote.headers()) {
        assert!(
            !seen.contains("x-gateway-") && !seen.contains("x-isthmus"),
            "{seen}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_closed_reaches_no_pod_without_its_epp() {
    let mut bed = Bed::start(|_| {}).await;
    assert_eq!(bed.until("/pool", 503).await.status, 503);
    assert_eq!(bed.post("/pool", 3_000_000).await.status, 503);
    // An EPP that picks nothing, or what is no pod of the pool, opens nothing either.
    let epp = bed.epp(EPP, Behaviour::Nothing).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/pool").await;
        epp.asked() > 0
    })
    .await;
    assert_eq!(bed.get("/pool").await.status, 503);
    epp.set(bed.at(FORBIDDEN));
    assert_eq!(bed.get("/pool").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_open_reaches_pods_without_its_epp() {
    let open = |world: &mut World| {
        let pool = world.pools.get_mut(&key("llm")).unwrap();
        pool.picker.as_mut().unwrap().fail_open = true;
    };
    let mut bed = Bed::start(open).await;
    bed.until("/pool", 200).await;
    for bytes in [0, 1000, 3_000_000] {
        assert_eq!(bed.post("/pool", bytes).await.status, 200, "{bytes} bytes");
    }
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/pool").await;
        epp.asked() > 0
    })
    .await;
    for _ in 0..10 {
        assert_eq!(bed.get("/pool").await.body, format!("{POD_B} 0"));
    }
}

#[rstest]
#[case::endpoint_mode(false)]
#[case::parent_mode(true)]
#[tokio::test(flavor = "multi_thread")]
async fn weights_split_and_each_epp_sees_its_own_share(#[case] by_gateway: bool) {
    let mut bed = Bed::start(|_| {}).await;
    let (local, remote) = (bed.at(POD_A), bed.at(REMOTE_POD));
    let epp = bed.epp(EPP, local).await;
    let remote_epp = if by_gateway {
        let entry = imports::mk_parent(&bed, "east", REMOTE_POD, &[]);
        imports::set_entries(&mut bed.world, vec![entry]);
        bed.publish();
        None
    } else {
        Some(bed.epp(REMOTE_EPP, remote).await)
    };
    let remotely_asked = || remote_epp.as_ref().map_or(0, Epp::asked);
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    // By chance a fair split is outside once in 2000 times, so a second one decides.
    let mut seen = Vec::new();
    for _ in 0..2 {
        let before = (epp.asked(), remotely_asked());
        let mut local = 0;
        for _ in 0..20 {
            let batch = join_all((0..100).map(|_| bed.post("/v1/chat", 200))).await;
            for answer in batch {
                assert_eq!(answer.status, 200);
                local += usize::from(answer.body.starts_with(&POD_A.to_string()));
            }
        }
        let asked = (epp.asked() - before.0, remotely_asked() - before.1);
        let remote = if by_gateway { 0 } else { 2000 - local };
        assert_eq!(asked, (local, remote));
        seen.push(local);
        if local.abs_diff(1000) <= 78 {
            return;
        }
    }
    panic!("{seen:?} of 2000 each");
}

#[tokio::test(flavor = "multi_thread")]
async fn import_tries_the_other_cluster_and_takes_a_refusal_as_final() {
    let two = |world: &mut World| {
        let import = world.imports.get_mut(&key("llm")).unwrap();
        let mut south = import.clusters[0].clone();
        south.name = "south".into();
        south.picker.as_mut().unwrap().addresses = vec![SECOND_EPP.to_string()];
        import.clusters.push(south);
    };
    let mut bed = Bed::start(two).await;
    let pick = bed.at(REMOTE_POD);
    let second = bed.epp(SECOND_EPP, pick).await;
    bed.until("/import", 200).await;
    // The other EPP is down.
    for bytes in [0, 1000, 300_000] {
        assert_eq!(
            bed.post("/import", bytes).await.status,
            200,
            "{bytes} bytes"
        );
    }
    // It is up and has nothing to offer.
    let first = bed.epp(REMOTE_EPP, Behaviour::Refuse(503)).await;
    bed.wait("the first EPP is asked", || async {
        assert_eq!(bed.post("/import", 100).await.status, 200);
        first.asked() > 0
    })
    .await;
    // It says that the client sends too much: that is the answer.
    first.set(Behaviour::Refuse(429));
    second.set(Behaviour::Refuse(429));
    assert_eq!(bed.post("/import", 100).await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limit_ends_a_hung_epp() {
    let limited = |world: &mut World| {
        for name in ["pool", "import"] {
            let route = world.routes.get_mut(&key(name)).unwrap();
            route.rules[0].request_timeout = Some("500ms".into());
        }
    };
    let mut bed = Bed::start(limited).await;
    for (path, epp, pod) in [("/pool", EPP, POD_A), ("/import", REMOTE_EPP, REMOTE_POD)] {
        let pick = bed.at(pod);
        let epp = bed.epp(epp, pick).await;
        bed.until(path, 200).await;
        epp.set(Behaviour::Hang);
        let started = Instant::now();
        let answer = bed.post(path, 100).await;
        assert_eq!(
            answer.status,
            504,
            "{path} {answer:?} {:?}",
            started.elapsed()
        );
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{path}: {:?}",
            started.elapsed()
        );
    }
}

/// Connections live 2 s here; Envoy's drain is 5 s more, which the answer outlasts.
#[tokio::test(flavor = "multi_thread")]
async fn answer_outlives_the_end_of_its_connections_time_and_the_next_one_tells_the_client() {
    let short = |world: &mut World| {
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        gateway.parameters = Some(mk_own_parameters());
        let own = Some(parameters::parse("drainSeconds: 8"));
        world.parameters.insert(key("own"), own);
        let rule = mk_rule(STREAM, vec![mk_ref("service", "web", 1)]);
        add_route(world, mk_route("stream", vec![rule]));
    };
    let bed = Bed::start(short).await;
    bed.until(&format!("{STREAM}?1"), 200).await;
    let mut connection = bed.connect().await;
    let first = Bed::stream_over(&mut connection, 160).await;
    assert_eq!(first.matches("piece").count(), 160);
    assert!(!first.contains("connection: close"), "{first}");
    let next = Bed::stream_over(&mut connection, 1).await;
    assert!(next.contains("connection: close"), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_reach_envoy_and_lose_no_request() {
    let mut bed = Bed::start(|_| {}).await;
    let pick = bed.at(POD_A);
    let _epp = bed.epp(EPP, pick).await;
    let pick = bed.at(REMOTE_POD);
    let _remote = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    let mut slowest = Duration::ZERO;
    for round in 0..10 {
        // A path of its own leads to a cluster of its own, which is new each time.
        let name = format!("web{round}");
        let service = bed.world.services[&key("web")].clone();
        bed.world.services.insert(key(&name), service);
        add_slice(
            &mut bed.endpoints,
            &name,
            &POD_B.to_string(),
            &[("http", bed.pods)],
        );
        let rule = mk_rule("/moving", vec![mk_ref("service", &name, 1)]);
        add_route(&mut bed.world, mk_route("moving", vec![rule]));
        bed.publish();
        let started = Instant::now();
        if round == 0 {
            bed.wait("the new path answers", || async {
                bed.get("/moving").await.body == format!("{POD_B} 0")
            })
            .await;
        }
        bed.wait("Envoy has it all", || async {
            assert_eq!(bed.get("/moving").await.status, 200, "round {round}");
            let connected = bed.proxies.connected();
            !connected.is_empty() && connected.iter().all(|proxy| proxy.current)
        })
        .await;
        slowest = slowest.max(started.elapsed());
    }
    // Far below the 2 s that a step waits for an ACK, and the 15 s of a missed assignment.
    assert!(slowest < Duration::from_millis(1500), "{slowest:?}");
    // An import that goes answers 500, not by a hang.
    bed.world.imports.clear();
    bed.publish();
    bed.until("/import", 500).await;
    assert_eq!(bed.post("/pool", 100).await.status, 200);
    assert!(bed.envoy.child.try_wait().unwrap().is_none(), "Envoy runs");
}
