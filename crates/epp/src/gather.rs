//! Fewer and larger writes: what the streams of a connection send in one turn of the event loop goes out at once.
//!
//! hyper's server flushes after each stream that has something to send, since a task that wakes the connection's
//! lets it run next: an answer for each of eight streams is eight system calls. [`Gather`] keeps small writes, and
//! its flush lets the runtime poll what else is ready before it writes them. Where that takes long, since each of the
//! others has a large body to read, the others see by [`is_overdue`] that they are to let the flush go first.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tonic::transport::server::Connected;

/// A connection whose small writes are gathered until the flush.
#[derive(Debug)]
pub(crate) struct Gather<T> {
    inner: T,
    /// Not written yet; empty after each flush.
    held: Vec<u8>,
    /// How much of the front of `held` is written.
    written: usize,
    /// The flush under way has let others go first.
    yielded: bool,
    /// Since when writes are held back; none after the connection is called again.
    held_since: Option<Instant>,
}

/// 64 KiB: a small frame for each of some hundred streams.
const MAX_HELD: usize = 64 * 1024;

/// From here on copying costs more than what is saved: half of an HTTP/2 frame of a body.
const LARGE: usize = 8 * 1024;

/// As many slices as one frame and what is before it have.
const SLICES: usize = 8;

/// Longest hold: about the time of ten small requests. Fewer of them are not worth a separate write.
const MAX_HOLD: Duration = Duration::from_micros(50);

thread_local! {
    /// The start times of the connections of this thread that hold writes back until the others have run, one for each;
    /// the earliest comes first.
    static HELD_SINCE: RefCell<Vec<Instant>> = const { RefCell::new(Vec::new()) };
}

/// Whether a connection of this thread holds writes back for too long already: who has something to do is to let it write
/// first.
pub(crate) fn is_overdue() -> bool {
    HELD_SINCE.with_borrow(|all| {
        let longest = all.first();
        longest.is_some_and(|since| since.elapsed() > MAX_HOLD)
    })
}

// === impl Gather ===

impl<T> Gather<T> {
    /// Wraps a connection.
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            held: Vec::new(),
            written: 0,
            yielded: false,
            held_since: None,
        }
    }

    fn waiting(&self) -> &[u8] {
        self.held.get(self.written..).unwrap_or_default()
    }

    fn takes(&self, bytes: usize) -> bool {
        bytes < LARGE && self.held.len() + bytes <= MAX_HELD
    }

    /// So much of what waits is written.
    fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.held.len() {
            self.held.clear();
            self.written = 0;
            self.yielded = false;
            self.release();
        }
    }

    fn hold(&mut self) {
        let now = Instant::now();
        self.held_since = Some(now);
        HELD_SINCE.with_borrow_mut(|all| all.push(now));
    }

    /// Other connections no longer need to let this one write first; connections that hold writes back continue to do
    /// so.
    fn release(&mut self) {
        let Some(since) = self.held_since.take() else {
            return;
        };
        // This is an error only while the thread ends.
        let _ = HELD_SINCE.try_with(|all| {
            let mut all = all.borrow_mut();
            if let Some(at) = all.iter().position(|one| *one == since) {
                all.remove(at);
            }
        });
    }
}

impl<T: AsyncWrite + Unpin> Gather<T> {
    /// Writes what waits.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            let waiting = self.held.get(self.written..).unwrap_or_default();
            let inner = Pin::new(&mut self.inner);
            let bytes = ready!(inner.poll_write(cx, waiting))?;
            if bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(bytes);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what waits and some of these bytes: how many of these.
    fn poll_through(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let waiting = self.held.get(self.written..).unwrap_or_default();
            let before = waiting.len();
            let mut all = [IoSlice::new(&[]); SLICES];
            let slices = std::iter::once(IoSlice::new(waiting)).chain(bufs.iter().copied());
            let slices = slices.filter(|slice| !slice.is_empty());
            for (place, slice) in all.iter_mut().zip(slices) {
                *place = slice;
            }
            let inner = Pin::new(&mut self.inner);
            let bytes = ready!(inner.poll_write_vectored(cx, &all))?;
            self.advance(bytes.min(before));
            // nothing of these bytes: not to be mistaken for a writer that takes no more
            if bytes == 0 || bytes > before {
                return Poll::Ready(Ok(bytes.saturating_sub(before)));
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        if !this.takes(bytes) {
            return this.poll_through(cx, bufs);
        }
        for buf in bufs {
            this.held.extend_from_slice(buf);
        }
        Poll::Ready(Ok(bytes))
    }

    /// With it h2 hands over frames of up to 256 bytes together, without it up to 1 KiB: a pick and the body after it.
    fn is_write_vectored(&self) -> bool {
        false
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.waiting().is_empty() && !this.yielded {
            // once: after the others' turn, however long that was, all is written
            this.yielded = true;
            this.hold();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.release();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

impl<T> Drop for Gather<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Connected> Connected for Gather<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

#[cfg(test)]
mod tests;
