//! Calls that nobody waits for.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use prometheus_client::metrics::counter::Counter;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    call::{Call, CallError, Reply},
    hop::Hop,
};

/// Calls that wait: those of four seconds at 1000 requests a second.
const QUEUE: usize = 4096;
/// Each has so long, and all together once the program ends.
const LIMIT: Duration = Duration::from_secs(1);
/// Calls at once: at 1 ms each as many as the queue holds go in 130 ms.
const AT_ONCE: usize = 32;

/// Takes calls and returns at once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sender {
    queue: mpsc::Sender<Call>,
    dropped: Counter,
}

/// Makes the calls, for the owner to run.
#[derive(Debug)]
pub struct Sending {
    queue: mpsc::Receiver<Call>,
    hop: Hop,
    dropped: Counter,
}

// === impl Sender ===

impl Sender {
    /// Calls by `hop`. `dropped` counts those that found the queue full, and those that had no reply within 1 s.
    pub fn new(hop: Hop, dropped: Counter) -> (Self, Sending) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let sending = Sending {
            queue,
            hop,
            dropped: dropped.clone(),
        };
        (
            Self {
                queue: sender,
                dropped,
            },
            sending,
        )
    }

    /// Has a call made, at some time, if there is room in the queue.
    pub fn send(&self, call: Call) {
        if self.queue.try_send(call).is_err() {
            self.dropped.inc();
        }
    }
}

// === impl Sending ===

impl Sending {
    /// Makes the calls until all senders are gone. Once `stop` is cancelled it takes no more, and what waits has 1 s.
    pub async fn run(self, stop: CancellationToken) {
        let end = async {
            stop.cancelled().await;
            sleep(LIMIT).await;
        };
        tokio::select! {
            () = self.make_calls(&stop) => {}
            () = end => {}
        }
    }

    async fn make_calls(self, stop: &CancellationToken) {
        let Self {
            mut queue,
            hop,
            dropped,
        } = self;
        let mut calls = FuturesUnordered::new();
        let mut is_open = true;
        loop {
            tokio::select! {
                () = stop.cancelled(), if is_open => {
                    queue.close();
                    is_open = false;
                }
                Some(result) = calls.next(), if !calls.is_empty() => record(result, &dropped),
                call = queue.recv(), if calls.len() < AT_ONCE => match call {
                    Some(call) => calls.push(hop.call(call, LIMIT)),
                    None => break,
                },
            }
        }
        while let Some(result) = calls.next().await {
            record(result, &dropped);
        }
    }
}

fn record(result: Result<Reply, CallError>, dropped: &Counter) {
    match result {
        Ok(reply) => debug!(status = reply.status.as_u16(), "a call was made"),
        Err(error) => {
            dropped.inc();
            debug!(reason = error.reason(), %error, "a call has no reply");
        }
    }
}
