//! Waits between tries.

use std::time::Duration;

use rand::RngExt;

/// Wait before the next try after this many failures in a row: full jitter over a span that doubles up to `max`, never
/// under `min`, so that many that failed together do not return together.
pub fn backoff(failures: u32, min: Duration, max: Duration, rng: &mut impl rand::Rng) -> Duration {
    let span = min
        .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
        .min(max);
    min.max(span.mul_f64(rng.random::<f64>()))
}

/// Up to a fifth more or less, so that what started together does not come together each time.
pub fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::rng().random_range(0.8..1.2))
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn backoff_grows_within_its_bounds() {
        let (min, max) = (Duration::from_millis(500), Duration::from_secs(30));
        let mut rng = StdRng::seed_from_u64(1);
        let mut longest = |failures| {
            let waits = (0..100).map(|_| backoff(failures, min, max, &mut rng));
            waits
                .inspect(|wait| assert!((min..=max).contains(wait), "{failures}: {wait:?}"))
                .max()
                .expect("a wait")
        };
        assert!(longest(1) < Duration::from_millis(1001));
        assert!(longest(3) < Duration::from_millis(4001));
        assert!(longest(20) > Duration::from_secs(20));
        assert!(longest(80) > Duration::from_secs(20));
    }
}
