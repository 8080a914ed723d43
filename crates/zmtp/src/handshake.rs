//! The greeting, and which sockets talk to each other.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::{BufMut, BytesMut};

use crate::error::ProtocolError;

/// What we are at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Receives what a publisher sends.
    Subscriber,
    /// Asks and receives any number of answers.
    Dealer,
    /// Sends to all who subscribed.
    Publisher,
    /// Answers.
    Router,
}

/// Bytes of a greeting.
pub(crate) const GREETING: usize = 64;
/// Signature and major version, which all versions since 2.0 begin with.
const SIGNATURE: usize = 11;
const MECHANISM: usize = 20;
const NULL: &[u8] = b"NULL";
/// Bytes that are shown of a socket's name; those that exist have 6 at most.
const MAX_SHOWN: usize = 32;

// === impl Role ===

impl Role {
    pub(crate) fn socket(self) -> &'static str {
        match self {
            Self::Subscriber => "SUB",
            Self::Dealer => "DEALER",
            Self::Publisher => "PUB",
            Self::Router => "ROUTER",
        }
    }

    pub(crate) fn check_peer(self, socket: &[u8]) -> Result<(), ProtocolError> {
        let peers: &[&[u8]] = match self {
            Self::Subscriber => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER", b"REP", b"DEALER"],
            Self::Publisher => &[b"SUB", b"XSUB"],
            Self::Router => &[b"DEALER", b"REQ", b"ROUTER"],
        };
        if peers.contains(&socket) {
            return Ok(());
        }
        let shown = socket.get(..MAX_SHOWN).unwrap_or(socket);
        let socket = String::from_utf8_lossy(shown).into_owned();
        Err(ProtocolError::Socket(socket, self.socket()))
    }
}

/// Appends our greeting: version 3.1, no security.
pub(crate) fn put_greeting(output: &mut BytesMut) {
    output.put_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]);
    output.put_slice(&[3, 1]);
    output.put_slice(NULL);
    // the rest of the mechanism's name, who is the server, which NULL does not need, and a filler
    output.put_bytes(0, 16 + 1 + 31);
}

/// The minor version of the peer whose greeting begins `input`, which is taken out; none if it is not all there.
pub(crate) fn take_greeting(input: &mut BytesMut) -> Result<Option<u8>, ProtocolError> {
    let is_zmtp =
        input.first().is_none_or(|it| *it == 0xff) && input.get(9).is_none_or(|it| it & 1 == 1);
    if !is_zmtp {
        return Err(ProtocolError::NotZmtp);
    }
    // older peers send no more until they know our version
    if let Some(major) = input.get(SIGNATURE - 1)
        && *major < 3
    {
        return Err(ProtocolError::Version(*major));
    }
    if input.len() < GREETING {
        return Ok(None);
    }
    let greeting = input.split_to(GREETING);
    let (minor, rest) = greeting
        .split_at(SIGNATURE)
        .1
        .split_first()
        .ok_or(ProtocolError::NotZmtp)?;
    let name = rest.get(..MECHANISM).unwrap_or_default();
    let name = name.split(|it| *it == 0).next().unwrap_or_default();
    if name != NULL {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(ProtocolError::Mechanism(name));
    }
    Ok(Some(*minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> BytesMut {
        let mut wire = BytesMut::new();
        put_greeting(&mut wire);
        assert_eq!(wire.len(), GREETING);
        wire
    }

    #[test]
    fn a_greeting_is_read_when_it_is_whole() {
        let mut input = greeting();
        let last = input.split_off(GREETING - 1);
        assert_eq!(take_greeting(&mut input), Ok(None));
        input.unsplit(last);
        input.put_u8(9);
        assert_eq!(take_greeting(&mut input), Ok(Some(1)));
        assert_eq!(input[..], [9]);
    }

    #[test]
    fn other_protocols_versions_and_mechanisms_are_refused_at_once() {
        let http = &b"HTTP/1.1 400 Bad Request"[..];
        let old = &[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1][..];
        let mut secure = greeting();
        secure[12..17].copy_from_slice(b"CURVE");
        for (input, error) in [
            (http, ProtocolError::NotZmtp),
            (old, ProtocolError::Version(1)),
            (&secure, ProtocolError::Mechanism("CURVE".to_owned())),
        ] {
            assert_eq!(take_greeting(&mut BytesMut::from(input)), Err(error));
        }
    }

    #[test]
    fn sockets_of_other_kinds_are_refused() {
        assert_eq!(Role::Subscriber.check_peer(b"XPUB"), Ok(()));
        let error = Role::Subscriber.check_peer(b"ROUTER").unwrap_err();
        assert!(error.to_string().contains("ROUTER"), "{error}");
        let long = Role::Subscriber.check_peer(&[b'x'; 4000]);
        assert_eq!(long, Err(ProtocolError::Socket("x".repeat(32), "SUB")));
    }
}
