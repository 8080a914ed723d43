//! A connection as its server reads it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::walk::Walk;

/// Bytes that are read at once while a part of a value is held back.
const MORE: usize = 512;

/// A connection on which an HTTP/2 authority that no URI may have is read with other bytes. What is written passes as it is.
#[derive(Debug)]
pub struct AnyAuthority<T> {
    inner: T,
    walk: Walk,
    /// Read, but not passed on: a value that is not whole, and once it is, what has come with its end.
    held: Vec<u8>,
    /// Bytes of what is held that may be passed on.
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

    /// Passes on what may be, as far as there is room.
    fn pass_on(&mut self, buf: &mut ReadBuf<'_>) {
        let bytes = self.ready.min(buf.remaining());
        buf.put_slice(self.held.get(..bytes).unwrap_or_default());
        self.held.drain(..bytes);
        self.ready -= bytes;
    }
}

impl<T: AsyncRead + Unpin> AnyAuthority<T> {
    /// Reads, and holds back what has come of a value that is not whole. Whether anything may be passed on, or the connection has
    /// ended.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let read = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let passed = self.walk.over(read);
        let held = read.get(passed..).unwrap_or_default();
        self.held.extend_from_slice(held);
        let nothing = passed == 0 && !held.is_empty();
        buf.set_filled(before + passed);
        Poll::Ready(Ok(!nothing))
    }

    /// Reads more of what is held back.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut more = [0; MORE];
        let mut more = ReadBuf::new(&mut more);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut more))?;
        if more.filled().is_empty() {
            // the connection ends within a value
            self.walk.stop();
        }
        self.held.extend_from_slice(more.filled());
        self.ready = self.walk.over(&mut self.held);
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
