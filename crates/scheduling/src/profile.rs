//! How endpoints are scored and one is taken.

use crate::load::{Freshness, LoadView};

/// Scorers, their weights, and the picker.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Each score is clamped to 0..1, multiplied by its weight, and summed.
    pub scorers: Vec<WeightedScorer>,
    /// Chooses by the sums.
    pub picker: Picker,
    /// How long scraped values count.
    pub freshness: Freshness,
}

/// A scorer and what its score counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedScorer {
    /// The scorer.
    pub scorer: Scorer,
    /// Its factor.
    pub weight: f64,
}

/// Gives each candidate a score, 0 (worst) to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scorer {
    /// `queue-scorer`: (max - waiting) / (max - min) over the candidates; all equal: 1.
    Queue,
    /// `kv-cache-utilization-scorer`: 1 - used share of the KV cache.
    KvCacheUtilization,
}

/// Chooses among scored candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picker {
    /// `max-score-picker`: the best; ties go to the fewest own requests in flight, then to chance.
    MaxScore,
}

// === impl Profile ===

impl Default for Profile {
    /// The ecosystem's default weights of the scorers there are.
    fn default() -> Self {
        let weigh = |scorer, weight| WeightedScorer { scorer, weight };
        Self {
            scorers: vec![
                weigh(Scorer::Queue, 2.0),
                weigh(Scorer::KvCacheUtilization, 2.0),
            ],
            picker: Picker::MaxScore,
            freshness: Freshness::default(),
        }
    }
}

// === impl Scorer ===

impl Scorer {
    /// Hands the score of each view to `add`, in their order. A score may lie outside 0..1 or be NaN:
    /// the caller clamps.
    pub(crate) fn score<'a>(
        self,
        views: impl Iterator<Item = &'a LoadView> + Clone,
        mut add: impl FnMut(usize, f64),
    ) {
        match self {
            Self::Queue => {
                let (min, max) = views
                    .clone()
                    .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), view| {
                        (min.min(view.waiting), max.max(view.waiting))
                    });
                let spread = max - min;
                for (index, view) in views.enumerate() {
                    add(
                        index,
                        if spread > 0.0 {
                            (max - view.waiting) / spread
                        } else {
                            1.0
                        },
                    );
                }
            }
            Self::KvCacheUtilization => {
                for (index, view) in views.enumerate() {
                    add(index, 1.0 - view.kv);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::load::Quality;

    fn mk_view(waiting: f64, kv: f64) -> LoadView {
        LoadView {
            waiting,
            running: 0.0,
            kv,
            in_flight: 0,
            quality: Quality::Fresh,
        }
    }

    #[rstest]
    #[case::spread(Scorer::Queue, &[(0.0, 0.0), (5.0, 0.0), (10.0, 0.0)], &[1.0, 0.5, 0.0])]
    #[case::equal(Scorer::Queue, &[(3.0, 0.0), (3.0, 0.0)], &[1.0, 1.0])]
    #[case::alone(Scorer::Queue, &[(7.0, 0.0)], &[1.0])]
    #[case::kv(Scorer::KvCacheUtilization, &[(0.0, 0.0), (0.0, 0.25), (0.0, 1.0)], &[1.0, 0.75, 0.0])]
    fn scores_are_the_golden_ones(
        #[case] scorer: Scorer,
        #[case] views: &[(f64, f64)],
        #[case] want: &[f64],
    ) {
        let views: Vec<_> = views
            .iter()
            .map(|&(waiting, kv)| mk_view(waiting, kv))
            .collect();
        let mut got = vec![f64::NAN; views.len()];
        scorer.score(views.iter(), |index, score| got[index] = score);
        assert_eq!(got, want);
    }
}
