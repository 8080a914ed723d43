#![cfg(test)]
//! The gRPC side as Envoy sees it: a scripted peer against the real server, on loopback.

use std::{path::Path, time::Duration};

use envoy_types::pb::envoy::service::ext_proc::v3::{
    processing_request::Request, processing_response::Response,
};
use epp::{
    Acceptor, Alpn, Options, Part, TlsFiles, TlsMetrics, TlsReload, TlsVersion, serve_health,
};
use prometheus_client::registry::Registry;
use scheduling::{Freshness, Scraped};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::peer::{BODY, Epp, destination, mk_body, mk_headers, streamed};

mod external;
mod peer;
mod shut;
mod tls;
mod traces;

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_post_in_chunks_is_picked_for_and_given_back() {
    let epp = Epp::start(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    let mut peer = epp.open().await;
    peer.post("/v1/chat/completions").await;
    let (head, tail) = BODY.split_at(20);
    peer.body(head, false).await;
    peer.body(tail, false).await;
    peer.body("", true).await;
    let message = peer.next_message().await;
    let metadata = format!("{:?}", message.dynamic_metadata);
    let picked = destination(&message.response.unwrap());
    assert!(["10.0.0.1:8000", "10.0.0.2:8000"].contains(&picked.as_str()));
    assert!(
        metadata.contains(&format!("StringValue({picked:?})")),
        "the same in the metadata: {metadata}"
    );
    assert_eq!(
        streamed(&peer.next().await.unwrap()),
        (BODY.to_owned(), true)
    );
    assert_eq!(epp.in_flight(), 1);
}

#[tokio::test]
async fn server_sent_events_come_back_one_by_one_and_the_end_frees_the_endpoint() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let mut peer = epp.open().await;
    peer.post_and_pick().await;
    peer.send(Request::ResponseHeaders(mk_headers(
        &[(":status", "200")],
        false,
    )))
    .await;
    assert!(matches!(
        peer.next().await,
        Some(Response::ResponseHeaders(_))
    ));
    for index in 0..20 {
        let event = format!("data: {{\"index\":{index}}}\n\n");
        peer.send(Request::ResponseBody(mk_body(&event, false)))
            .await;
        // The next event is sent only once this one is back.
        assert_eq!(streamed(&peer.next().await.unwrap()), (event, false));
    }
    assert_eq!(epp.in_flight(), 1);
    peer.send(Request::ResponseBody(mk_body("", true))).await;
    assert_eq!(streamed(&peer.next().await.unwrap()), (String::new(), true));
    assert_eq!(epp.in_flight(), 0, "before the peer closes");
    peer.requests = None;
    assert!(peer.next().await.is_none(), "closed in order");
    let page = epp.metrics();
    assert!(
        page.contains(r#"epp_streams_ended_total{end="complete"} 1"#),
        "{page}"
    );
    assert!(
        page.contains(r#"llm_d_epp_request_total{model_name="m""#),
        "{page}"
    );
}

#[tokio::test]
async fn without_members_the_client_gets_503_and_the_stream_ends_in_order() {
    let epp = Epp::start(&[]).await;
    let mut peer = epp.open().await;
    peer.post("/v1/chat/completions").await;
    peer.body(BODY, true).await;
    let Some(Response::ImmediateResponse(response)) = peer.next().await else {
        panic!("not immediate")
    };
    assert_eq!(response.status.unwrap().code, 503);
    let text = String::from_utf8(response.body).unwrap();
    assert!(text.contains(r#""type":"no-endpoints""#), "{text}");
    assert!(peer.next().await.is_none());
    assert!(
        epp.metrics()
            .contains(r#"epp_rejected_total{reason="no-endpoints"} 1"#)
    );
}

#[tokio::test]
async fn a_malformed_body_gets_400() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let mut peer = epp.open().await;
    peer.post("/v1/completions").await;
    peer.body(r#"{"model": "#, true).await;
    let Some(Response::ImmediateResponse(response)) = peer.next().await else {
        panic!("not immediate")
    };
    assert_eq!(response.status.unwrap().code, 400);
    assert_eq!(epp.in_flight(), 0);
}

#[tokio::test]
async fn a_broken_protocol_is_a_grpc_error() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let mut peer = epp.open().await;
    peer.body(BODY, true).await;
    let error = timeout(LIMIT, peer.replies.message())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_reset_in_mid_stream_frees_the_endpoint() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    for _ in 0..10 {
        let mut peer = epp.open().await;
        peer.post_and_pick().await;
        peer.send(Request::ResponseHeaders(mk_headers(
            &[(":status", "200")],
            false,
        )))
        .await;
        peer.next().await;
        assert_eq!(epp.in_flight(), 1);
        drop(peer);
        epp.until_in_flight(0).await;
    }
    assert!(epp.metrics().contains(r#"epp_streams{phase="response"} 0"#));
}

#[tokio::test]
async fn the_gateway_says_how_many_endpoints_it_can_try() {
    let epp = Epp::start(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]).await;
    for (list, count) in [
        (None, 1),
        (Some("2"), 2),
        (Some("99"), 3),
        (Some("x"), 1),
        (Some("0"), 1),
    ] {
        let picked = epp.open_with(list).await.post_and_pick().await;
        assert_eq!(picked.split(',').count(), count, "{list:?}: {picked}");
    }
}

#[tokio::test]
async fn picks_see_each_other_before_any_scrape() {
    let epp = Epp::start(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]).await;
    let mut peers = Vec::new();
    for index in 0..9 {
        let mut peer = epp.open().await;
        peer.pick_for(&format!("prompt {index}")).await;
        peers.push(peer);
    }
    let snapshot = epp.pool.snapshot();
    assert!(
        snapshot
            .endpoints()
            .all(|endpoint| endpoint.load().in_flight() == 3)
    );
}

/// On loopback a request arrives some 2 ms after its pick; not measured it would be 20.
#[tokio::test]
async fn a_pick_is_on_its_way_for_the_round_trip_of_the_connection_that_asked() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let member = epp.pool.snapshot().endpoints().next().cloned().unwrap();
    let load = member.load();
    let picking = async {
        loop {
            let mut peer = epp.open().await;
            peer.post("/v1/chat/completions").await;
            let asked = epp.clock.now();
            peer.body(BODY, true).await;
            peer.next().await;
            // What is said below holds wherever in between the pick was made, if that was not for long.
            if epp.clock.now().since(asked) < Duration::from_millis(12) {
                return (asked, peer);
            }
            drop(peer);
            epp.until_in_flight(0).await;
        }
    };
    let (asked, _peer) = timeout(LIMIT, picking).await.expect("a quick pick");
    let unseen_at = |millis| {
        let now = asked.plus(Duration::from_millis(millis));
        let page = Scraped {
            waiting: Some(0.0),
            ..Scraped::default()
        };
        load.scraped(load.scrape_starts(now), page).unwrap();
        load.read(now, Freshness::default()).unseen
    };
    assert_eq!((unseen_at(0), unseen_at(18)), (1, 0));
}

#[tokio::test]
async fn each_thread_serves_its_connections_until_the_last_stream_ended() {
    let mut epp = Epp::start(&["10.0.0.1:8000"]).await;
    let mut peers = Vec::new();
    for _ in 0..5 {
        let mut peer = epp.open().await;
        peer.post_and_pick().await;
        peers.push(peer);
    }
    assert_eq!(epp.in_flight(), 5);
    epp.goaway.cancel();
    let refused = async {
        while TcpStream::connect(epp.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, refused).await.expect("the port is closed");
    assert_eq!(epp.in_flight(), 5, "streams go on");
    drop(peers);
    timeout(LIMIT, epp.server.join_next())
        .await
        .expect("the server ends with its last stream")
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(epp.in_flight(), 0);
}

#[tokio::test]
async fn what_a_prompt_finds_in_the_index_is_counted() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let prompt = "x".repeat(2000);
    for _ in 0..2 {
        epp.open().await.pick_for(&prompt).await;
    }
    let page = epp.metrics();
    // The span of the messages is 2000 bytes and what stands around the text, a token for each 4.
    let line = "epp_prefix_predicted_tokens_total 508\n";
    assert!(page.contains(line), "{line} is not in {page}");
}

#[tokio::test]
async fn it_takes_the_place_of_the_picker_of_the_conformance_suite() {
    let options = Options {
        conformance_headers: true,
        ..Options::default()
    };
    let members = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"];
    let epp = Epp::start_by(options, &members, Acceptor::plaintext(), |_| None).await;
    for member in members {
        let mut peer = epp.open().await;
        let selection = [("test-epp-endpoint-selection", member)];
        peer.post_with("/v1/chat/completions", &selection).await;
        peer.body(BODY, true).await;
        assert_eq!(destination(&peer.next().await.unwrap()), member);
        peer.next().await; // the body
        let headers = mk_headers(&[(":status", "200")], true);
        peer.send(Request::ResponseHeaders(headers)).await;
        let Some(Response::ResponseHeaders(reply)) = peer.next().await else {
            panic!("no headers")
        };
        let mutation = reply.response.unwrap().header_mutation.unwrap();
        let set = mutation.set_headers[0].header.as_ref().unwrap();
        assert_eq!(set.key, "x-conformance-test-served-endpoint");
        assert_eq!(
            set.raw_value, b"fail: missing",
            "this proxy does not say it"
        );
    }
}

/// Envoy sends the name of its cluster where its configuration says nothing else, and Istio's clusters have names with `|`.
#[tokio::test]
async fn calls_by_the_name_of_an_istio_cluster_are_answered() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let health = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_health(listener, epp.readiness.clone()));
    for (address, path) in [
        (
            epp.address,
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        ),
        (epp.address, "/grpc.health.v1.Health/Check"),
        (health, "/grpc.health.v1.Health/Check"),
    ] {
        let connection = TcpStream::connect(address).await.unwrap();
        let answered = timeout(
            LIMIT,
            http2_authority::test_util::is_answered(connection, path),
        );
        assert!(answered.await.unwrap().unwrap(), "{address}{path}: reset");
    }
}

#[tokio::test]
async fn health_follows_readiness_under_every_name() {
    let epp = Epp::start(&[]).await;
    let mut health = HealthClient::new(epp.channel().await);
    let ask = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let names = [
        "",
        "readiness",
        "envoy.service.ext_proc.v3.ExternalProcessor",
        "inference-extension",
    ];
    for ready in [false, true] {
        epp.readiness.set(Part::Discovery, ready);
        epp.readiness.set(Part::Metrics, ready);
        let want = if ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in names {
            assert_eq!(
                health.check(ask(name)).await.unwrap().into_inner().status(),
                want,
                "{name}"
            );
        }
        assert_eq!(
            health
                .check(ask("liveness"))
                .await
                .unwrap()
                .into_inner()
                .status(),
            ServingStatus::Serving
        );
    }
    assert_eq!(
        health.check(ask("x")).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(
        health.watch(ask("x")).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_watch_tells_each_change_and_ends_with_the_server() {
    let mut epp = Epp::start(&[]).await;
    let request = HealthCheckRequest {
        service: "readiness".to_owned(),
    };
    let mut watch = HealthClient::new(epp.channel().await)
        .watch(request)
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        timeout(LIMIT, watch.message())
            .await
            .unwrap()
            .unwrap()
            .map(|told| told.status())
    };
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    epp.readiness.set(Part::Discovery, true);
    epp.readiness.set(Part::Metrics, true);
    assert_eq!(next().await, Some(ServingStatus::Serving));
    epp.readiness.drain();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    epp.goaway.cancel();
    assert_eq!(next().await, None);
    timeout(LIMIT, epp.server.join_next())
        .await
        .expect("the watch does not hold the server")
        .unwrap()
        .unwrap()
        .unwrap();
}

/// Nothing has run yet when the server is to stop: the connection is in the kernel's queue alone.
#[tokio::test]
async fn a_connection_made_at_the_moment_of_the_goaway_is_told_to_go_away() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let tcp = std::net::TcpStream::connect(epp.address).unwrap();
    epp.goaway.cancel();
    tcp.set_nonblocking(true).unwrap();
    let tcp = TcpStream::from_std(tcp).unwrap();
    let (_client, connection) = h2::client::handshake(tcp).await.unwrap();
    let ended = timeout(LIMIT, connection).await;
    ended.expect("it ends").expect("by a GOAWAY without error");
}

#[tokio::test]
async fn an_open_stream_outlives_the_goaway_and_ends_with_the_drain() {
    let mut epp = Epp::start(&["10.0.0.1:8000"]).await;
    let mut peer = epp.open().await;
    peer.post_and_pick().await;
    peer.send(Request::ResponseHeaders(mk_headers(
        &[(":status", "200")],
        false,
    )))
    .await;
    peer.next().await;
    epp.goaway.cancel();
    peer.send(Request::ResponseBody(mk_body("data: 1\n\n", false)))
        .await;
    assert_eq!(
        streamed(&peer.next().await.unwrap()),
        ("data: 1\n\n".to_owned(), false)
    );
    epp.drained.cancel();
    let error = timeout(LIMIT, peer.replies.message())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    drop(peer);
    timeout(LIMIT, epp.server.join_next())
        .await
        .expect("the server ends")
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(epp.in_flight(), 0);
}

fn mk_files(cert_dir: Option<&Path>) -> (Acceptor, TlsReload) {
    let files = TlsFiles {
        cert_dir: cert_dir.map(Path::to_owned),
        client_ca: None,
        client_sans: Vec::new(),
        min_version: TlsVersion::Tls12,
        alpn: Alpn::H2,
    };
    let metrics = TlsMetrics::register(&mut Registry::default(), "epp");
    files.begin(metrics.port("ext_proc")).unwrap()
}

#[tokio::test]
async fn a_drain_ends_also_the_stream_of_a_peer_that_takes_no_answers() {
    let epp = Epp::start(&["10.0.0.1:8000"]).await;
    let _peer = shut::Shut::post(epp.address).await;
    epp.until_in_flight(1).await;
    epp.drained.cancel();
    epp.until_in_flight(0).await;
}

#[tokio::test]
async fn secure_serving_speaks_tls_with_h2() {
    let (acceptor, _) = mk_files(None);
    let epp = Epp::start_with(&[], acceptor).await;
    let connection = tls::connect(epp.address).await;
    assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
}

/// Which a proxy would only notice by the end of its streams.
#[tokio::test]
async fn a_client_that_says_nothing_keeps_nobody_from_being_told_to_go_away() {
    let (acceptor, _) = mk_files(None);
    let mut epp = Epp::start_with(&[], acceptor).await;
    // One for each thread, or more.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(epp.address).await.unwrap());
    }
    tls::served(epp.address).await;
    epp.goaway.cancel();
    // A handshake may take ten.
    timeout(Duration::from_secs(5), epp.server.join_next())
        .await
        .expect("the server ends")
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_rotated_certificate_is_for_new_connections_and_open_streams_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let old = tls::write_pair(dir.path());
    let (acceptor, reload) = mk_files(Some(dir.path()));
    let (hang_up, hangups) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(reload.run(ReceiverStream::new(hangups)));
    let epp = Epp::start_with(&["10.0.0.1:8000"], acceptor).await;
    assert_eq!(tls::served(epp.address).await, old);
    let mut peer = Epp::open_over(tls::channel(epp.address).await, None).await;
    peer.post_and_pick().await;

    let new = tls::write_pair(dir.path());
    hang_up.send(()).await.unwrap();
    let rotated = async { while tls::served(epp.address).await != new {} };
    timeout(LIMIT, rotated)
        .await
        .expect("new connections still see the old certificate");

    let headers = mk_headers(&[(":status", "200")], false);
    peer.send(Request::ResponseHeaders(headers)).await;
    peer.next().await;
    let end = mk_body("data: 1\n\n", true);
    peer.send(Request::ResponseBody(end)).await;
    let echoed = streamed(&peer.next().await.unwrap());
    assert_eq!(echoed, ("data: 1\n\n".to_owned(), true));
    let mut another = Epp::open_over(tls::channel(epp.address).await, None).await;
    another.post_and_pick().await;
}
