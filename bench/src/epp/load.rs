//! Many requests: some at a time, or so many a second.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    net::TcpStream,
    sync::Barrier,
    task::{JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{
    exchange::{Terms, Times},
    frames::Script,
};

/// Long-lived connections to one picker.
pub struct Load {
    connections: Vec<SendRequest<Bytes>>,
    terms: Arc<Terms>,
    /// The number of the next request.
    next: AtomicUsize,
    /// Drives the connections.
    _drivers: JoinSet<Result<(), h2::Error>>,
}

/// What came of some requests.
#[derive(Debug, Default)]
pub struct Sample {
    /// Of each request that went well: until its pick was here.
    pub picks: Vec<Duration>,
    /// Requests that did not.
    pub wrong: Vec<String>,
    /// Of all together.
    pub took: Duration,
}

/// A proxy has one for each of its worker threads.
const CONNECTIONS: usize = 2;
/// Windows as Envoy has them.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 24 << 20;
/// A program that was just started listens by then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For one request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Tokio's timers are that coarse; nearer times are waited for awake.
const COARSE: Duration = Duration::from_millis(2);

// === impl Load ===

impl Load {
    /// Connects, and sends these requests; the destinations in the answers must be among these members. With `meeting`
    /// so many requests wait for each other when only the end of their bodies is yet to be sent. `first` is the number of
    /// the first request: by their numbers prompts differ.
    /// # Errors
    /// When there is no connection.
    pub async fn connect(
        address: SocketAddr,
        script: Script,
        members: &[SocketAddr],
        meeting: Option<usize>,
        first: usize,
    ) -> Result<Self> {
        let terms = Terms {
            script,
            members: members.iter().map(ToString::to_string).collect(),
            meeting: meeting.map(Barrier::new),
        };
        let (mut connections, mut drivers) = (Vec::new(), JoinSet::new());
        for _ in 0..CONNECTIONS {
            let socket = reach(address).await?;
            let handshake = h2::client::Builder::new()
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .enable_push(false)
                .handshake(socket);
            let (connection, driver) = handshake.await?;
            connections.push(connection);
            drivers.spawn(driver);
        }
        Ok(Self {
            connections,
            terms: Arc::new(terms),
            next: AtomicUsize::new(first),
            _drivers: drivers,
        })
    }

    /// Repeats a request until it goes well.
    /// # Errors
    /// When none does in this time.
    pub async fn ready(&self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = self.exchange()?.await {
            ensure!(start.elapsed() < limit, "not ready: {error:#}");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// So many requests, some at a time; each is timed from its last byte.
    /// # Errors
    /// When a request cannot be begun.
    pub async fn closed(&self, requests: usize, in_flight: usize) -> Result<Sample> {
        let start = Instant::now();
        let (mut running, mut sample) = (JoinSet::new(), Sample::default());
        let mut left = requests;
        for _ in 0..requests.min(in_flight) {
            running.spawn(self.exchange()?);
            left -= 1;
        }
        while let Some(ended) = running.join_next().await {
            if left > 0 {
                running.spawn(self.exchange()?);
                left -= 1;
            }
            sample.note(ended?, |times| times.picked - times.asked);
        }
        sample.took = start.elapsed();
        Ok(sample)
    }

    /// So many requests, as many a second at random times; each is timed from when it was to be sent.
    /// # Errors
    /// When a request cannot be begun.
    pub async fn open(&self, requests: usize, per_second: f64, seed: u64) -> Result<Sample> {
        let start = Instant::now();
        let (mut running, mut sample) = (JoinSet::new(), Sample::default());
        let (mut random, mut at) = (StdRng::seed_from_u64(seed), start);
        for _ in 0..requests {
            let share: f64 = random.random();
            at += Duration::from_secs_f64(-(1.0 - share).ln() / per_second);
            until(at).await;
            let (exchange, due) = (self.exchange()?, at);
            running.spawn(async move { (due, exchange.await) });
            while let Some(ended) = running.try_join_next() {
                let (due, outcome) = ended?;
                sample.note(outcome, |times| times.picked - due);
            }
        }
        while let Some(ended) = running.join_next().await {
            let (due, outcome) = ended?;
            sample.note(outcome, |times| times.picked - due);
        }
        sample.took = start.elapsed();
        Ok(sample)
    }

    fn exchange(&self) -> Result<impl Future<Output = Result<Times>> + use<>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = self.connections.get(number % self.connections.len().max(1));
        let connection = connection.context("no connection")?.clone();
        let terms = Arc::clone(&self.terms);
        Ok(async move {
            match timeout(REQUEST_TIMEOUT, terms.exchange(connection, number)).await {
                Ok(outcome) => outcome,
                Err(_) => bail!("no end after {REQUEST_TIMEOUT:?}"),
            }
        })
    }
}

/// Connects to a program that may not listen yet.
async fn reach(address: SocketAddr) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address).await {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) if start.elapsed() > CONNECT_TIMEOUT => {
                return Err(error).with_context(|| format!("nobody listens on {address}"));
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits to some microseconds.
async fn until(at: Instant) {
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > COARSE {
            sleep(left.saturating_sub(COARSE)).await;
        } else {
            yield_now().await;
        }
    }
}

// === impl Sample ===

impl Sample {
    fn note(&mut self, outcome: Result<Times>, time: impl FnOnce(Times) -> Duration) {
        match outcome {
            Ok(times) => self.picks.push(time(times)),
            Err(error) => self.wrong.push(format!("{error:#}")),
        }
    }
}
