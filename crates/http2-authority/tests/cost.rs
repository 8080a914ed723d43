#![cfg(test)]
//! What reading a connection allocates: a binary of its own, for it counts in the allocator.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use http2_authority::AnyAuthority;
use tokio::io::{AsyncRead, ReadBuf};

/// A connection that has all its bytes at once.
struct Ready<'a> {
    bytes: &'a [u8],
    /// Where the last buffer was that it was read into.
    buffer: *const u8,
}

// === impl Ready ===

impl AsyncRead for Ready<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.buffer = buf.initialize_unfilled().as_ptr();
        let (piece, rest) = self.bytes.split_at(self.bytes.len().min(buf.remaining()));
        buf.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, low] = payload.len().to_be_bytes();
    let mut frame = vec![0, high, low, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// The server reads all of these bytes, each time directly into its buffer.
fn read(connection: &mut AnyAuthority<Ready<'_>>, bytes: usize) {
    let mut context = Context::from_waker(Waker::noop());
    let mut left = bytes;
    while left > 0 {
        let mut buffer = [0; 1000];
        let server = buffer.as_ptr();
        let mut buf = ReadBuf::new(&mut buffer[..left.min(1000)]);
        let polled = Pin::new(&mut *connection).poll_read(&mut context, &mut buf);
        assert!(matches!(polled, Poll::Ready(Ok(()))));
        assert_eq!(connection.get_ref().buffer, server, "the bytes are copied");
        left -= buf.filled().len();
    }
}

#[test]
fn calls_without_a_literal_authority_are_read_without_allocating_or_copying() {
    // the first call makes an entry of its authority, which the others name by its number
    let first = [&[0x83, 0x86, 0x84, 0x41, 9][..], b"epp.llm:1"].concat();
    let other = [
        &[0x83, 0x86, 0x84, 0xbe, 0x00, 4][..],
        b"path",
        &[3],
        b"a|b",
    ]
    .concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([frame(4, 0, 0, &[]), frame(1, 0x5, 1, &first)].concat());
    let begin = bytes.len();
    for stream in (3..=101).step_by(2) {
        let data = frame(0, 0x1, stream, &[b'|'; 700]);
        bytes.extend([frame(1, 0x4, stream, &other), data].concat());
    }
    let sent = bytes.clone();
    let mut connection = AnyAuthority::new(Ready {
        bytes: &sent,
        buffer: std::ptr::null(),
    });
    let literal = measure(|| read(&mut connection, begin));
    assert!(literal.count_total <= 1, "{literal:?}");
    let others = measure(|| read(&mut connection, bytes.len() - begin));
    assert_eq!(others.count_total, 0, "{others:?}");
}
