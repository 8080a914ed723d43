//! Clients that each send one request after another over a connection that is kept.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{Answered, Message, SERVED_BY};

/// The destination of a client's requests.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of Envoy's listener.
    pub address: SocketAddr,
    /// The host of the requests, by which Envoy chooses the route.
    pub host: String,
    /// The clusters whose model servers may answer.
    pub clusters: Vec<String>,
}

/// Running clients; they end with this value.
pub struct Clients {
    running: JoinSet<Result<Vec<Answered>>>,
    stop: Arc<AtomicBool>,
}

/// A connection of a client.
struct Connection {
    socket: TcpStream,
    held: BytesMut,
}

/// Bytes of the body of a request.
const BODY: usize = 1000;
/// Different prompts of each client, which it sends again and again.
const PROMPTS: usize = 4;
/// An Envoy that lives answers by then.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

const BEFORE: &str = r#"{"model":"m","max_tokens":36,"messages":[{"role":"user","content":""#;
const AFTER: &str = r#""}]}"#;
const FILLING: &str = "Tell a story about a lighthouse keeper, in plain words. ";

// === impl Clients ===

impl Clients {
    /// Starts so many clients. Call it within a runtime.
    pub fn start(target: &Target, count: usize) -> Self {
        let (target, stop) = (Arc::new(target.clone()), Arc::new(AtomicBool::new(false)));
        let mut running = JoinSet::new();
        for number in 0..count {
            running.spawn(send(Arc::clone(&target), number, Arc::clone(&stop)));
        }
        Self { running, stop }
    }

    /// Lets each client end with the answer that it waits for, and returns all answers.
    /// # Errors
    /// When a request failed, got another answer than a completion of one of the clusters, or none in time.
    pub async fn end(mut self) -> Result<Vec<Answered>> {
        self.stop.store(true, Ordering::Relaxed);
        let all = async {
            let mut answered = Vec::new();
            while let Some(ended) = self.running.join_next().await {
                answered.append(&mut ended??);
            }
            anyhow::Ok(answered)
        };
        let outcome = timeout(ANSWER_LIMIT, all).await;
        outcome.with_context(|| format!("a request has no answer after {ANSWER_LIMIT:?}"))?
    }
}

async fn send(target: Arc<Target>, number: usize, stop: Arc<AtomicBool>) -> Result<Vec<Answered>> {
    let prompts = (0..PROMPTS).map(|prompt| request(&target.host, number, prompt));
    let prompts: Vec<Vec<u8>> = prompts.collect();
    let mut connection = Connection::open(target.address).await?;
    let mut answered = Vec::new();
    for request in prompts.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begin = Instant::now();
        let (cluster, closes) = connection.call(request, &target).await?;
        let at = Instant::now();
        let took = at.saturating_duration_since(begin);
        answered.push(Answered { at, took, cluster });
        if closes {
            connection = Connection::open(target.address).await?;
        }
    }
    Ok(answered)
}

// === impl Connection ===

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address).await;
        let socket = socket.with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            held: BytesMut::with_capacity(16 << 10),
        })
    }

    /// Sends a request: which of the target's clusters answered, and whether the connection is closed after that.
    async fn call(&mut self, request: &[u8], target: &Target) -> Result<(usize, bool)> {
        self.socket.write_all(request).await?;
        loop {
            if let Some(answer) = Message::read(&self.held)? {
                let (length, closes) = (answer.length, answer.closes);
                let cluster = served_by(&answer, &target.clusters);
                let Some(cluster) = cluster else {
                    let text = String::from_utf8_lossy(&self.held);
                    let Target { host, clusters, .. } = target;
                    bail!("{host}: expected a completion of {clusters:?}, got {text}");
                };
                self.held.advance(length);
                ensure!(
                    self.held.is_empty(),
                    "{}: more than one answer",
                    target.host
                );
                return Ok((cluster, closes));
            }
            let read = self.socket.read_buf(&mut self.held).await?;
            ensure!(read > 0, "{}: the connection was closed", target.host);
        }
    }
}

/// The number of the cluster whose model server gave this completion; none if it is none of these clusters.
fn served_by(answer: &Message<'_>, clusters: &[String]) -> Option<usize> {
    let name = answer
        .header(SERVED_BY)
        .filter(|_| answer.status() == Some(200))?;
    clusters.iter().position(|cluster| cluster == name)
}

/// A chat completion of [`BODY`] bytes with a prompt that no other client and number has.
fn request(host: &str, client: usize, prompt: usize) -> Vec<u8> {
    let own = format!("Client {client}, prompt {prompt}. ");
    let room = BODY.saturating_sub(BEFORE.len() + own.len() + AFTER.len());
    let filling: String = FILLING.chars().cycle().take(room).collect();
    let body = [BEFORE, &own, &filling, AFTER].concat();
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn requests_have_a_kilobyte_and_differ() {
        let all = (0..3).flat_map(|client| (0..PROMPTS).map(move |at| request("a", client, at)));
        let all: BTreeSet<Vec<u8>> = all.collect();
        assert_eq!(all.len(), 3 * PROMPTS);
        for request in &all {
            let message = Message::read(request).unwrap().unwrap();
            assert_eq!(message.length, request.len());
            let body = &request[message.head.len() + 4..];
            assert_eq!(body.len(), BODY);
            serde_json::from_slice::<serde_json::Value>(body).unwrap();
        }
    }

    #[test]
    fn only_a_completion_of_one_of_the_clusters_counts() {
        let clusters = ["east", "south"].map(str::to_owned);
        for (status, cluster, counts) in [
            ("200 OK", "south", Some(1)),
            ("200 OK", "west", None),
            ("503 Service Unavailable", "south", None),
        ] {
            let text =
                format!("HTTP/1.1 {status}\r\n{SERVED_BY}: {cluster}\r\ncontent-length: 0\r\n\r\n");
            let answer = Message::read(text.as_bytes()).unwrap().unwrap();
            assert_eq!(served_by(&answer, &clusters), counts, "{text}");
        }
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let answer = Message::read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(served_by(&answer, &clusters), None);
    }
}
