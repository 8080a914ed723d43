use std::net::Ipv4Addr;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

fn mk_container(readiness: serde_json::Value) -> Container {
    serde_json::from_value(json!({
        "name": "c",
        "ports": [{"name": "health", "containerPort": 9003}],
        "readinessProbe": readiness,
    }))
    .unwrap()
}

fn mk_tally(period_s: u64, successes: u32, failures: u32) -> Tally {
    Tally::new(&ProbeSpec {
        check: Check::Tcp { port: 1 },
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(period_s),
        timeout: Duration::from_secs(1),
        success_threshold: successes,
        failure_threshold: failures,
    })
}

#[test]
fn defaults_are_those_of_kubernetes() {
    let container = mk_container(json!({"grpc": {"port": 9003, "service": "x"}}));
    let spec = Probes::of(&container).unwrap().readiness.unwrap();
    assert_eq!(spec.period, Duration::from_secs(10));
    assert_eq!(spec.timeout, Duration::from_secs(1));
    assert_eq!((spec.success_threshold, spec.failure_threshold), (1, 3));
}

#[test]
fn a_named_port_is_found_in_the_container() {
    let container = mk_container(json!({"httpGet": {"port": "health", "path": "/x"}}));
    let spec = Probes::of(&container).unwrap().readiness.unwrap();
    assert!(matches!(spec.check, Check::Http { port: 9003, .. }));

    let container = mk_container(json!({"tcpSocket": {"port": "nothing"}}));
    assert_eq!(
        Probes::of(&container),
        Err(UnsupportedProbe::Port("nothing".to_owned()))
    );
}

#[test]
fn a_probe_of_another_kind_is_refused() {
    let container = mk_container(json!({"exec": {"command": ["true"]}}));
    assert_eq!(Probes::of(&container), Err(UnsupportedProbe::Kind));
}

#[test]
fn looks_are_eager_until_the_first_success() {
    let mut tally = mk_tally(10, 1, 3);
    assert_eq!(tally.pause(), EAGER_PERIOD);
    assert_eq!(tally.count(true, EAGER_PERIOD), Some(true));
    assert_eq!(tally.pause(), Duration::from_secs(10));
}

#[test]
fn eager_failures_count_by_time_and_not_by_number() {
    let mut tally = mk_tally(1, 1, 2);
    let verdicts: Vec<_> = (0..10).map(|_| tally.count(false, tally.pause())).collect();
    assert_eq!(
        verdicts.iter().filter(|verdict| verdict.is_none()).count(),
        9
    );
    assert_eq!(verdicts.last(), Some(&Some(false)));
}

#[test]
fn a_success_in_between_starts_the_count_anew() {
    let mut tally = mk_tally(1, 1, 2);
    let second = Duration::from_secs(1);
    tally.count(true, second);
    assert_eq!(tally.count(false, second), None);
    assert_eq!(tally.count(true, second), Some(true));
    assert_eq!(tally.count(false, second), None);
    assert_eq!(tally.count(false, second), Some(false));
}

#[test]
fn several_successes_are_needed_where_asked_for() {
    let mut tally = mk_tally(1, 2, 1);
    let second = Duration::from_secs(1);
    assert_eq!(tally.count(true, second), None);
    assert_eq!(tally.count(true, second), Some(true));
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Answers one HTTP request with a status line, and gives back what was asked.
async fn answer_one(status: &str, path: &str) -> (bool, String) {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let check = Check::Http {
        port: listener.local_addr().unwrap().port(),
        path: path.to_owned(),
        host: None,
        headers: vec![("x-probe".to_owned(), "yes".to_owned())],
    };
    let serve = async {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 1024];
        let length = client.read(&mut asked).await.unwrap();
        asked.truncate(length);
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        client.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(asked).unwrap()
    };
    tokio::join!(check.look(HERE), serve)
}

#[tokio::test]
async fn http_probe_passes_from_200_to_399() {
    for (status, passes) in [
        ("200 OK", true),
        ("302 Found", true),
        ("404 Not Found", false),
        ("503 No", false),
    ] {
        assert_eq!(answer_one(status, "/healthz").await.0, passes, "{status}");
    }
    let (_, asked) = answer_one("200 OK", "/ready?full=1").await;
    assert!(
        asked.starts_with("GET /ready?full=1 HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(asked.contains("x-probe: yes"), "{asked}");
}

#[tokio::test]
async fn tcp_probe_needs_only_a_listener() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(Check::Tcp { port }.look(HERE).await);
    drop(listener);
    assert!(!Check::Tcp { port }.look(HERE).await);
}

#[tokio::test]
async fn grpc_probe_asks_for_the_service() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("up", tonic_health::ServingStatus::Serving)
        .await;
    reporter
        .set_service_status("down", tonic_health::ServingStatus::NotServing)
        .await;
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let serve = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming);
    let look = async |service: &str| {
        let service = service.to_owned();
        Check::Grpc { port, service }.look(HERE).await
    };
    let looks = async { (look("up").await, look("down").await, look("unknown").await) };
    tokio::select! {
        served = serve => panic!("the server ended: {served:?}"),
        seen = looks => assert_eq!(seen, (true, false, false)),
    }
}
