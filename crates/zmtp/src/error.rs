//! Why a connection ends.

use std::{io, time::Duration};

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address could not be reached.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// TCP connection and handshake took too long.
    #[error("no ZeroMQ socket answered within {0:?}")]
    Late(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(io::Error),
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing came, not even an answer to a heartbeat.
    #[error("nothing came for {0:?}, no answer to heartbeats either")]
    Silent(Duration),
    /// The peer does not keep to the protocol, or to our bounds.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// What a peer did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Another protocol is spoken there.
    #[error("the peer does not speak ZMTP: is it another port?")]
    NotZmtp,
    /// It speaks a version of before 2013.
    #[error("the peer speaks ZMTP {0}: version 3 is expected, which ZeroMQ 4.0 has")]
    Version(u8),
    /// It wants security.
    #[error("the peer wants the mechanism {0}: only NULL is supported, so switch its security off")]
    Mechanism(String),
    /// Its socket does not fit ours.
    #[error("the peer's socket is {0:?}, which does not talk to {1}: is it another port?")]
    Socket(String, &'static str),
    /// It refused us.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// A frame or message is too large.
    #[error("a message of {0} bytes or more is announced, {1} is the most")]
    TooLarge(u64, usize),
    /// A message has too many frames.
    #[error("a message has more than {0} frames")]
    Frames(usize),
    /// A frame has flags that nothing defines, or a command is malformed.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

// === impl Error ===

impl Error {
    /// Stable, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Late(_) => "late",
            Self::Io(_) => "broken",
            Self::Closed => "closed",
            Self::Silent(_) => "silent",
            Self::Protocol(error) => error.reason(),
        }
    }
}

// === impl ProtocolError ===

impl ProtocolError {
    /// Stable, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotZmtp | Self::Version(_) => "version",
            Self::Mechanism(_) => "mechanism",
            Self::Socket(..) => "socket",
            Self::Refused(_) => "refused",
            Self::TooLarge(..) | Self::Frames(_) => "too-large",
            Self::Malformed(_) => "malformed",
        }
    }
}
