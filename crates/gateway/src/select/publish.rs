//! When new shares replace those that Envoys have (pure).

use std::collections::BTreeMap;
use std::time::Duration;

use moment::Moment;

use super::selection::Assigned;

/// Least time between two changes of an import's shares alone.
const PACE: Duration = Duration::from_secs(1);

/// By cluster.
pub(crate) type Placement = BTreeMap<String, Assigned>;

/// What was published last, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) placement: Placement,
    at: Option<Moment>,
}

// === impl Published ===

impl Published {
    /// Whether nothing was published yet.
    pub(crate) fn is_first(&self) -> bool {
        self.at.is_none()
    }

    /// Takes over the new placement if it is to be published now: at once where other clusters serve or the order changed,
    /// else when a share moved by the hysteresis, in permille, and not too often. Returns whether it did.
    pub(crate) fn offer(&mut self, new: &Placement, hysteresis: u32, now: Moment) -> bool {
        if self.placement == *new {
            return false;
        }
        let is_same_set = self.placement.len() == new.len()
            && self
                .placement
                .iter()
                .zip(new)
                .all(|((a, before), (b, after))| {
                    a == b && (before.health, before.priority) == (after.health, after.priority)
                });
        if is_same_set {
            let mut shares = self.placement.values().zip(new.values());
            let moved = shares.any(|(a, b)| a.weight.abs_diff(b.weight) >= hysteresis.max(1));
            let is_paced = self.at.is_none_or(|at| now.since(at) >= PACE);
            if !moved || !is_paced {
                return false;
            }
        }
        self.placement.clone_from(new);
        self.at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::select::selection::Health;

    /// `(serves, priority, share)` of clusters `a`, `b` and so on.
    fn mk(clusters: &[(bool, u32, u32)]) -> Placement {
        let names = ('a'..='z').map(String::from);
        let assigned = clusters.iter().map(|(serves, priority, share)| Assigned {
            weight: *share,
            priority: *priority,
            health: if *serves {
                Health::Healthy
            } else {
                Health::Unhealthy
            },
        });
        names.zip(assigned).collect()
    }

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn another_set_or_order_is_published_at_once() {
        let mut published = Published::default();
        let steps = [
            mk(&[(true, 0, 500), (true, 0, 500)]),
            mk(&[(true, 0, 1000), (false, 0, 0)]),
            mk(&[(true, 1, 1000), (true, 0, 1000)]),
            mk(&[(true, 0, 1000)]),
            mk(&[]),
        ];
        for step in &steps {
            assert!(published.offer(step, 50, at(1)), "{step:?}");
            assert!(!published.offer(step, 50, at(5000)), "nothing new");
            assert_eq!(published.placement, *step);
        }
    }

    #[test]
    fn shares_alone_are_published_from_the_hysteresis_on_and_once_a_second() {
        let mut published = Published::default();
        let shares = |a| mk(&[(true, 0, a), (true, 0, 1000 - a)]);
        assert!(published.offer(&shares(500), 50, at(0)));
        for (share, millis, expected) in [
            (549, 5000, false),
            (550, 5000, true),
            (700, 5999, false), // too soon
            (700, 6000, true),
            (651, 9000, false),
        ] {
            let is_published = published.offer(&shares(share), 50, at(millis));
            assert_eq!(is_published, expected, "{share} at {millis} ms");
        }
        assert_eq!(published.placement, shares(700));
    }

    proptest! {
        #[test]
        fn noise_within_the_hysteresis_publishes_nothing(
            noise in prop::collection::vec(-24_i32..=24, 1..50),
        ) {
            let mut published = Published::default();
            let shares = |a: i32| {
                let a = u32::try_from(a).unwrap();
                mk(&[(true, 0, a), (true, 0, 1000 - a)])
            };
            published.offer(&shares(400), 50, at(0));
            for (second, noise) in (1..).zip(&noise) {
                prop_assert!(!published.offer(&shares(400 + noise), 50, at(second * 1000)));
            }
        }
    }
}
