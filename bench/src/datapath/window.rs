//! What was answered in a part of the time in which clients ran. Pure.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::Instant;

use crate::figure::percentile;

/// One request that was answered well.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When the whole answer had come.
    pub at: Instant,
    /// From the first byte of the request until then.
    pub took: Duration,
    /// The number of the cluster that answered, among those that may.
    pub cluster: usize,
}

/// The answers of some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Number of answers.
    pub answers: usize,
    /// Answers in each second.
    pub per_second: f64,
    /// How long half of the requests took at most.
    pub p50: Duration,
    /// How long 99 % of the requests took at most.
    pub p99: Duration,
}

// === impl Window ===

impl Window {
    /// Of the answers that came after `from` and not after `until`. Each of so many `clusters` must have given one.
    /// # Errors
    /// When a cluster gave none.
    pub fn of(
        answered: &[Answered],
        from: Instant,
        until: Instant,
        clusters: usize,
    ) -> Result<Self> {
        let inside = answered
            .iter()
            .filter(|one| from < one.at && one.at <= until);
        let (mut times, mut of_cluster) = (Vec::new(), vec![0_usize; clusters]);
        for one in inside {
            times.push(one.took);
            if let Some(count) = of_cluster.get_mut(one.cluster) {
                *count += 1;
            }
        }
        ensure!(
            !of_cluster.contains(&0),
            "a cluster answered nothing: {of_cluster:?} answers of each"
        );
        let seconds = until.saturating_duration_since(from).as_secs_f64();
        Ok(Self {
            answers: times.len(),
            per_second: times.len() as f64 / seconds,
            p50: percentile(&times, 0.5),
            p99: percentile(&times, 0.99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn mk_answers(clusters: usize) -> (Instant, Vec<Answered>) {
        let start = Instant::now();
        let answers = (1_u32..=100).map(|number| Answered {
            at: start + SECOND * number / 10,
            took: Duration::from_millis(number.into()),
            cluster: usize::try_from(number).unwrap() % clusters,
        });
        (start, answers.collect())
    }

    #[test]
    fn answers_before_and_after_are_not_counted() {
        let (start, answers) = mk_answers(1);
        let (from, until) = (start + SECOND * 2, start + SECOND * 7);
        let window = Window::of(&answers, from, until, 1).unwrap();
        assert_eq!(window.answers, 50);
        assert!((window.per_second - 10.0).abs() < 1e-9, "{window:?}");
        assert_eq!(window.p50, Duration::from_millis(45));
        assert_eq!(window.p99, Duration::from_millis(70));
    }

    #[test]
    fn cluster_without_an_answer_is_an_error() {
        let (start, answers) = mk_answers(2);
        let until = start + SECOND * 10;
        Window::of(&answers, start, until, 2).unwrap();
        let error = Window::of(&answers, start, until, 3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a cluster answered nothing: [50, 50, 0] answers of each"
        );
        Window::of(&answers, until, until + SECOND, 1).unwrap_err();
    }
}
