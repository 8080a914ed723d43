//! A connection as its server reads it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::walk::Walk;

/// The most bytes of one read while a part of a value is held back.
pub(crate) const READ_MORE: usize = 512;

/// A connection on which an HTTP/2 authority that no URI may have is read with other bytes. What is written passes as it is.
#[derive(Debug)]
pub struct AnyAuthority<T> {
    inner: T,
    walk: Walk,
    /// What has been read and not passed on: a part of a value, and once the value is whole, what has come with its end.
    held: Vec<u8>,
    /// The number of held bytes that may be passed on.
    ready: usize,
}

// === impl AnyAuthority ===

impl<T> AnyAuthority<T> {
    /// Wraps a connection of which nothing has been read yet.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            walk: Walk::new(),
            held: Vec::new(),
            ready: 0,
        }
    }

    /// The connection itself.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The number of bytes that are held back.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Passes on what may be, as far as there is room.
    fn pass_on(&mut self, buf: &mut ReadBuf<'_>) {
        let bytes = self.ready.min(buf.remaining());
        buf.put_slice(self.held.get(..bytes).unwrap_or_default());
        self.ready = self.ready.saturating_sub(bytes);
        if bytes == self.held.len() {
            // without its memory, as a connection has such a value once, and may last for days
            self.held = Vec::new();
        } else {
            self.held.drain(..bytes);
        }
    }
}

impl<T: AsyncRead + Unpin> AnyAuthority<T> {
    /// Reads, and holds back what has come of a value that is not whole. Returns whether anything may be passed on, or the
    /// connection has ended.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let read = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let passed = self.walk.rewrite_authorities(read);
        let held = read.get(passed..).unwrap_or_default();
        self.held.extend_from_slice(held);
        let nothing = passed == 0 && !held.is_empty();
        buf.set_filled(before.saturating_add(passed));
        Poll::Ready(Ok(!nothing))
    }

    /// Reads what comes after the bytes that are held back.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut more = [0; READ_MORE];
        let mut more = ReadBuf::new(&mut more);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut more))?;
        if more.filled().is_empty() {
            // the connection ends within a value
            self.walk.stop();
        }
        self.held.extend_from_slice(more.filled());
        self.ready = self.walk.rewrite_authorities(&mut self.held);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AnyAuthority<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.held.is_empty() {
            if this.walk.is_off() {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            }
            if ready!(this.poll_direct(cx, buf))? {
                return Poll::Ready(Ok(()));
            }
        }
        while this.ready == 0 {
            ready!(this.poll_held(cx))?;
        }
        this.pass_on(buf);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::test_util::{frame, request};

    /// Bytes that come one at a time.
    struct Single<'a>(&'a [u8]);

    impl AsyncRead for Single<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let (now, later) = self.0.split_at(self.0.len().min(1));
            self.0 = later;
            buf.put_slice(now);
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_was_held_back_is_freed_when_it_is_passed_on() {
        let bytes = [request("/1"), frame(6, 0, 0, &[0; 8])].concat();
        let mut connection = AnyAuthority::new(Single(&bytes));
        let mut context = Context::from_waker(Waker::noop());
        let (mut read, mut most) = (Vec::new(), 0);
        while read.len() < bytes.len() {
            let mut buf = [0; 7];
            let mut buf = ReadBuf::new(&mut buf);
            let polled = Pin::new(&mut connection).poll_read(&mut context, &mut buf);
            assert!(polled.is_ready());
            read.extend_from_slice(buf.filled());
            most = most.max(connection.held.capacity());
        }
        assert!(most > 0, "nothing is held back");
        assert_eq!(connection.held.capacity(), 0);
    }

    #[test]
    fn a_connection_has_little_state() {
        assert!(size_of::<AnyAuthority<()>>() <= 160);
    }
}
