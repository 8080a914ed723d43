//! The connection that missed messages come by.

use std::net::SocketAddr;

use zmtp::{Connection, Error, Received, Role, connect};

use crate::{
    link::{Connecting, LIMITS},
    observer::ReplayResult,
    wire::{Payload, ask},
};

/// One replay.
pub(crate) struct Replay {
    pub(crate) number: u64,
    from: u64,
    state: State,
    first: Option<u64>,
    end: Option<ReplayResult>,
}

/// What it brings.
#[derive(Debug)]
pub(crate) enum ReplayEvent {
    Message(Payload),
    Ended,
    Failed(ReplayError),
}

/// Why there is no more.
#[derive(Debug)]
pub(crate) enum ReplayError {
    Connection(Error),
    Malformed,
}

enum State {
    Connecting(Connecting),
    Up(Box<Connection>),
    Over,
}

// === impl Replay ===

impl Replay {
    pub(crate) fn new(address: SocketAddr, number: u64, from: u64) -> Self {
        let connecting = connect(address, Role::Dealer, LIMITS);
        Self {
            number,
            from,
            state: State::Connecting(Box::pin(connecting)),
            first: None,
            end: None,
        }
    }

    /// What comes next. May be dropped and called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> ReplayEvent {
        loop {
            match &mut self.state {
                State::Connecting(connecting) => match connecting.await {
                    Ok(mut connection) => {
                        connection.push(&ask(self.from));
                        self.state = State::Up(Box::new(connection));
                    }
                    Err(error) => return self.fail(ReplayError::Connection(error)),
                },
                State::Up(connection) => match connection.receive().await {
                    Ok(Received::Message(message)) => match Payload::of(&message) {
                        Some(end) if end.is_end() => return self.end(),
                        Some(payload) => {
                            self.first.get_or_insert(payload.number);
                            return ReplayEvent::Message(payload);
                        }
                        None => return self.fail(ReplayError::Malformed),
                    },
                    Ok(_) => {}
                    Err(error) => return self.fail(ReplayError::Connection(error)),
                },
                State::Over => std::future::pending().await,
            }
        }
    }

    /// How it ended, if nobody waits for more of it.
    pub(crate) fn result(&self) -> ReplayResult {
        match (self.end, self.first) {
            (Some(end), _) => end,
            (None, Some(first)) if first > self.from => ReplayResult::Partial,
            (None, _) => ReplayResult::Abandoned,
        }
    }

    fn end(&mut self) -> ReplayEvent {
        // A replay from the beginning that brings nothing is one of an engine that has published nothing.
        let has_all = self.first.unwrap_or(0) <= self.from;
        let end = if has_all {
            ReplayResult::Complete
        } else {
            ReplayResult::Partial
        };
        self.end = Some(end);
        self.state = State::Over;
        ReplayEvent::Ended
    }

    fn fail(&mut self, error: ReplayError) -> ReplayEvent {
        self.end = Some(ReplayResult::Failed);
        self.state = State::Over;
        ReplayEvent::Failed(error)
    }
}

// === impl ReplayError ===

impl std::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Malformed => f.write_str(
                "an answer does not end with a number of 8 bytes and a batch: is it another port?",
            ),
        }
    }
}
