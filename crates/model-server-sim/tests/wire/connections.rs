//! Real connections on the loopback interface: protocols, clients that leave, and the drain.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model_server_sim::serve;
use process::Shutdown;
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::support::mk_settings;

/// Far above what loopback needs, far below a hanging CI.
const LIMIT: Duration = Duration::from_secs(20);

struct Running {
    address: std::net::SocketAddr,
    shutdown: Shutdown,
    tasks: JoinSet<()>,
}

async fn start(flags: &[&str]) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (settings, shutdown) = (mk_settings(flags), Shutdown::manual());
    let mut tasks = JoinSet::new();
    let serving = serve(listener, settings, shutdown.clone());
    tasks.spawn(async { serving.await.expect("an orderly end") });
    Running {
        address,
        shutdown,
        tasks,
    }
}

fn chat(extra: &str) -> String {
    format!(r#"{{"model":"m",{extra}"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

async fn send_http1(running: &Running, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(running.address)
        .await
        .expect("a connection");
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream
}

/// Reads until `wanted` was seen; gives back everything read.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = String::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while !seen.contains(wanted) {
            let count = stream.read(&mut buffer).await.expect("readable");
            assert!(count > 0, "the connection ended before {wanted:?}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    timeout(LIMIT, reading)
        .await
        .unwrap_or_else(|_| panic!("no {wanted:?} in time"));
    seen
}

async fn until_running(running: &Running, wanted: usize) {
    let line = format!("vllm:num_requests_running{{model_name=\"m\",engine=\"0\"}} {wanted}\n");
    let waiting = async {
        loop {
            let mut stream = send_http1(running, "GET", "/metrics", "").await;
            if read_until(&mut stream, "process_start_time_seconds ")
                .await
                .contains(&line)
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, waiting)
        .await
        .expect("the number of running requests in time");
}

#[tokio::test]
async fn http2_without_tls_is_spoken() {
    let mut running = start(&[]).await;
    let stream = TcpStream::connect(running.address)
        .await
        .expect("a connection");
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    running
        .tasks
        .spawn(async { connection.await.expect("an orderly end") });
    let uri = format!("http://{}/v1/chat/completions", running.address);
    let body = Full::new(Bytes::from(chat(r#""stream":true,"max_tokens":2,"#)));
    let request = Request::post(uri).body(body).expect("valid");
    let response = timeout(LIMIT, sender.send_request(request))
        .await
        .expect("in time")
        .expect("sent");
    assert_eq!(
        (response.version(), response.status()),
        (Version::HTTP_2, StatusCode::OK)
    );
    assert_eq!(
        response.headers()["x-inference-port"],
        running.address.port().to_string().as_str()
    );
    let body = Body::new(response.into_body())
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test]
async fn clients_that_close_their_connection_free_their_places() {
    let running = start(&["--time-to-first-token", "1h"]).await;
    let mut stream = send_http1(
        &running,
        "POST",
        "/v1/chat/completions",
        &chat(r#""stream":true,"#),
    )
    .await;
    read_until(&mut stream, "text/event-stream").await;
    let whole = send_http1(&running, "POST", "/v1/chat/completions", &chat("")).await;
    until_running(&running, 2).await;
    drop(stream);
    until_running(&running, 1).await;
    drop(whole);
    until_running(&running, 0).await;
}

#[tokio::test]
async fn a_drain_finishes_what_was_begun_and_takes_nothing_new() {
    let mut running = start(&["--inter-token-latency", "20ms"]).await;
    let body = chat(r#""stream":true,"max_tokens":10,"#);
    let mut stream = send_http1(&running, "POST", "/v1/chat/completions", &body).await;
    read_until(&mut stream, "assistant").await;
    running.shutdown.drain.cancel();
    read_until(&mut stream, "[DONE]").await;
    timeout(LIMIT, running.tasks.join_next())
        .await
        .expect("it ended")
        .expect("one")
        .expect("no panic");
    let refused = TcpStream::connect(running.address).await;
    let refused = refused.expect_err("nobody listens").kind();
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_drain_cuts_what_takes_too_long() {
    let mut running = start(&["--time-to-first-token", "1h", "--drain-timeout", "10ms"]).await;
    let mut stream = send_http1(&running, "POST", "/v1/chat/completions", &chat("")).await;
    until_running(&running, 1).await;
    running.shutdown.drain.cancel();
    timeout(LIMIT, running.tasks.join_next())
        .await
        .expect("it ended")
        .expect("one")
        .expect("no panic");
    let end = timeout(LIMIT, stream.read(&mut [0; 16]))
        .await
        .expect("the end in time");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut running = start(&["--time-to-first-token", "1h", "--drain-timeout", "1h"]).await;
    let _stream = send_http1(&running, "POST", "/v1/chat/completions", &chat("")).await;
    until_running(&running, 1).await;
    running.shutdown.drain.cancel();
    running.shutdown.now.cancel();
    timeout(LIMIT, running.tasks.join_next())
        .await
        .expect("it ended")
        .expect("one")
        .expect("no panic");
}

#[tokio::test]
async fn a_reset_request_gets_no_byte_and_others_go_on() {
    let running = start(&[]).await;
    let mut stream = send_http1(&running, "POST", "/admin/config", r#"{"reset":1}"#).await;
    read_until(&mut stream, "200 OK").await;
    let mut stream = send_http1(&running, "POST", "/v1/chat/completions", &chat("")).await;
    let end = timeout(LIMIT, stream.read(&mut [0; 16]))
        .await
        .expect("the end in time");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    until_running(&running, 0).await;

    let stream = TcpStream::connect(running.address)
        .await
        .expect("a connection");
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    for (path, body, answered) in [
        ("/v1/chat/completions", chat(""), false),
        ("/admin/config", r#"{"reset":null}"#.to_owned(), true),
        ("/v1/chat/completions", chat(""), true),
    ] {
        let uri = format!("http://{}{path}", running.address);
        let body = Full::new(Bytes::from(body));
        let request = Request::post(uri).body(body).expect("valid");
        let response = timeout(LIMIT, sender.send_request(request))
            .await
            .expect("in time");
        assert_eq!(response.is_ok(), answered, "{path}: {response:?}");
    }
}

/// Time stands still while there is something to do, and then leaps to the next timer. As in uvicorn, the time that a request
/// takes does not count.
#[rstest]
#[case::as_uvicorn(&[], Some(5))]
#[case::longer(&["--keep-alive-timeout", "90s"], Some(90))]
#[case::never(&["--keep-alive-timeout", "0"], None)]
#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_its_time(
    #[case] flags: &[&str],
    #[case] seconds: Option<u64>,
) {
    let running = start(&[flags, &["--time-to-first-token", "10s"]].concat()).await;
    let body = chat(r#""stream":true,"max_tokens":1,"#);
    let mut stream = send_http1(&running, "POST", "/v1/chat/completions", &body).await;
    read_until(&mut stream, "[DONE]\n\n\r\n0\r\n\r\n").await;
    let answered = Instant::now();
    let end = timeout(Duration::from_hours(1), stream.read(&mut [0; 16])).await;
    let closed = end.ok().map(|end| {
        assert_eq!(end.expect("an orderly end"), 0);
        answered.elapsed().as_secs()
    });
    assert_eq!(closed, seconds);
}

/// One request on a connection that stays open: the whole response.
async fn ask(stream: &mut TcpStream, method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let head = read_until(stream, "\r\n\r\n").await;
    let (head, begun) = head.split_once("\r\n\r\n").expect("the end of the headers");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.expect("a length").parse().expect("a number");
    let mut rest = vec![0; length - begun.len()];
    let reading = stream.read_exact(&mut rest);
    timeout(LIMIT, reading)
        .await
        .expect("in time")
        .expect("readable");
    format!("{head}\r\n\r\n{begun}{}", String::from_utf8_lossy(&rest))
}

#[tokio::test]
async fn each_api_server_has_its_connections_and_responses() {
    let flags = ["--api-server-count", "2", "--responses-store", "10"];
    let running = start(&flags).await;
    let connect = || async {
        let stream = TcpStream::connect(running.address).await;
        stream.expect("a connection")
    };
    let mut connections = [connect().await, connect().await, connect().await];
    let body = r#"{"model":"m","input":"hi"}"#;
    let response = ask(&mut connections[0], "POST", "/v1/responses", body).await;
    let id = response.split("resp_").nth(1).expect("an id");
    let id: String = id.chars().take_while(char::is_ascii_hexdigit).collect();
    let path = format!("/v1/responses/resp_{id}");
    for (nth, status) in [(0, "200 OK"), (1, "404 Not Found"), (2, "200 OK")] {
        let response = ask(&mut connections[nth], "GET", &path, "").await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}")),
            "{nth}: {response}"
        );
    }
}
