use std::net::SocketAddr;

use clap::Parser;
use metadata::Limits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// The program on ports of its own.
struct Program {
    calls: SocketAddr,
    admin: SocketAddr,
    shutdown: Shutdown,
    tasks: JoinSet<anyhow::Result<()>>,
}

// === impl Program ===

impl Program {
    async fn start(drain_timeout: &str) -> Self {
        let flags = ["metadata-center", "--drain-timeout", drain_timeout];
        let Args {
            listen, callers, ..
        } = Args::try_parse_from(flags).unwrap();
        let open = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ports = Ports {
            calls: open().await,
            admin: open().await,
        };
        let (calls, admin) = (ports.calls.local_addr(), ports.admin.local_addr());
        let mut registry = Registry::default();
        let security = Security::of(callers, NAMES, &mut registry).unwrap();
        let made = Made {
            listen,
            accept_joined_hashes: false,
            security,
            ports,
            metrics: Metrics::register(&mut registry),
            registry,
        };
        let engine = Memory::new(Limits::default(), Clock::start());
        let shutdown = Shutdown::manual();
        let mut tasks = JoinSet::new();
        tasks.spawn(made.run(engine, shutdown.clone()));
        let program = Self {
            calls: calls.unwrap(),
            admin: admin.unwrap(),
            shutdown,
            tasks,
        };
        program.until_status("/readyz", 200).await;
        program
    }

    async fn until_status(&self, path: &str, expected: u16) {
        let mut last = String::new();
        let waiting = async {
            while !last.starts_with(&format!("HTTP/1.1 {expected}")) {
                last = get(self.admin, path).await;
            }
        };
        let waited = timeout(LIMIT, waiting).await;
        waited.unwrap_or_else(|_| panic!("{path} is not {expected}: {last}"));
    }

    async fn ended(mut self) -> anyhow::Result<()> {
        let ended = timeout(LIMIT, self.tasks.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    let reading = tcp.read_to_string(&mut reply);
    timeout(LIMIT, reading).await.expect("a reply").unwrap();
    reply
}

#[tokio::test]
async fn probes_are_on_both_ports_and_calls_on_one() {
    let program = Program::start("10s").await;
    let _ = get(program.calls, "/v1/load/stats?cluster=c").await;
    for port in [program.calls, program.admin] {
        let page = get(port, "/metrics").await;
        let counted = "requests_total{route=\"GET /v1/load/stats\",status=\"200\"} 1\n";
        assert!(page.contains(counted), "{page}");
        assert!(page.contains("metadata_center_clusters 0\n"), "{page}");
        assert!(get(port, "/healthz").await.contains("sweep: goes round"));
    }
    let calls = get(program.admin, "/v1/clusters").await;
    assert!(calls.starts_with("HTTP/1.1 404"), "{calls}");
}

#[tokio::test]
async fn a_drain_is_not_ready_at_once_and_serves_for_a_while() {
    let program = Program::start("60s").await;
    program.shutdown.drain.cancel();
    program.until_status("/readyz", 503).await;
    let clusters = get(program.calls, "/v1/clusters").await;
    assert!(clusters.starts_with("HTTP/1.1 200"), "{clusters}");
}

#[tokio::test]
async fn a_drain_ends_although_a_connection_is_open() {
    let program = Program::start("2s").await;
    let _open = TcpStream::connect(program.calls).await.unwrap();
    program.shutdown.drain.cancel();
    program.ended().await.unwrap();
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let program = Program::start("10m").await;
    program.shutdown.drain.cancel();
    program.until_status("/readyz", 503).await;
    program.shutdown.now.cancel();
    program.ended().await.unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_ends_the_program() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let flags = [
        "metadata-center",
        "--host",
        "127.0.0.1",
        "--admin-port",
        "0",
        "--port",
        &port,
    ];
    let args = Args::try_parse_from(flags).unwrap();
    let error = run(args, Shutdown::manual()).await.unwrap_err();
    assert!(
        error.to_string().contains("(--port): is it taken?"),
        "{error}"
    );
}
