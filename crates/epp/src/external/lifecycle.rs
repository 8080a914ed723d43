//! What becomes of a booking of the Router: it is begun with a question, kept alive, told that its prompt is computed, and
//! ended on every path.

use std::{collections::HashSet, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use processor_api::{MAX_KEEPALIVES, ReservationId};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::External;

/// Between two messages that keep bookings alive: the Router drops those that it heard nothing of for four times as long.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Parts of the live ones, each with its lock: sixteen threads seldom meet in one.
const SHARDS: usize = 16;

/// Something that the Processor is to relay to the Router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LifeCycle {
    /// The first byte of the response came from this worker.
    PrefillComplete(ReservationId, SocketAddr),
    /// It is over, or its worker was not used.
    End(ReservationId),
    /// These still run; at most [`MAX_KEEPALIVES`].
    Keepalive(Vec<ReservationId>),
}

/// A booking that may have been made. Its drop ends it.
#[derive(Debug)]
pub(crate) struct Reservation {
    id: ReservationId,
    external: Arc<External>,
    is_prefilled: bool,
    /// The Router may know of it.
    is_known: bool,
}

/// Bookings that may live.
#[derive(Debug, Default)]
pub(super) struct Live([Mutex<HashSet<ReservationId>>; SHARDS]);

// === impl Reservation ===

impl Reservation {
    /// A new one, about to be sent.
    pub(crate) fn begin(external: &Arc<External>) -> Self {
        let id = ReservationId::random(&mut rand::rng());
        external.live.shard(id).lock().insert(id);
        Self {
            id,
            external: Arc::clone(external),
            is_prefilled: false,
            is_known: true,
        }
    }

    pub(crate) fn id(&self) -> ReservationId {
        self.id
    }

    /// It never reached the Router.
    pub(crate) fn forget(mut self) {
        self.is_known = false;
    }

    /// The first byte of the response came from this worker.
    pub(crate) fn prefilled(&mut self, by: SocketAddr) {
        if !std::mem::replace(&mut self.is_prefilled, true) {
            let report = LifeCycle::PrefillComplete(self.id, by);
            self.external.processor.report(report);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.external.live.shard(self.id).lock().remove(&self.id);
        if self.is_known {
            self.external.processor.report(LifeCycle::End(self.id));
        }
    }
}

// === impl Live ===

impl Live {
    fn shard(&self, id: ReservationId) -> &Mutex<HashSet<ReservationId>> {
        // the first one behind its prefix is chance, as all others are
        let first = id.as_str().as_bytes().get(2).copied().unwrap_or_default();
        let index = usize::from(first) % SHARDS;
        self.0.get(index).unwrap_or(&self.0[0])
    }

    fn all(&self) -> Vec<ReservationId> {
        let mut all = Vec::new();
        for shard in &self.0 {
            all.extend(shard.lock().iter());
        }
        all
    }
}

// === impl External ===

impl External {
    /// Keeps bookings alive, for ever.
    pub(crate) async fn keep_alive(&self) {
        let mut ticks = interval_at(Instant::now() + KEEPALIVE, KEEPALIVE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for batch in self.live.all().chunks(MAX_KEEPALIVES) {
                self.processor.report(LifeCycle::Keepalive(batch.to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::external::fixtures::Scripted;

    #[tokio::test(start_paused = true)]
    async fn live_bookings_are_named_each_15_s_by_10_000_and_ended_ones_are_not() {
        let scripted = Scripted::silent();
        let external = scripted.external();
        let mut all: Vec<_> = (0..=MAX_KEEPALIVES)
            .map(|_| Reservation::begin(&external))
            .collect();
        let mut keeping = std::pin::pin!(external.keep_alive());
        let mut pass = async |time| {
            assert!(keeping.as_mut().now_or_never().is_none());
            tokio::time::advance(time).await;
            assert!(keeping.as_mut().now_or_never().is_none());
            scripted.take_reports()
        };
        assert_eq!(pass(Duration::from_millis(14_999)).await, []);
        let reports = pass(Duration::from_millis(1)).await;
        let lengths = reports.iter().map(|report| match report {
            LifeCycle::Keepalive(ids) => ids.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [MAX_KEEPALIVES, 1]);
        let last = all.pop().unwrap();
        let ended: HashSet<_> = all.iter().map(Reservation::id).collect();
        drop(all);
        assert_eq!(scripted.take_reports().len(), ended.len());
        assert_eq!(
            pass(KEEPALIVE).await,
            [LifeCycle::Keepalive(vec![last.id()])]
        );
        drop(last);
        scripted.take_reports();
        assert_eq!(pass(KEEPALIVE).await, [], "nothing runs");
    }
}
