//! A client that sees every byte.

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use metadata::Limits;
use metadata_center::{Acceptor, Engine, Memory, Server, Service, Settings};
use moment::Clock;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(20);

/// A service on a port of its own.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
}

/// One connection.
pub(crate) struct Client {
    tcp: TcpStream,
    read: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

pub(crate) fn memory() -> Memory {
    Memory::new(Limits::default(), Clock::start())
}

// === impl Served ===

impl Served {
    pub(crate) async fn start(engine: impl Engine) -> Self {
        Self::with(engine, Settings::default()).await
    }

    pub(crate) async fn with(engine: impl Engine, settings: Settings) -> Self {
        Self::over(Acceptor::plaintext(), engine, settings).await
    }

    pub(crate) async fn over(acceptor: Acceptor, engine: impl Engine, settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server {
            handler: Service::new(Arc::new(engine), settings),
            acceptor,
            threads: NonZeroUsize::new(2).unwrap(),
            refused: Counter::default(),
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let serving = server.serve(listener, CancellationToken::new(), stop.clone());
        tasks.spawn(async { serving.await.unwrap() });
        Self {
            address,
            stop,
            tasks,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client {
            tcp: TcpStream::connect(self.address).await.unwrap(),
            read: Vec::new(),
        }
    }
}

// === impl Client ===

impl Client {
    /// `line` is the method and the target; the trace id is `t`.
    pub(crate) async fn ask(&mut self, line: &str, body: &str) -> Reply {
        self.ask_with(line, "TraceId: t\r\n", body).await
    }

    /// The body of the reply to a request that succeeds.
    pub(crate) async fn ok(&mut self, line: &str, body: &str) -> String {
        let reply = self.ask(line, body).await;
        assert_eq!(reply.status, 200, "{line} {body}: {reply:?}");
        assert_eq!(reply.headers["content-type"], "application/json");
        reply.body
    }

    pub(crate) async fn ask_with(&mut self, line: &str, headers: &str, body: &str) -> Reply {
        let length = body.len();
        let head =
            format!("{line} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n");
        self.send(&head).await;
        self.send(body).await;
        self.reply().await
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.tcp.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        timeout(LIMIT, self.read_reply()).await.expect("a reply")
    }

    /// The server wants the body.
    pub(crate) async fn continued(&mut self) {
        let mut line = [0; 25];
        let reading = timeout(LIMIT, self.tcp.read_exact(&mut line));
        reading.await.expect("a line").unwrap();
        assert_eq!(line, *b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Whether the server closed the connection without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        let read = timeout(LIMIT, self.tcp.read(&mut byte)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }

    async fn read_reply(&mut self) -> Reply {
        let head = loop {
            if let Some(end) = self.read.windows(4).position(|it| it == b"\r\n\r\n") {
                let head: Vec<u8> = self.read.drain(..end + 4).collect();
                break String::from_utf8(head).unwrap();
            }
            self.read_more().await;
        };
        let mut lines = head.lines();
        let status = lines.next().unwrap();
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        let pairs = lines.filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<_, _> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let length: usize = headers["content-length"].parse().unwrap();
        while self.read.len() < length {
            self.read_more().await;
        }
        let body = self.read.drain(..length).collect();
        Reply {
            status,
            headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    async fn read_more(&mut self) {
        let read = self.tcp.read_buf(&mut self.read).await.unwrap();
        assert!(
            read > 0,
            "closed after {:?}",
            String::from_utf8_lossy(&self.read)
        );
    }
}
