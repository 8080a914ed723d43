//! Several servers in one process.

use std::time::Duration;

use clap::Parser;
use model_server_sim::{Args, serve_all};
use process::Shutdown;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// Far above what loopback needs, far below a hanging CI.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn each_rank_of_each_server_answers_for_itself() {
    let flags = "sim --model m --pod-name p --count 2 --port 0 --data-parallel-size 2";
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
