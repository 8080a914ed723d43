//! Several servers in one process.

use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use model_server_sim::{Args, Settings, serve_all};
use process::Shutdown;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// Far above what loopback needs, far below a hanging CI.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts all servers, and returns their listeners and addresses.
async fn bound(flags: &str) -> (Vec<(TcpListener, Settings)>, Vec<SocketAddr>) {
    let settings = Args::try_parse_from(flags.split(' '))
        .expect("valid flags")
        .settings()
        .expect("valid settings");
    let (mut servers, mut addresses) = (Vec::new(), Vec::new());
    for settings in settings {
        let listener = TcpListener::bind(settings.address).await.expect("a port");
        addresses.push(listener.local_addr().expect("an address"));
        servers.push((listener, settings));
    }
    (servers, addresses)
}

#[tokio::test]
async fn each_rank_of_each_server_answers_for_itself() {
    let flags = "sim --model m --pod-name p --count 2 --port 0 --data-parallel-size 2";
    let (servers, addresses) = bound(flags).await;
    let hosts: Vec<_> = addresses.iter().map(|at| at.ip().to_string()).collect();
    assert_eq!(hosts, ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]);
    let shutdown = Shutdown::manual();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_all(servers, shutdown.clone()));

    for (address, (pod, rank)) in
        addresses
            .iter()
            .zip([("p-0", 0), ("p-0", 1), ("p-1", 0), ("p-1", 1)])
    {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = "GET /metrics HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut page = String::new();
        let reading = stream.read_to_string(&mut page);
        timeout(LIMIT, reading)
            .await
            .expect("in time")
            .expect("read");
        for part in [
            format!("x-inference-pod: {pod}\r\n"),
            format!("x-inference-port: {}\r\n", address.port()),
            format!("vllm:num_requests_running{{model_name=\"m\",engine=\"{rank}\"}} 0\n"),
        ] {
            assert!(page.contains(&part), "{part} is not in {page}");
        }
    }

    shutdown.drain.cancel();
    let ended = timeout(LIMIT, tasks.join_next()).await.expect("in time");
    ended
        .expect("one")
        .expect("no panic")
        .expect("an orderly end");
}

/// Sends a prompt of two blocks, to a rank if one is named. Returns the status and the reply's number of cached tokens.
async fn prompt(address: SocketAddr, rank: &str) -> (String, Option<u64>) {
    let body = r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":1}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n{rank}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    let reading = stream.read_to_string(&mut reply);
    timeout(LIMIT, reading)
        .await
        .expect("in time")
        .expect("read");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
    (status, cached.as_u64())
}

#[tokio::test]
async fn ranks_behind_one_port_have_caches_of_their_own_and_are_named_by_a_header() {
    let flags = "sim --model m --pod-name p --port 0 --bind 127.0.0.1 --block-size 4 --data-parallel-size 2";
    for (more, second) in [("--data-parallel-shared-ports", "200"), ("", "400")] {
        let (servers, addresses) = bound(format!("{flags} {more}").trim_end()).await;
        let shutdown = Shutdown::manual();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_all(servers, shutdown));
        let port = addresses[0];
        let (first, other) = ("x-data-parallel-rank: 0\r\n", "x-data-parallel-rank: 1\r\n");
        assert_eq!(prompt(port, first).await, ("200".to_owned(), Some(0)));
        assert_eq!(prompt(port, first).await, ("200".to_owned(), Some(8)));
        let cached = (second == "200").then_some(0);
        assert_eq!(prompt(port, other).await, (second.to_owned(), cached));
        let beyond = prompt(port, "x-data-parallel-rank: 2\r\n").await;
        assert_eq!(beyond, ("400".to_owned(), None));
        // a value that is not a number is ignored
        let odd = prompt(port, "x-data-parallel-rank: first\r\n").await;
        assert_eq!(odd, ("200".to_owned(), Some(8)));
    }
}
