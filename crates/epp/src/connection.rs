//! A connection of a proxy: its round trip, and its place among those of a thread.
//!
//! The round trip is the kernel's, from `TCP_INFO`, since the HTTP/2 server shows nobody the times of its PINGs. Of the
//! kernel's two values the windowed minimum (over 5 minutes) is taken, not the smoothed one: most of what we send is
//! small and acknowledged late on purpose (up to 40 ms), which is no distance. What a proxy between terminates, such as a
//! sidecar, is measured up to there, as a PING would be.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::{
    getsockopt_impl, libc,
    sys::socket::{getsockopt, sockopt::GetStruct},
};
use scheduling::DEFAULT_TRANSIT;
use tls::MaybeTls;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use tonic::transport::server::Connected;

/// Between two looks at the kernel's values: a distance does not change faster.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// What a proxy and a model server take beside the way there.
const HANDLING: Duration = Duration::from_millis(2);

/// No value: the kernel's, of a minimum that it has not measured.
const UNMEASURED: u32 = u32::MAX;

/// A connection that looks at its own round trip when it writes, and is counted as long as it lives.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    inner: T,
    round_trip: RoundTrip,
    measured: Instant,
    _live: Live,
}

/// Counts one connection as long as it is held: the number of clones is that of connections and one.
pub(crate) type Live = Arc<()>;

/// What runs over TCP, in plaintext or not.
pub(crate) trait OverTcp {
    /// The socket.
    fn tcp(&self) -> &TcpStream;
}

/// The round trip of a connection in microseconds, shared with its streams. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrip(Arc<AtomicU32>);

/// The beginning of the kernel's `tcp_info`, up to the last value that matters: kernels differ in what follows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct TcpInfo {
    _state_to_rcv_ssthresh: [u32; 17],
    /// Smoothed, in microseconds; 0 before the first one.
    rtt: u32,
    _rttvar_to_notsent_bytes: [u32; 19],
    /// The least of some minutes, in microseconds.
    min_rtt: u32,
}

/// `TCP_INFO`.
#[derive(Clone, Copy)]
struct ReadTcpInfo;

getsockopt_impl!(
    ReadTcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfo,
    GetStruct<TcpInfo>
);

// === impl Connection ===

impl<T: OverTcp> Connection<T> {
    /// The kernel has measured a first round trip by then, that of the TCP handshake.
    pub(crate) fn new(inner: T, live: Live) -> Self {
        let round_trip = RoundTrip::default();
        round_trip.measure(inner.tcp());
        Self {
            inner,
            round_trip,
            measured: Instant::now(),
            _live: live,
        }
    }

    fn wrote(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.measured) >= MEASURE_EVERY {
            self.measured = now;
            self.round_trip.measure(self.inner.tcp());
        }
    }
}

impl<T> Connected for Connection<T> {
    type ConnectInfo = RoundTrip;

    fn connect_info(&self) -> RoundTrip {
        self.round_trip.clone()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + OverTcp + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.wrote();
        Poll::Ready(Ok(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        this.wrote();
        Poll::Ready(Ok(bytes))
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

impl OverTcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for MaybeTls {
    fn tcp(&self) -> &TcpStream {
        Self::tcp(self)
    }
}

// === impl RoundTrip ===

impl RoundTrip {
    /// How long a request takes from a pick to its model server, when this connection's proxy was told the pick.
    pub(crate) fn transit(&self) -> Duration {
        transit(self.get())
    }

    fn get(&self) -> Option<Duration> {
        let micros = self.0.load(Ordering::Relaxed);
        (micros != UNMEASURED).then(|| Duration::from_micros(micros.into()))
    }

    fn measure(&self, tcp: &TcpStream) {
        // A socket that cannot be asked keeps its value: it is about to end.
        if let Ok(info) = getsockopt(tcp, ReadTcpInfo) {
            self.0.store(info.round_trip(), Ordering::Relaxed);
        }
    }
}

impl Default for RoundTrip {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(UNMEASURED)))
    }
}

// === impl TcpInfo ===

impl TcpInfo {
    /// A kernel in a sandbox may know the smoothed value alone.
    fn round_trip(&self) -> u32 {
        match (self.min_rtt, self.rtt) {
            (0 | UNMEASURED, 0) => UNMEASURED,
            (0 | UNMEASURED, smoothed) => smoothed,
            (least, _) => least,
        }
    }
}

/// The pick goes to the proxy and the request from there on: half a round trip each. A booking believes at most a second
/// of it.
fn transit(round_trip: Option<Duration>) -> Duration {
    round_trip.map_or(DEFAULT_TRANSIT, |round_trip| round_trip + HANDLING)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[rstest]
    #[case::unmeasured(UNMEASURED, 0, 20_000)]
    #[case::near(30, 4_000, 2_030)]
    #[case::another_continent(180_000, 190_000, 182_000)]
    #[case::smoothed_alone(0, 700, 2_700)]
    #[case::smoothed_before_a_minimum(UNMEASURED, 700, 2_700)]
    fn a_transit_is_the_least_round_trip_and_two_milliseconds(
        #[case] min_rtt: u32,
        #[case] rtt: u32,
        #[case] micros: u64,
    ) {
        let info = TcpInfo {
            _state_to_rcv_ssthresh: [0; 17],
            rtt,
            _rttvar_to_notsent_bytes: [0; 19],
            min_rtt,
        };
        let round_trip = RoundTrip::default();
        round_trip.0.store(info.round_trip(), Ordering::Relaxed);
        assert_eq!(round_trip.transit(), Duration::from_micros(micros));
    }

    async fn mk_pair() -> (Connection<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let connection = Connection::new(accepted.unwrap().0, Live::default());
        (connection, client.unwrap())
    }

    #[tokio::test]
    async fn loopback_is_near_from_the_first_request_on() {
        let (connection, _client) = mk_pair().await;
        let transit = connection.connect_info().transit();
        let near = Duration::from_micros(2_001)..Duration::from_millis(15);
        assert!(near.contains(&transit), "{transit:?}");
    }

    #[tokio::test]
    async fn a_write_looks_again_once_a_second() {
        let (mut connection, mut client) = mk_pair().await;
        let streams = connection.connect_info();
        let mut looked_after = async |age: Duration| {
            streams.0.store(UNMEASURED, Ordering::Relaxed);
            connection.measured = Instant::now().checked_sub(age).unwrap();
            connection.write_all(b"x").await.unwrap();
            client.read_u8().await.unwrap();
            streams.get().is_some()
        };
        assert!(!looked_after(Duration::ZERO).await);
        assert!(looked_after(MEASURE_EVERY).await);
        assert!(!looked_after(Duration::ZERO).await);
    }
}
