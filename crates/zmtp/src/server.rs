//! The side that listens: connections of peers, and what is published to them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{
        broadcast::{self, Receiver, error::RecvError},
        watch,
    },
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::{Connection, Limits, Received},
    error::Error,
    handshake::Role,
    message::Message,
};

/// Sends messages to all who subscribed to their beginning. To whom is slower than it publishes the oldest are lost, and
/// nobody is told: so it is with ZeroMQ.
#[derive(Debug)]
pub struct Publisher {
    messages: broadcast::Sender<Message>,
    /// Changes when all subscribers are to go.
    lives: watch::Sender<u64>,
    subscribers: Arc<AtomicUsize>,
}

/// Counts a peer while it has a subscription.
struct Counted {
    count: Arc<AtomicUsize>,
    is_counted: bool,
}

/// Peers at a time: a subscriber for each of many routers.
const MAX_PEERS: usize = 256;
/// Subscriptions of a peer.
const MAX_PREFIXES: usize = 64;
/// Bytes that wait for one peer beside the messages in the queue.
const MAX_UNSENT: usize = 1 << 20;
/// Others may have used up what the system has.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts peers as `role` until `stop`, and lets `handle` have each; then all end at once.
pub async fn serve<F, Handled>(
    listener: TcpListener,
    role: Role,
    limits: Limits,
    stop: CancellationToken,
    handle: F,
) where
    F: Fn(Connection) -> Handled,
    Handled: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut shaking = JoinSet::new();
    let mut peers = JoinSet::new();
    loop {
        let has_room = shaking.len() + peers.len() < MAX_PEERS;
        tokio::select! {
            () = stop.cancelled() => return,
            Some(shaken) = shaking.join_next() => match shaken {
                Ok(Ok(connection)) => { peers.spawn(handle(connection)); }
                Ok(Err(error)) => tracing::debug!(%error, "no handshake"),
                Err(error) => tracing::error!(%error, "a handshake's task failed"),
            },
            Some(ended) = peers.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a peer is gone"),
                Err(error) => tracing::error!(%error, "a peer's task failed"),
            },
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, _)) => { shaking.spawn(open(stream, role, limits)); }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn open(stream: TcpStream, role: Role, limits: Limits) -> Result<Connection, Error> {
    stream.set_nodelay(true).map_err(Error::Io)?;
    Connection::open(stream, role, limits).await
}

// === impl Publisher ===

impl Publisher {
    /// `queue`: messages that a slow subscriber may be behind.
    pub fn new(queue: usize) -> Self {
        Self {
            messages: broadcast::Sender::new(queue.max(1)),
            lives: watch::Sender::new(0),
            subscribers: Arc::default(),
        }
    }

    /// Peers that have a subscription now.
    pub fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::Relaxed)
    }

    /// Sends a message, whose first frame is its topic, to all who want it now; does not wait for them.
    pub fn publish(&self, message: Message) {
        // nobody may be there
        let _receivers = self.messages.send(message);
    }

    /// Ends all connections; peers may come again.
    pub fn disconnect(&self) {
        self.lives.send_modify(|life| *life = life.wrapping_add(1));
    }

    /// Accepts subscribers until `stop`.
    pub async fn serve(&self, listener: TcpListener, limits: Limits, stop: CancellationToken) {
        serve(listener, Role::Publisher, limits, stop, |connection| {
            // what ends all connections ends those that are there now
            let mut lives = self.lives.subscribe();
            lives.mark_unchanged();
            send(
                connection,
                self.messages.subscribe(),
                lives,
                Counted::new(self.subscribers.clone()),
            )
        })
        .await;
    }
}

async fn send(
    mut connection: Connection,
    mut messages: Receiver<Message>,
    mut lives: watch::Receiver<u64>,
    mut counted: Counted,
) -> Result<(), Error> {
    let mut prefixes: Vec<Bytes> = Vec::new();
    loop {
        let takes = !prefixes.is_empty() && connection.unsent() < MAX_UNSENT;
        tokio::select! {
            _ = lives.changed() => return Ok(()),
            received = connection.receive() => match received? {
                Received::Subscribe(prefix) => {
                    if prefixes.is_empty() {
                        // what was published before is not for it
                        messages = messages.resubscribe();
                    }
                    if prefixes.len() < MAX_PREFIXES {
                        prefixes.push(prefix);
                        counted.set(true);
                    }
                }
                Received::Cancel(prefix) => {
                    if let Some(at) = prefixes.iter().position(|it| *it == prefix) {
                        prefixes.swap_remove(at);
                    }
                    counted.set(!prefixes.is_empty());
                }
                Received::Message(_) => {}
            },
            message = messages.recv(), if takes => match message {
                Ok(message) => {
                    let topic = message.frames().first().map_or(&[][..], |it| it);
                    if prefixes.iter().any(|prefix| topic.starts_with(prefix)) {
                        connection.push(&message);
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return connection.flush().await,
            },
        }
    }
}

// === impl Counted ===

impl Counted {
    fn new(count: Arc<AtomicUsize>) -> Self {
        Self {
            count,
            is_counted: false,
        }
    }

    fn set(&mut self, is_counted: bool) {
        match (self.is_counted, is_counted) {
            (false, true) => self.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.count.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.is_counted = is_counted;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests;
