//! Commands: what peers say to each other beside messages.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::{BufMut, Bytes, BytesMut};

use crate::{error::ProtocolError, frame};

/// A command that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The handshake's last: the socket of the peer, by name.
    Ready {
        socket: Vec<u8>,
    },
    /// The peer refuses, and says why.
    Error(String),
    /// To be answered with the same context.
    Ping(Bytes),
    Pong,
    Subscribe(Bytes),
    Cancel(Bytes),
    /// To be ignored.
    Unknown,
}

/// The context of a heartbeat, at most.
const MAX_CONTEXT: usize = 16;

// === impl Command ===

impl Command {
    pub(crate) fn read(body: &Bytes) -> Result<Self, ProtocolError> {
        let (name, rest) = split(body).ok_or(ProtocolError::Malformed("a command"))?;
        let rest = || body.slice_ref(rest);
        Ok(match name {
            b"READY" => Self::Ready {
                socket: socket(&rest()).ok_or(ProtocolError::Malformed("READY"))?,
            },
            b"ERROR" => {
                let text = rest();
                let text = split(&text).map(|(text, _)| String::from_utf8_lossy(text).into_owned());
                Self::Error(text.unwrap_or_default())
            }
            b"PING" => {
                let mut context = rest();
                // behind how long the peer waits
                let context = context.split_off(context.len().min(2));
                if context.len() > MAX_CONTEXT {
                    return Err(ProtocolError::Malformed("PING"));
                }
                Self::Ping(context)
            }
            b"PONG" => Self::Pong,
            b"SUBSCRIBE" => Self::Subscribe(rest()),
            b"CANCEL" => Self::Cancel(rest()),
            _ => Self::Unknown,
        })
    }
}

/// Appends READY; brokers name themselves with an identity, which is empty here.
pub(crate) fn put_ready(socket: &str, output: &mut BytesMut) {
    let mut body = BytesMut::new();
    for (name, value) in [("Socket-Type", socket), ("Identity", "")] {
        put_short(name.as_bytes(), &mut body);
        body.put_u32(u32::try_from(value.len()).unwrap_or_default());
        body.put_slice(value.as_bytes());
    }
    put(b"READY", &body, output);
}

/// Appends a heartbeat; the peer needs no others to live.
pub(crate) fn put_ping(output: &mut BytesMut) {
    put(b"PING", &[0, 0], output);
}

/// Appends the answer to a heartbeat.
pub(crate) fn put_pong(context: &[u8], output: &mut BytesMut) {
    put(b"PONG", context, output);
}

/// Appends a subscription to all that begins with `prefix`, as the peer's version has it.
pub(crate) fn put_subscribe(prefix: &[u8], minor: u8, output: &mut BytesMut) {
    if minor == 0 {
        frame::put(&[&[1], prefix].concat(), false, false, output);
    } else {
        put(b"SUBSCRIBE", prefix, output);
    }
}

fn put(name: &[u8], body: &[u8], output: &mut BytesMut) {
    let mut whole = BytesMut::new();
    put_short(name, &mut whole);
    whole.put_slice(body);
    frame::put(&whole, false, true, output);
}

/// Some bytes behind their length, which is a byte.
fn put_short(bytes: &[u8], output: &mut BytesMut) {
    output.put_u8(u8::try_from(bytes.len()).unwrap_or_default());
    output.put_slice(bytes);
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// The socket among the properties of READY.
fn socket(mut properties: &[u8]) -> Option<Vec<u8>> {
    let mut socket: &[u8] = &[];
    while !properties.is_empty() {
        let (name, rest) = split(properties)?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket = value;
        }
        properties = rest;
    }
    Some(socket.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Command, ProtocolError> {
        Command::read(&Bytes::copy_from_slice(bytes))
    }

    fn written(put: impl FnOnce(&mut BytesMut)) -> Bytes {
        let mut wire = BytesMut::new();
        put(&mut wire);
        let frame = frame::take(&mut wire, 1000).unwrap().unwrap();
        assert!(frame.is_command && wire.is_empty());
        frame.body
    }

    #[test]
    fn what_is_written_is_read() {
        let ready = Command::Ready {
            socket: b"SUB".to_vec(),
        };
        assert_eq!(
            Command::read(&written(|it| put_ready("SUB", it))),
            Ok(ready)
        );
        let ping = Command::Ping(Bytes::new());
        assert_eq!(Command::read(&written(put_ping)), Ok(ping));
        let subscribe = written(|it| put_subscribe(b"kv", 1, it));
        assert_eq!(
            Command::read(&subscribe),
            Ok(Command::Subscribe(Bytes::from_static(b"kv")))
        );
        assert_eq!(
            Command::read(&written(|it| put_pong(b"x", it))),
            Ok(Command::Pong)
        );
    }

    /// As the specification of ZMTP 3.1 has them.
    #[test]
    fn commands_of_others_are_read() {
        assert_eq!(
            read(b"\x04PING\x00\x05abc"),
            Ok(Command::Ping(Bytes::from_static(b"abc")))
        );
        assert_eq!(
            read(b"\x05ERROR\x04gone"),
            Ok(Command::Error("gone".to_owned()))
        );
        assert_eq!(read(b"\x05HELLO"), Ok(Command::Unknown));
        assert_eq!(
            read(b"\x05READY\x0bsocket-type\x00\x00\x00\x04XPUB\x01X\x00\x00\x00\x01y"),
            Ok(Command::Ready {
                socket: b"XPUB".to_vec()
            })
        );
        for (malformed, what) in [
            (&b""[..], "a command"),
            (b"\x09PING", "a command"),
            (b"\x05READY\x0bSocket-Type\x00\x00\x00\x09PUB", "READY"),
            (b"\x04PING\x00\x0001234567890123456", "PING"),
        ] {
            let error = Err(ProtocolError::Malformed(what));
            assert_eq!(read(malformed), error, "{malformed:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _any = read(&bytes);
        }
    }
}
