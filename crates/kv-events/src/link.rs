//! The connection that events come by.

use std::{future::Future, net::SocketAddr, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep_until};
use zmtp::{Connection, Error, Limits, Message, Received, Role, connect};

/// A connection that may be there.
pub(crate) struct Link {
    address: SocketAddr,
    state: State,
}

/// What happened to it.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    Connected,
    Message(Message),
    Lost(Error),
}

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

enum State {
    /// Until somebody says when to connect.
    Idle,
    Waiting(Instant),
    Connecting(Connecting),
    Up(Box<Connection>),
}

/// 8 MiB, where a prompt of a million ids has some 5, and 5 s.
pub(crate) const LIMITS: Limits = Limits {
    max_message: 8 << 20,
    handshake: Duration::from_secs(5),
};

// === impl Link ===

impl Link {
    /// It connects at once.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            state: State::Waiting(Instant::now()),
        }
    }

    /// Connects later.
    pub(crate) fn connect_after(&mut self, wait: Duration) {
        self.state = State::Waiting(Instant::now() + wait);
    }

    /// What happens next. May be dropped and called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Idle => std::future::pending().await,
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    let connecting = connect(self.address, Role::Subscriber, LIMITS);
                    self.state = State::Connecting(Box::pin(connecting));
                }
                State::Connecting(connecting) => match connecting.await {
                    Ok(mut connection) => {
                        connection.subscribe(b"");
                        self.state = State::Up(Box::new(connection));
                        return LinkEvent::Connected;
                    }
                    Err(error) => return self.lost(error),
                },
                State::Up(connection) => match connection.receive().await {
                    Ok(Received::Message(message)) => return LinkEvent::Message(message),
                    Ok(_) => {}
                    Err(error) => return self.lost(error),
                },
            }
        }
    }

    fn lost(&mut self, error: Error) -> LinkEvent {
        self.state = State::Idle;
        LinkEvent::Lost(error)
    }
}
