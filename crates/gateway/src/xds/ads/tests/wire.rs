//! The port as clients meet it: over TLS, with each certificate that they may show.

use std::time::Duration;

use rstest::rstest;
use tonic::Code;
use tonic::transport::Endpoint;

use super::mk_snapshot;
use crate::world::Key;
use crate::xds::Kind;
use crate::xds::ads::budget::Limits;
use crate::xds::ads::view::MAX_NAMES;
use crate::xds::proto::discovery::DeltaDiscoveryRequest;

mod memory;
mod port;

use port::{Port, Shown, begin, open};

const NOW: u64 = 1_800_000_000;
const UID: &str = "uid-1";
const LIMIT: Duration = Duration::from_secs(20);

/// Specification 11, test 37. None: the handshake fails, so that nothing is read of the client.
#[rstest]
#[case::its_own(Shown::Of("west", "gw"), "ns/gw", Some(Code::Ok))]
#[case::another_gateways_node(Shown::Of("west", "gw"), "ns/other", Some(Code::PermissionDenied))]
#[case::of_a_gateway_that_is_no_more(
    Shown::Of("west", "gw*"),
    "ns/gw",
    Some(Code::PermissionDenied)
)]
#[case::no_gateways_node(Shown::Of("west", "gw"), "", Some(Code::InvalidArgument))]
#[case::of_another_cluster(Shown::Of("east", "gw"), "ns/gw", Some(Code::PermissionDenied))]
#[case::of_another_authority(Shown::Foreign, "ns/gw", None)]
#[case::no_certificate(Shown::Nothing, "ns/gw", None)]
#[tokio::test(flavor = "multi_thread")]
async fn only_envoys_of_a_gateway_are_served_its_configuration(
    #[case] shown: Shown,
    #[case] node_cluster: &str,
    #[case] expected: Option<Code>,
) {
    let port = Port::open(Limits::default(), true).await;
    let outcome = match port.connect(shown).await {
        Err(problem) => Err(problem),
        Ok(channel) => match begin(channel, node_cluster).await {
            Ok(_stream) => {
                let connected = port.proxies.connected();
                assert!(connected[0].authenticated);
                assert_eq!(connected[0].gateway, Key::new("ns", "gw"));
                Ok(Code::Ok)
            }
            Err(status) => Ok(status.code()),
        },
    };
    match expected {
        Some(code) => assert_eq!(outcome, Ok(code)),
        // with TLS 1.3 a client learns only by its first read that its certificate is refused
        None => assert!(
            matches!(
                outcome,
                Err(_) | Ok(Code::Cancelled | Code::Unknown | Code::Unavailable)
            ),
            "{outcome:?}"
        ),
    }
    if expected != Some(Code::Ok) {
        assert_eq!(port.proxies.connected().len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_an_envoy_is_taken_at_its_word_and_is_not_authenticated() {
    let port = Port::open(Limits::default(), false).await;
    let address = format!("http://{}", port.address);
    let channel = Endpoint::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap();
    let _stream = begin(channel, "ns/other").await.unwrap();
    let connected = port.proxies.connected();
    assert_eq!(connected[0].gateway, Key::new("ns", "other"));
    assert!(!connected[0].authenticated);
}

/// One Gateway's connections leave the others' alone; a place is free again when a connection has ended.
#[tokio::test(flavor = "multi_thread")]
async fn connections_and_streams_of_a_gateway_are_bounded() {
    let limits = Limits {
        connections: 100,
        of_gateway: 2,
        ..Limits::default()
    };
    let port = Port::open(limits, true).await;
    let own = Shown::Of("west", "gw");
    let (one, two) = (
        port.connect(own).await.unwrap(),
        port.connect(own).await.unwrap(),
    );
    let first = begin(one.clone(), "ns/gw").await.unwrap();
    let _second = begin(two, "ns/gw").await.unwrap();
    // a third stream on a connection that is there
    let status = begin(one.clone(), "ns/gw").await.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // and a third connection, which is closed before it can say anything
    let third = match port.connect(own).await {
        Ok(channel) => begin(channel, "ns/gw")
            .await
            .map(drop)
            .map_err(|status| status.code()),
        Err(_) => Err(Code::Unavailable),
    };
    assert!(
        matches!(
            third,
            Err(Code::Cancelled | Code::Unavailable | Code::Unknown)
        ),
        "{third:?}"
    );
    let other = port.connect(Shown::Of("west", "other")).await.unwrap();
    begin(other, "ns/other").await.unwrap();

    drop((first, one));
    let started = tokio::time::Instant::now();
    loop {
        let again = match port.connect(own).await {
            Ok(channel) => begin(channel, "ns/gw")
                .await
                .map(drop)
                .map_err(|status| status.to_string()),
            Err(problem) => Err(problem),
        };
        let Err(problem) = again else { break };
        assert!(started.elapsed() < LIMIT, "{problem}");
        tokio::task::yield_now().await;
    }
}

/// 40,001 names, short ones; and fewer of so many bytes.
#[rstest]
#[case::many(MAX_NAMES + 1, 1)]
#[case::long(8_001, 1_000)]
#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_stream_are_bounded(#[case] count: usize, #[case] length: usize) {
    let port = Port::open(Limits::default(), true).await;
    let channel = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let mut stream = begin(channel, "ns/gw").await.unwrap();
    // in two requests, each of which is not too much by itself
    let mut sent = 0;
    for part in [count / 2, count - count / 2] {
        let names = (sent..sent + part).map(|at| format!("{at:0length$}"));
        sent += part;
        let request = DeltaDiscoveryRequest {
            type_url: Kind::Endpoints.type_url().to_owned(),
            resource_names_subscribe: names.collect(),
            ..DeltaDiscoveryRequest::default()
        };
        stream.requests.send(request).await.unwrap();
    }
    let end = loop {
        if let Err(status) = stream.next().await {
            break status;
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
}

/// An Envoy whose certificate is a former one of a Gateway may serve edges, and others wait for it. Nobody else makes them wait.
#[rstest]
#[case::former(Shown::Of("east", "gw"), "ns/gw", true)]
#[case::former_with_another_node(Shown::Of("east", "gw"), "ns/other", true)]
#[case::of_a_gateway_that_is_no_more(Shown::Of("east", "gw*"), "ns/gw", false)]
#[case::of_no_gateway(Shown::Of("east", "absent"), "ns/gw", false)]
#[case::of_another_gateway(Shown::Of("west", "other"), "ns/gw", false)]
#[case::of_another_authority(Shown::Foreign, "ns/gw", false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_stream_is_noted_for_the_gateway_of_its_certificate(
    #[case] shown: Shown,
    #[case] node_cluster: &str,
    #[case] is_noted: bool,
) {
    let port = Port::open(Limits::default(), true).await;
    if let Ok(channel) = port.connect(shown).await {
        assert!(begin(channel, node_cluster).await.is_err());
    }
    let own = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let _stream = begin(own, "ns/gw").await.unwrap();
    let other = port.connect(Shown::Of("west", "other")).await.unwrap();
    let _other = begin(other, "ns/other").await.unwrap();
    assert_eq!(port.proxies.has_denied(&Key::new("ns", "gw")), is_noted);
    assert!(!port.proxies.has_denied(&Key::new("ns", "other")));
    assert!(!port.proxies.has_denied(&Key::new("ns", "absent")));
}

/// What Envoys of one Gateway send, keep and are sent counts together; those of another one are served on.
#[rstest]
#[case::requests(Limits { requests: 200_000, ..Limits::default() })]
#[case::names(Limits { names: 100_000, ..Limits::default() })]
#[tokio::test(flavor = "multi_thread")]
async fn envoys_of_a_gateway_share_a_budget(#[case] limits: Limits) {
    let port = Port::open(limits, true).await;
    let channel = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let mut streams = Vec::new();
    let mut ends = 0;
    for _ in 0..4 {
        let channel = port.connect(Shown::Of("west", "gw")).await.unwrap();
        let stream = begin(channel, "ns/gw").await.unwrap();
        stream.ask(300, 100).await;
        streams.push(stream);
    }
    for stream in &mut streams {
        if let Err(status) = stream.next().await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            ends += 1;
        }
    }
    if limits.names < Limits::default().names {
        assert_eq!(ends, 2);
    } else {
        // each is read at once
        assert_eq!(ends, 0);
        // and so is one that is larger than what all have together
        let mut large = begin(channel, "ns/gw").await.unwrap();
        large.ask(3_000, 100).await;
        large.next().await.unwrap();
    }
    let other = port.connect(Shown::Of("west", "other")).await.unwrap();
    let mut other = begin(other, "ns/other").await.unwrap();
    other.ask(300, 100).await;
    other.next().await.unwrap();
}

/// What an Envoy does with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    AnswersLate,
    ReadsAlone,
    /// Its connection has no room for it.
    TakesNothing,
}

/// One that answers late, or never, leaves the others of its Gateway without responses, but not for ever, and no other Gateway.
#[rstest]
#[case::late(Silent::AnswersLate)]
#[case::never(Silent::ReadsAlone)]
#[case::stuck(Silent::TakesNothing)]
#[tokio::test(flavor = "multi_thread")]
async fn responses_wait_for_answers_to_others(#[case] does: Silent) {
    let limits = Limits {
        responses: 20_000,
        answer: match does {
            Silent::AnswersLate => LIMIT,
            Silent::ReadsAlone | Silent::TakesNothing => Duration::from_millis(100),
        },
        ..Limits::default()
    };
    let port = Port::open(limits, true).await;
    let large = mk_snapshot(&[("a", &"x".repeat(8_000))], "x");
    port.publish(&large, UID);
    let own = Shown::Of("west", "gw");
    let window = (does == Silent::TakesNothing).then_some(1);
    let stuck = port.connect_with_window(own, window).await.unwrap();
    let mut silent = open(stuck, "ns/gw").await.unwrap();
    if does == Silent::TakesNothing {
        // the response to this one finds no room any more
        silent.ask(1, 10).await;
    } else {
        silent.next().await.unwrap();
    }
    let waiting = begin(port.connect(own).await.unwrap(), "ns/gw");
    let other = port.connect(Shown::Of("west", "other")).await.unwrap();
    begin(other, "ns/other").await.unwrap();
    let mut waiting = std::pin::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    match does {
        Silent::AnswersLate => silent.answer().await,
        Silent::ReadsAlone => {
            // events that come often do not put it off
            let events = async {
                let mut often = tokio::time::interval(Duration::from_millis(500));
                loop {
                    often.tick().await;
                    port.publish(&large, UID);
                }
            };
            let end = tokio::select! {
                end = silent.next() => end.err().unwrap(),
                () = events => unreachable!(),
            };
            assert_eq!(end.code(), Code::DeadlineExceeded, "{end}");
        }
        Silent::TakesNothing => {}
    }
    waiting.await.unwrap();
}

/// The Envoys of its namesake are cut off when a Gateway is made anew, on streams that they have and on new ones.
#[tokio::test(flavor = "multi_thread")]
async fn connection_of_a_former_gateway_ends() {
    let port = Port::open(Limits::default(), true).await;
    let channel = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let mut stream = begin(channel, "ns/gw").await.unwrap();
    port.publish(&mk_snapshot(&[("a", "of the new one")], "x"), "uid-2");
    let end = loop {
        match stream.next().await {
            Ok(response) => assert_eq!(response.resources.len(), 0, "{response:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::PermissionDenied, "{end}");
    // the next stream would be on the same connection, with the same certificate
    let started = tokio::time::Instant::now();
    while !stream.requests.is_closed() {
        assert!(started.elapsed() < LIMIT, "the connection is there still");
        tokio::task::yield_now().await;
    }
}

/// What an Envoy with 10,000 clusters sends when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_envoy_can_come_back() {
    let port = Port::open(Limits::default(), true).await;
    let channel = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let mut stream = begin(channel, "ns/gw").await.unwrap();
    let names: Vec<String> = (0..10_000).map(|at| format!("import/{at:093}")).collect();
    for kind in [Kind::Endpoints, Kind::Routes] {
        let versions = names
            .iter()
            .map(|name| (name.clone(), format!("{NOW:016x}")));
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            initial_resource_versions: versions.collect(),
            resource_names_subscribe: names.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        stream.requests.send(request).await.unwrap();
    }
    let more = DeltaDiscoveryRequest {
        type_url: Kind::Endpoints.type_url().to_owned(),
        resource_names_subscribe: vec!["absent".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    stream.requests.send(more).await.unwrap();
    assert_eq!(stream.next().await.unwrap().removed_resources, ["absent"]);
}
