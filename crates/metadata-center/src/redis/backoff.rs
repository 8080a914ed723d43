//! How long to wait before the next attempt.

use std::time::Duration;

use rand::RngExt;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(2);

/// Doubles from 50 ms to 2 s; each wait is half of that or up to all of it, by chance.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }

    pub(super) async fn wait(&mut self) {
        let part = rand::rng().random_range(0.5..=1.0);
        tokio::time::sleep(self.next.mul_f64(part)).await;
        self.next = (self.next * 2).min(MOST);
    }
}
