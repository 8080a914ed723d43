//! Connections, and what may befall them below HTTP.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use parking_lot::Mutex;
use socket2::{SockFilter, SockRef};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};

/// The connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Links {
    open: Mutex<BTreeMap<u64, Arc<TcpStream>>>,
    next: AtomicU64,
    /// Connections of lower numbers neither read nor write.
    frozen_below: AtomicU64,
    sleepers: Mutex<Vec<Waker>>,
    /// Connections of lower numbers end.
    cut_below: watch::Sender<u64>,
}

/// One connection; a frozen one is silent but open.
pub(crate) struct Link {
    number: u64,
    stream: Arc<TcpStream>,
    links: Arc<Links>,
}

/// `ret 0`: the kernel drops each packet that arrives, without acknowledgement: as if the other end had gone from the
/// network. No privilege is needed, unlike for a packet filter.
const DROP_ALL: [SockFilter; 1] = [SockFilter::new(0x06, 0, 0, 0)];

// === impl Links ===

impl Links {
    /// Takes a new connection in.
    pub(crate) fn enter(self: &Arc<Self>, stream: TcpStream) -> Link {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let stream = Arc::new(stream);
        self.open.lock().insert(number, stream.clone());
        Link {
            number,
            stream,
            links: self.clone(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// Silence: on all connections, those to come included, or on those that are open.
    pub(crate) fn freeze(&self, to_come: bool) {
        let below = if to_come {
            u64::MAX
        } else {
            self.next.load(Ordering::SeqCst)
        };
        self.frozen_below.store(below, Ordering::SeqCst);
    }

    /// The connections that are open neither answer nor acknowledge anything any more, and never will.
    pub(crate) fn strand(&self) -> io::Result<()> {
        self.freeze(false);
        for stream in self.open.lock().values() {
            SockRef::from(stream.as_ref()).attach_filter(&DROP_ALL)?;
        }
        Ok(())
    }

    pub(crate) fn thaw(&self) {
        self.frozen_below.store(0, Ordering::SeqCst);
        for sleeper in std::mem::take(&mut *self.sleepers.lock()) {
            sleeper.wake();
        }
    }

    /// Ends all connections that are open.
    pub(crate) fn cut(&self) {
        self.cut_below
            .send_replace(self.next.load(Ordering::SeqCst));
    }

    /// Resolves when the connection is to end.
    pub(crate) async fn cut_off(self: Arc<Self>, number: u64) {
        let mut below = self.cut_below.subscribe();
        // an error means that the server is gone
        let _ = below.wait_for(|below| *below > number).await;
    }

    fn is_frozen(&self, number: u64, context: &Context<'_>) -> bool {
        if number >= self.frozen_below.load(Ordering::SeqCst) {
            return false;
        }
        self.sleepers.lock().push(context.waker().clone());
        // thawed meanwhile: nobody would wake it
        number < self.frozen_below.load(Ordering::SeqCst)
    }
}

// === impl Link ===

impl Link {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.links.open.lock().remove(&self.number);
    }
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.links.is_frozen(self.number, cx) {
                return Poll::Pending;
            }
            ready!(self.stream.poll_read_ready(cx))?;
            if self.links.is_frozen(self.number, cx) {
                return Poll::Pending;
            }
            match self.stream.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.links.is_frozen(self.number, cx) {
                return Poll::Pending;
            }
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // a frozen end sends no FIN either
        if self.number >= self.links.frozen_below.load(Ordering::SeqCst) {
            // the other end may have closed already
            let _ = SockRef::from(self.stream.as_ref()).shutdown(std::net::Shutdown::Write);
        }
        Poll::Ready(Ok(()))
    }
}
