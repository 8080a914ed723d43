//! Requests that wait until the pool can take them, and what lets them go on.
//!
//! ```text
//!  stream ─ push ─► Controller (pure) ◄─ step ─ completions, first bytes, scrapes, members, deadlines
//!     ▲                                   │
//!     └────────── Waiting (a future) ◄── pick
//! ```

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use moment::Clock;
use parking_lot::Mutex;
use scheduling::{
    Moment,
    flow::{self, Config, Controller, Expired, Regime, Ticket, Usage, Waiting as Request},
};
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
    time::sleep_until,
};

use super::elsewhere::Picking;
use crate::{
    config::{Band, FairnessPolicy, FlowControl, OrderingPolicy},
    reject::Reject,
};

/// The queue of one pool. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Queue<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    inner: Mutex<Inner<T>>,
    /// Length of the queue, so that nobody is woken for an empty one.
    waiting: AtomicUsize,
    /// Something happened that may let a request go on.
    changed: Notify,
}

#[derive(Debug)]
struct Inner<T> {
    controller: Controller,
    requests: HashMap<Ticket, Waiter<T>>,
}

#[derive(Debug)]
struct Waiter<T> {
    request: T,
    answer: oneshot::Sender<Picking>,
}

/// A request in the queue; it leaves it when this is dropped.
pub(crate) struct Waiting<T> {
    answer: oneshot::Receiver<Picking>,
    ticket: Ticket,
    queue: Queue<T>,
}

/// What waits at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueState {
    pub(crate) total: Usage,
    /// By priority, the highest first.
    pub(crate) bands: Vec<(i32, Usage)>,
    /// By priority and fairness id, [`MAX_FLOWS`] at most.
    pub(crate) flows: Vec<(i32, Arc<str>, Usage)>,
}

/// Flows that are shown: clients can make as many as requests wait.
const MAX_FLOWS: usize = 100;

/// What decides over the queue.
pub(crate) trait Dispatch<T> {
    /// How near the pool is to its limit; 1 and above takes nothing more.
    fn saturation(&self) -> f64;

    /// Whether the pool has endpoints.
    fn regime(&self) -> Regime;

    /// Picks for a request, which raises the saturation.
    fn pick(&self, request: T) -> Picking;

    /// A request waited too long. Called with the queue's lock.
    fn expired(&self, _request: &T, _reject: &Reject) {}
}

// === impl Queue ===

