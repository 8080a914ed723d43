//! Responses that an Envoy has not answered, and how long that is borne.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::budget::{Budget, Turn};

/// Between two looks whether somebody waits for the answer that is late.
const LATE_LOOK: Duration = Duration::from_secs(1);

/// Responses by nonce, and when they got their turn.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    sent: Mutex<BTreeMap<u64, (Turn, Instant)>>,
    changed: Notify,
}

// === impl Unanswered ===

impl Unanswered {
    pub(super) fn insert(&self, nonce: u64, turn: Turn) {
        self.sent.lock().insert(nonce, (turn, Instant::now()));
        self.changed.notify_one();
    }

    pub(super) fn has(&self, nonce: u64) -> bool {
        self.sent.lock().contains_key(&nonce)
    }

    pub(super) fn remove(&self, nonce: u64) {
        self.sent.lock().remove(&nonce);
    }

    /// Comes back when an answer is late by this limit, and others wait for it. What else happens does not put it off.
    pub(super) async fn late(&self, budget: &Budget, limit: Duration) {
        let mut next_look = Instant::now();
        loop {
            let oldest = self.sent.lock().values().map(|(_, at)| *at).min();
            let Some(oldest) = oldest else {
                self.changed.notified().await;
                continue;
            };
            sleep_until(next_look.max(oldest + limit)).await;
            let now = Instant::now();
            next_look = now + LATE_LOOK;
            let sent = self.sent.lock();
            let mut late = sent.values().filter(|(_, at)| *at + limit <= now);
            if late.any(|(turn, _)| budget.is_waited_for(turn)) {
                return;
            }
        }
    }
}
