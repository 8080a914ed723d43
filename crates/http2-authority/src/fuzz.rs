//! What any bytes go through, for fuzzers: the function takes any bytes and panics where a promise is broken.
//!
//! `fuzz/` runs it under libFuzzer; the tests here replay its corpus and change it a little.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::io::{AsyncRead, ReadBuf};

use crate::{AnyAuthority, stream::READ_MORE, walk::MAX_HELD};

/// The number of bytes at the front of the input that say how the others are cut.
const SIZES: usize = 4;

/// The size of the buffer that the server reads into.
const BUFFER: usize = 1024;

/// A connection on which these bytes come, in pieces of these sizes over and over; a size of 0 is 256.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: &'a [u8],
    turn: usize,
}

// === impl Pieces ===

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let nth = self.turn.checked_rem(self.sizes.len()).unwrap_or_default();
        let size = match self.sizes.get(nth) {
            None => usize::MAX,
            Some(0) => 256,
            Some(size) => usize::from(*size),
        };
        let size = size.min(buf.remaining()).min(self.bytes.len());
        let (piece, rest) = self.bytes.split_at(size);
        buf.put_slice(piece);
        self.bytes = rest;
        self.turn = self.turn.wrapping_add(1);
        Poll::Ready(Ok(()))
    }
}

/// A connection of a client: as many bytes come out as go in, the same ones in whatever pieces they come, little is held back, and
/// what has been read once with other bytes stays so.
///
/// # Panics
/// When one of these promises is broken.
pub fn fuzz_connection(data: &[u8]) {
    let (sizes, bytes) = data.split_at_checked(SIZES).unwrap_or((data, &[]));
    let whole = passed(bytes, &[]);
    assert_eq!(whole.len(), bytes.len());
    for sizes in [sizes, &[1]] {
        assert!(passed(bytes, sizes) == whole, "cut by {sizes:?}");
    }
    assert!(passed(&whole, &[]) == whole, "read again");
}

/// What a server reads of these bytes.
fn passed(bytes: &[u8], sizes: &[u8]) -> Vec<u8> {
    let mut connection = AnyAuthority::new(Pieces {
        bytes,
        sizes,
        turn: 0,
    });
    let mut context = Context::from_waker(Waker::noop());
    let (mut passed, mut buffer) = (Vec::new(), [0; BUFFER]);
    loop {
        let mut buf = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut connection).poll_read(&mut context, &mut buf);
        assert!(matches!(polled, Poll::Ready(Ok(()))), "{polled:?}");
        // with what has come after the end of the value
        assert!(connection.held() <= MAX_HELD + READ_MORE);
        if buf.filled().is_empty() {
            return passed;
        }
        passed.extend_from_slice(buf.filled());
    }
}

#[cfg(test)]
mod tests;