impl<T> Queue<T> {
    pub(crate) fn new(config: Config) -> Self {
        Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                controller: Controller::new(config, Regime::Serving),
                requests: HashMap::new(),
            }),
            waiting: AtomicUsize::new(0),
            changed: Notify::new(),
        }))
    }

    /// Lets a request wait.
    ///
    /// # Errors
    /// [`Reject::QueueFull`] where there is no room.
    pub(crate) fn push(
        &self,
        place: Request,
        request: T,
        now: Moment,
    ) -> Result<Waiting<T>, Reject> {
        let (answer, receiver) = oneshot::channel();
        let mut inner = self.0.inner.lock();
        let ticket = inner
            .controller
            .enqueue(place, now)
            .map_err(|full| Reject::QueueFull(full.to_string()))?;
        inner.requests.insert(ticket, Waiter { request, answer });
        self.count(&inner);
        drop(inner);
        self.0.changed.notify_one();
        Ok(Waiting {
            answer: receiver,
            ticket,
            queue: Self(Arc::clone(&self.0)),
        })
    }

    /// Something happened that may let a request go on. Costs next to nothing while none waits.
    pub(crate) fn wake(&self) {
        if self.0.waiting.load(Ordering::Acquire) > 0 {
            self.0.changed.notify_one();
        }
    }

    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.0.waiting.load(Ordering::Acquire)
    }

    /// What waits.
    pub(crate) fn state(&self) -> QueueState {
        let inner = self.0.inner.lock();
        let flows = inner.controller.flows().take(MAX_FLOWS);
        QueueState {
            total: inner.controller.usage(),
            bands: inner.controller.bands().collect(),
            flows: flows
                .map(|flow| (flow.priority, Arc::clone(flow.fairness_id), flow.usage))
                .collect(),
        }
    }

    /// New limits; who waits keeps its place.
    pub(crate) fn reconfigure(&self, config: Config) {
        self.0.inner.lock().controller.reconfigure(config);
        self.wake();
    }

    /// Lets requests go on as the pool can take them, for ever.
    pub(crate) async fn run(&self, dispatch: &impl Dispatch<T>, clock: Clock) {
        loop {
            while self.len() > 0 && self.dispatch(dispatch, clock.now()) {
                yield_now().await; // a pool that gets free takes many
            }
            let deadline = self.expire(dispatch, clock.now());
            let due = async {
                match deadline {
                    Some(deadline) => sleep_until(clock.instant(deadline)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = due => {}
            }
        }
    }

    /// Ends the waits that are over; when the next one is.
    fn expire(&self, dispatch: &impl Dispatch<T>, now: Moment) -> Option<Moment> {
        let mut inner = self.0.inner.lock();
        if inner.requests.is_empty() {
            return None;
        }
        let Inner {
            controller,
            requests,
        } = &mut *inner;
        controller.set_regime(dispatch.regime(), now);
        for Expired { ticket, regime } in controller.expire(now) {
            if let Some(waiter) = requests.remove(&ticket) {
                let empty = regime == Regime::Empty;
                let reject = Reject::Expired { empty };
                dispatch.expired(&waiter.request, &reject);
                // An error: the stream is gone, and its ticket with it.
                let _ = waiter.answer.send(Picking::Made(Err(reject)));
            }
        }
        let deadline = controller.deadline();
        self.count(&inner);
        deadline
    }

    /// Lets the next request go on, if the pool can take it. The lock is not held while it is picked for.
    fn dispatch(&self, dispatch: &impl Dispatch<T>, now: Moment) -> bool {
        let saturation = dispatch.saturation();
        let waiter = {
            let mut inner = self.0.inner.lock();
            let Some(ticket) = inner.controller.next(now, saturation) else {
                return false;
            };
            let waiter = inner.requests.remove(&ticket);
            self.count(&inner);
            waiter
        };
        if let Some(Waiter { request, answer }) = waiter {
            // An answer that nobody waits for gives its place back when it is dropped.
            let _ = answer.send(dispatch.pick(request));
        }
        true
    }

    fn count(&self, inner: &Inner<T>) {
        self.0
            .waiting
            .store(inner.requests.len(), Ordering::Release);
    }
}

// === impl Waiting ===

impl<T> Future for Waiting<T> {
    type Output = Picking;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = Pin::new(&mut self.answer).poll(cx);
        // The queue never drops a request unanswered.
        answered.map(|answer| answer.unwrap_or(Picking::Made(Err(Reject::ShuttingDown))))
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        let mut inner = self.queue.0.inner.lock();
        if inner.requests.remove(&self.ticket).is_some() {
            inner.controller.cancel(self.ticket);
            self.queue.count(&inner);
        }
    }
}

/// The queue's own form of its configuration.
pub(super) fn flow_config(config: &FlowControl) -> flow::Config {
    let band = |band: &Band| flow::BandConfig {
        max_requests: band.max_requests,
        max_bytes: band.max_bytes,
        fairness: match band.fairness {
            FairnessPolicy::GlobalStrict => flow::Fairness::GlobalStrict,
            FairnessPolicy::RoundRobin => flow::Fairness::RoundRobin,
        },
        ordering: match band.ordering {
            OrderingPolicy::Fcfs => flow::Ordering::Fcfs,
            OrderingPolicy::Edf => flow::Ordering::Edf,
        },
    };
    let bands = config.bands.iter();
    flow::Config {
        bands: bands
            .map(|(priority, one)| (*priority, band(one)))
            .collect(),
        default_band: band(&config.default_band),
        default_negative_band: Some(band(&config.default_negative_band)),
        // there zero is without end
        default_ttl: config.default_request_ttl.unwrap_or(Duration::ZERO),
        no_endpoint_ttl: Some(config.no_endpoint_request_ttl.unwrap_or(Duration::ZERO)),
        max_requests: config.max_requests,
        max_bytes: config.max_bytes,
    }
}

#[cfg(test)]
mod tests;
