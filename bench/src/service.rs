//! Load for services over HTTP, the Metadata-Center, the Processor and the Router: what gateways and endpoint pickers send,
//! as bytes, over connections that are kept.
//!
//! The client is as thin as one can be that checks each reply: it shares the machine with the service.
//!
//! ```text
//!  Callers (requests as bytes) ─► Wire ── HTTP/1.1 ──► ServiceProcess (CPU from the kernel)
//!    └─ Timed: times of calls
//! ```

mod calls;
mod ids;
mod process;
mod stale;
mod transfer;
mod wire;

pub use calls::{Batches, Caller, Mix, Picks};
pub use ids::{Chats, Routes};
pub use process::ServiceProcess;
pub use stale::{Stale, stale};
pub use transfer::{Transfer, Transferred, Way};
pub use wire::Wire;

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// What became of many calls.
#[derive(Debug, Default)]
pub struct Timed {
    /// Of each call: until its reply was there.
    pub calls: Vec<Duration>,
    /// Of all together.
    pub took: Duration,
}

/// Each caller has a connection of its own and sends so many calls, one after the other.
/// # Errors
/// When a connection or a call fails.
pub async fn closed<C: Caller>(
    address: SocketAddr,
    callers: Vec<C>,
    calls: usize,
) -> Result<Timed> {
    run(address, callers, calls, None).await
}

/// As [`closed`], but all callers together begin so many calls a second, evenly; each is timed from when it was due, if the
/// one before it was not answered by then.
/// # Errors
/// When a connection or a call fails.
pub async fn open<C: Caller>(
    address: SocketAddr,
    callers: Vec<C>,
    calls: usize,
    per_second: f64,
) -> Result<Timed> {
    run(address, callers, calls, Some(per_second)).await
}

async fn run<C: Caller>(
    address: SocketAddr,
    callers: Vec<C>,
    calls: usize,
    per_second: Option<f64>,
) -> Result<Timed> {
    let mut wires = Vec::new();
    for _ in &callers {
        wires.push(Wire::connect(address).await?);
    }
    let start = Instant::now();
    let space = per_second.map(|it| Duration::from_secs_f64(callers.len() as f64 / it));
    let mut running = JoinSet::new();
    for (at, (mut caller, mut wire)) in callers.into_iter().zip(wires).enumerate() {
        running.spawn(async move {
            let mut times = Vec::with_capacity(calls);
            // The callers one after the other, not all at once.
            let shift = space.map(|it| it.mul_f64(at as f64 * 0.618 % 1.0));
            for call in 0..calls {
                let call = u32::try_from(call).unwrap_or(u32::MAX);
                let due = space
                    .zip(shift)
                    .map(|(space, shift)| start + shift + space * call);
                let since = match due.filter(|due| *due > Instant::now()) {
                    Some(due) => {
                        sleep_until(due).await;
                        // Timers are late by a millisecond, which is not the service's.
                        Instant::now()
                    }
                    None => due.unwrap_or_else(Instant::now),
                };
                let body = wire.call(caller.next_call()).await?;
                caller.check(body)?;
                times.push(since.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut timed = Timed::default();
    while let Some(ended) = running.join_next().await {
        timed.calls.extend(ended??);
    }
    timed.took = start.elapsed();
    Ok(timed)
}
