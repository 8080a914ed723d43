//! How long a write that failed waits.

use std::time::Duration;

use rand::{Rng, RngExt};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// Doubles with each failure in a row. A part of it is chance, or all would return at once to a service that is back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// How long to wait after one more failure: 50 to 100 ms after the first, 1 to 2 s at last.
    pub(crate) fn failed<R: Rng + ?Sized>(&mut self, rng: &mut R) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(LONGEST);
        longest.mul_f64(rng.random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn waits_double_up_to_two_seconds_with_some_chance() {
        let waits = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::new();
            [(); 8].map(|()| backoff.failed(&mut rng).as_millis())
        };
        let most = [100, 200, 400, 800, 1600, 2000, 2000, 2000];
        for seed in 0..50 {
            for (wait, most) in waits(seed).into_iter().zip(most) {
                assert!(most / 2 <= wait && wait <= most, "{wait} of {most}");
            }
        }
        assert_ne!(waits(1), waits(2));
    }
}
