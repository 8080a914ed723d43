//! One connection: its buffers, its messages, its heartbeats.

use std::{future::poll_fn, io, net::SocketAddr, pin::Pin, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::io::{poll_read_buf, poll_write_buf};

use crate::{
    command::{Command, put_ping, put_pong, put_ready, put_subscribe},
    error::{Error, ProtocolError},
    frame::{self, Frame},
    handshake::{Role, put_greeting, take_greeting},
    message::{MAX_FRAMES, Message},
};

/// One end of a connection whose handshake is done. Dropping it closes it.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    role: Role,
    limits: Limits,
    /// The peer's minor version: heartbeats and subscriptions as commands came with 1.
    minor: u8,
    input: BytesMut,
    output: BytesMut,
    /// The frames of a message whose last is not there yet.
    partial: Message,
    partial_bytes: usize,
    heard: Instant,
    pinged: Instant,
}

/// Bounds of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message.
    pub max_message: usize,
    /// From the beginning to the end of the handshake.
    pub handshake: Duration,
}

/// What a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// To a publisher: what begins with these bytes is wanted.
    Subscribe(Bytes),
    /// To a publisher: it is not wanted any more.
    Cancel(Bytes),
}

const PING_EACH: Duration = Duration::from_secs(10);
/// Two heartbeats may be lost.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// Bytes of what ends a handshake, which has a socket, an identity of 255 bytes at most, and what else a peer tells.
const MAX_READY: usize = 4 << 10;
/// Room that is made for a read: some hundred messages, and a kernel's default socket buffer with a few reads.
const READ: usize = 64 << 10;
/// Answers to heartbeats that wait for a peer who does not read; more are not given.
const MAX_PONGS: usize = 4 << 10;

/// Connects and shakes hands.
/// # Errors
/// When nobody is there, or nobody that talks to `role`.
pub async fn connect(address: SocketAddr, role: Role, limits: Limits) -> Result<Connection, Error> {
    let connecting = async {
        let stream = TcpStream::connect(address).await.map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Io)?;
        shake_hands(stream, role, limits).await
    };
    let result = timeout(limits.handshake, connecting).await;
    result.unwrap_or(Err(Error::Late(limits.handshake)))
}

async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    role: Role,
    limits: Limits,
) -> Result<Connection<S>, Error> {
    let now = Instant::now();
    let mut connection = Connection {
        stream,
        role,
        limits,
        minor: 0,
        input: BytesMut::new(),
        output: BytesMut::new(),
        partial: Message::default(),
        partial_bytes: 0,
        heard: now,
        pinged: now,
    };
    put_greeting(&mut connection.output);
    connection.minor = loop {
        if let Some(minor) = take_greeting(&mut connection.input)? {
            break minor;
        }
        connection.exchange().await?;
    };
    put_ready(role.socket(), &mut connection.output);
    let max_ready = MAX_READY.min(limits.max_message);
    loop {
        if let Some(frame) = frame::take(&mut connection.input, max_ready)? {
            connection.check_ready(&frame)?;
            connection.flush().await?;
            return Ok(connection);
        }
        connection.exchange().await?;
    }
}

// === impl Limits ===

impl Default for Limits {
    /// 64 MiB, which is some 10 million ids, and 5 s.
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            handshake: Duration::from_secs(5),
        }
    }
}

