//! A program that serves: its parts, and their end.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    thread::available_parallelism,
    time::Duration,
};

use anyhow::{Context, anyhow};
use process::{Health, Shutdown};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_stream::wrappers::SignalStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::port::{Handler, Server};

/// After SIGTERM: until nobody sends calls here any more, as endpoints of Services go away with a pod's readiness.
const LINGER: Duration = Duration::from_secs(5);

/// All that runs. A part that ends before its time ends the program.
#[derive(Debug)]
pub struct Parts {
    tasks: JoinSet<(Part, anyhow::Result<()>)>,
    health: Health,
    /// Connections end with their next reply.
    leaving: CancellationToken,
    stop: CancellationToken,
    drain_timeout: Duration,
    /// Servers that have not ended.
    servers: usize,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    name: &'static str,
    /// A drain waits for it.
    is_server: bool,
}

/// Opens a port; `::` is all addresses of both families.
///
/// # Errors
/// With the flag that named the port.
pub fn listen(host: IpAddr, port: u16, flag: &str) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    process::listen(address)
        .with_context(|| format!("cannot listen on {address} ({flag}): is it taken?"))
}

/// SIGHUPs: files are to be read again. To be listened for always, so that the signal ends no program.
///
/// # Errors
/// When the process can take no signals.
pub fn hangups() -> anyhow::Result<SignalStream> {
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    Ok(SignalStream::new(hangups))
}

/// Threads for connections: one for each core.
pub fn threads() -> NonZeroUsize {
    available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

// === impl Parts ===

impl Parts {
    /// Nothing runs yet.
    pub fn new(health: Health, drain_timeout: Duration) -> Self {
        Self {
            tasks: JoinSet::new(),
            health,
            leaving: CancellationToken::new(),
            stop: CancellationToken::new(),
            drain_timeout,
            servers: 0,
        }
    }

    /// Cancelled when no new calls are taken any more.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a part. It is dropped at the end of the program, wherever it is then.
    pub fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let part_of = Part {
            name,
            is_server: false,
        };
        self.tasks.spawn(async move { (part_of, part.await) });
    }

    /// Starts a server; a drain waits until its last calls have ended.
    pub fn serve<H: Handler>(
        &mut self,
        name: &'static str,
        server: Server<H>,
        listener: TcpListener,
    ) {
        let part = Part {
            name,
            is_server: true,
        };
        let serving = server.serve(listener, self.leaving.clone(), self.stop.clone());
        self.servers += 1;
        self.tasks
            .spawn(async move { (part, serving.await.map_err(Into::into)) });
    }

    /// Runs until a part ends, or until `shutdown`.
    ///
    /// # Errors
    /// What made a part end before its time.
    pub async fn until(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        tokio::select! {
            Some(ended) = self.tasks.join_next() => {
                let error = unexpected(ended);
                self.health.fail(error.to_string());
                return Err(error);
            }
            () = shutdown.drain.cancelled() => {}
        }
        tokio::select! {
            result = self.drain() => result,
            () = shutdown.now.cancelled() => {
                warn!("ended at once: calls in progress are cut");
                Ok(())
            }
        }
    }

    /// Not ready, then no new calls, then the end.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let (start, limit) = (Instant::now(), self.drain_timeout);
        let linger = LINGER.min(limit / 2);
        self.health.drain();
        self.leaving.cancel();
        info!(timeout = ?limit, served_for = ?linger, "draining: not ready any more");
        sleep_until(start + linger).await;
        self.stop.cancel();
        if let Ok(result) = timeout_at(start + limit, self.served()).await {
            return result;
        }
        warn!("the drain timeout is over: calls in progress are cut");
        Ok(())
    }

    /// Waits for the end of the servers. Another part that ends first is an error, but cuts no call.
    async fn served(&mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        while self.servers > 0
            && let Some(ended) = self.tasks.join_next().await
        {
            match ended {
                Ok((part, served)) if part.is_server => {
                    self.servers -= 1;
                    result = result.and(served.context(part.name));
                }
                ended => {
                    let error = unexpected(ended);
                    warn!(%error, "still draining");
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}

fn unexpected(ended: Result<(Part, anyhow::Result<()>), JoinError>) -> anyhow::Error {
    match ended {
        Ok((Part { name, .. }, Ok(()))) => anyhow!("the {name} ended"),
        Ok((Part { name, .. }, Err(error))) => error.context(format!("the {name} ended")),
        Err(error) => anyhow!("a part died: {error}"),
    }
}
