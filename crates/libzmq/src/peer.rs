//! A process with sockets.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::find::{MissingLibrary, find};

const PROGRAM: &str = include_str!("peer.py");

/// A process with sockets of libzmq. It ends with this value.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// One of its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    id: String,
    port: u16,
}

/// Kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Publishes.
    Pub,
    /// Publishes, and receives each subscription as a message that begins with 1.
    XPub,
    /// Subscribes to all.
    Sub,
    /// Asks.
    Dealer,
    /// Answers; whom is the first frame.
    Router,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no library.
    #[error(transparent)]
    Missing(#[from] MissingLibrary),
    /// The process does not run, or not any more.
    #[error("the process with libzmq: {0}")]
    Process(#[from] io::Error),
    /// It refused.
    #[error("libzmq: {0}")]
    Refused(String),
}

// === impl Peer ===

impl Peer {
    /// A process without sockets.
    ///
    /// # Errors
    /// When there is no library or no Python.
    pub fn start() -> Result<Self, PeerError> {
        let library = find()?;
        let mut child = Command::new("python3")
            .args(["-I", "-c", PROGRAM])
            .arg(library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// A socket that listens on loopback, on this port or, if it is 0, on one that is free.
    ///
    /// # Errors
    /// When libzmq refuses, as the following do.
    pub fn bind(&mut self, kind: Kind, port: u16) -> Result<Socket, PeerError> {
        self.open("bind", kind, port)
    }

    /// A socket that connects to a port of loopback, now or when somebody listens there.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn connect(&mut self, kind: Kind, port: u16) -> Result<Socket, PeerError> {
        self.open("connect", kind, port)
    }

    /// Ends a socket and its connections.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn close(&mut self, socket: &Socket) -> Result<(), PeerError> {
        self.ask(&format!("close {}", socket.id)).map(drop)
    }

    /// From now on so many messages wait for a peer at most; others are dropped by a publisher.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn limit(&mut self, socket: &Socket, messages: u32) -> Result<(), PeerError> {
        self.ask(&format!("limit {} {messages}", socket.id))
            .map(drop)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn send(&mut self, socket: &Socket, frames: &[&[u8]]) -> Result<(), PeerError> {
        let mut line = format!("send {}", socket.id);
        for frame in frames {
            line.push(' ');
            line.push_str(&to_hex(frame));
        }
        self.ask(&line).map(drop)
    }

    /// Sends messages of an empty frame, their number as eight bytes, and `frame`.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn repeat(
        &mut self,
        socket: &Socket,
        first: u64,
        count: u64,
        frame: &[u8],
    ) -> Result<(), PeerError> {
        let frame = to_hex(frame);
        self.ask(&format!("repeat {} {first} {count} {frame}", socket.id))
            .map(drop)
    }

    /// The next message; none if there is none in this time.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn receive(
        &mut self,
        socket: &Socket,
        within: Duration,
    ) -> Result<Option<Vec<Vec<u8>>>, PeerError> {
        let answer = self.ask(&format!("receive {} {}", socket.id, within.as_millis()))?;
        let Some(frames) = answer else {
            return Ok(None);
        };
        let frames = frames.split_whitespace().map(from_hex);
        let frames: Option<Vec<_>> = frames.collect();
        let malformed = || PeerError::Refused("a frame is not hexadecimal".to_owned());
        frames.map(Some).ok_or_else(malformed)
    }

    /// Ends it as an engine that crashes.
    pub fn kill(&mut self) {
        // it may be gone already: the wait says so too
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }

    /// It stops answering, and its connections stay.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// It goes on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn open(&mut self, how: &str, kind: Kind, port: u16) -> Result<Socket, PeerError> {
        let answer = self.ask(&format!("{how} {} {port}", kind.name()))?;
        let answer = answer.unwrap_or_default();
        let (id, port) = answer.split_once(' ').unwrap_or_default();
        Ok(Socket {
            id: id.to_owned(),
            port: port.parse().unwrap_or_default(),
        })
    }

    /// What follows `ok`; none for `none`.
    fn ask(&mut self, line: &str) -> Result<Option<String>, PeerError> {
        writeln!(self.input, "{line}")?;
        self.input.flush()?;
        let mut answer = String::new();
        if self.output.read_line(&mut answer)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let answer = answer.trim();
        if let Some(rest) = answer.strip_prefix("ok") {
            return Ok(Some(rest.trim().to_owned()));
        }
        match answer {
            "none" => Ok(None),
            _ => Err(PeerError::Refused(answer.to_owned())),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Ok(id) = i32::try_from(self.child.id()) {
            let _gone = kill(Pid::from_raw(id), signal);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn to_hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        // writing to a String cannot fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let digits: Option<Vec<_>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let (pairs, _) = digits.as_deref()?.as_chunks();
    let bytes = pairs
        .iter()
        .map(|[high, low]| u8::try_from(high << 4 | low).ok());
    bytes.collect()
}

// === impl Socket ===

impl Socket {
    /// Where it listens, or where it connects to.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }
}

// === impl Kind ===

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::XPub => "XPUB",
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_sockets_talk_to_each_other() {
        let mut peer = Peer::start().unwrap();
        let publisher = peer.bind(Kind::XPub, 0).unwrap();
        let subscriber = peer.connect(Kind::Sub, publisher.address().port()).unwrap();
        let limit = Duration::from_secs(10);
        assert_eq!(
            peer.receive(&publisher, limit).unwrap(),
            Some(vec![vec![1]])
        );
        peer.send(&publisher, &[b"", b"\x00\xff"]).unwrap();
        let frames = vec![vec![], vec![0, 255]];
        assert_eq!(peer.receive(&subscriber, limit).unwrap(), Some(frames));
        let short = Duration::from_millis(1);
        assert_eq!(peer.receive(&subscriber, short).unwrap(), None);
    }
}