// === impl Connection ===

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Shakes hands over a stream that stands.
    /// # Errors
    /// When the peer is none that talks to `role`.
    pub async fn open(stream: S, role: Role, limits: Limits) -> Result<Self, Error> {
        let result = timeout(limits.handshake, shake_hands(stream, role, limits)).await;
        result.unwrap_or(Err(Error::Late(limits.handshake)))
    }

    /// What came next; meanwhile what is to be sent goes out, heartbeats among it. May be dropped and called again: nothing
    /// is lost.
    /// # Errors
    /// When the connection is over.
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            if let Some(received) = self.next()? {
                return Ok(received);
            }
            self.wait().await?;
        }
    }

    /// Asks a publisher for all that begins with `prefix`; goes out with [`receive`](Self::receive).
    pub fn subscribe(&mut self, prefix: &[u8]) {
        put_subscribe(prefix, self.minor, &mut self.output);
    }

    /// Appends a message to what goes out with [`receive`](Self::receive) or [`flush`](Self::flush).
    pub fn push(&mut self, message: &Message) {
        let mut frames = message.frames().iter().peekable();
        while let Some(frame) = frames.next() {
            frame::put(frame, frames.peek().is_some(), false, &mut self.output);
        }
    }

    /// Bytes that wait to go out.
    pub fn unsent(&self) -> usize {
        self.output.len()
    }

    /// Sends what waits.
    /// # Errors
    /// When the connection is over, or the peer takes nothing for 30 s.
    pub async fn flush(&mut self) -> Result<(), Error> {
        while !self.output.is_empty() {
            let Self { stream, output, .. } = self;
            let write = poll_fn(|context| poll_write_buf(Pin::new(&mut *stream), context, output));
            let written = timeout(DEAD_AFTER, write).await;
            let written = written.map_err(|_| Error::Silent(DEAD_AFTER))?;
            if written.map_err(Error::Io)? == 0 {
                return Err(Error::Closed);
            }
        }
        Ok(())
    }

    /// What of the input is whole.
    fn next(&mut self) -> Result<Option<Received>, Error> {
        while let Some(frame) = frame::take(&mut self.input, self.limits.max_message)? {
            let received = if frame.is_command {
                self.command(&frame)?
            } else {
                self.part(frame)?
            };
            if received.is_some() {
                return Ok(received);
            }
        }
        Ok(None)
    }

    fn command(&mut self, frame: &Frame) -> Result<Option<Received>, Error> {
        match Command::read(&frame.body)? {
            Command::Ping(context) if self.output.len() < MAX_PONGS => {
                put_pong(&context, &mut self.output);
            }
            Command::Error(text) => return Err(ProtocolError::Refused(text).into()),
            Command::Subscribe(prefix) => return Ok(Some(Received::Subscribe(prefix))),
            Command::Cancel(prefix) => return Ok(Some(Received::Cancel(prefix))),
            _ => {}
        }
        Ok(None)
    }

    fn part(&mut self, frame: Frame) -> Result<Option<Received>, Error> {
        let max = self.limits.max_message;
        self.partial_bytes = self.partial_bytes.saturating_add(frame.body.len());
        if self.partial_bytes > max {
            return Err(ProtocolError::TooLarge(self.partial_bytes as u64, max).into());
        }
        if self.partial.frames().len() == MAX_FRAMES {
            return Err(ProtocolError::Frames(MAX_FRAMES).into());
        }
        self.partial.push(frame.body);
        if frame.has_more {
            return Ok(None);
        }
        self.partial_bytes = 0;
        let message = std::mem::take(&mut self.partial);
        if self.role != Role::Publisher {
            return Ok(Some(Received::Message(message)));
        }
        // as peers of version 3.0 subscribe
        let [frame] = message.frames() else {
            return Ok(None);
        };
        Ok(match frame.first() {
            Some(1) => Some(Received::Subscribe(frame.slice(1..))),
            Some(0) => Some(Received::Cancel(frame.slice(1..))),
            _ => None,
        })
    }

    /// Until something came or a heartbeat is due.
    async fn wait(&mut self) -> Result<(), Error> {
        // whoever serves sees the end of a connection by its own writes
        let beats = self.minor > 0 && matches!(self.role, Role::Subscriber | Role::Dealer);
        if !beats {
            return self.exchange().await;
        }
        let due = (self.pinged + PING_EACH).min(self.heard + DEAD_AFTER);
        if let Ok(result) = timeout_at(due, self.exchange()).await {
            return result;
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.heard) >= DEAD_AFTER {
            return Err(Error::Silent(DEAD_AFTER));
        }
        self.pinged = now;
        put_ping(&mut self.output);
        Ok(())
    }

    /// Sends what can be sent, until something came.
    async fn exchange(&mut self) -> Result<(), Error> {
        let Self {
            stream,
            input,
            output,
            ..
        } = self;
        let read = poll_fn(|context| {
            while !output.is_empty() {
                match poll_write_buf(Pin::new(&mut *stream), context, output) {
                    Poll::Ready(Ok(0)) => {
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            // grows with what came, not with what is announced
            input.reserve(READ);
            poll_read_buf(Pin::new(&mut *stream), context, input)
        });
        match read.await {
            Ok(0) => Err(Error::Closed),
            Ok(_) => {
                self.heard = Instant::now();
                Ok(())
            }
            Err(error) => Err(Error::Io(error)),
        }
    }

    fn check_ready(&self, frame: &Frame) -> Result<(), ProtocolError> {
        let command = if frame.is_command {
            Command::read(&frame.body)?
        } else {
            Command::Unknown
        };
        match command {
            Command::Ready { socket } => self.role.check_peer(&socket),
            Command::Error(text) => Err(ProtocolError::Refused(text)),
            _ => Err(ProtocolError::Malformed("READY is expected")),
        }
    }
}

#[cfg(test)]
mod tests;
