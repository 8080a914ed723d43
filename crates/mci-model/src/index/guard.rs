//! The isolation guard (spec 4.3): if most members become silent or leave at once, the fault may be ours. Pure.

use std::{collections::BTreeMap, time::Duration};

use crate::name::ClusterName;
use moment::Moment;

/// Whether most members were lost at once, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    /// When each member was lost or left, within [`WINDOW`].
    losses: BTreeMap<ClusterName, Moment>,
    active: Option<Active>,
}

/// How many members there are, and how many of them are silent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Census {
    pub members: usize,
    pub lost: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Active {
    since: Moment,
    /// Since when at most half are lost.
    calm_since: Option<Moment>,
}

/// Losses within this time count as one event.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// The guard ends once at most half of the members have been lost for this time.
const CALM: Duration = Duration::from_secs(30);

/// Whether `some` are most of `all`, and 2 or more.
fn are_most(some: usize, all: usize) -> bool {
    some >= 2 && some.saturating_mul(2) > all
}

// === impl Guard ===

impl Guard {
    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Since when it is active.
    pub(super) fn since(&self) -> Option<Moment> {
        self.active.map(|active| active.since)
    }

    /// A member became silent, or left the inventory.
    pub(super) fn lost(&mut self, name: &ClusterName, now: Moment) {
        self.losses.insert(name.clone(), now);
    }

    /// The member is back.
    pub(super) fn found(&mut self, name: &ClusterName) {
        self.losses.remove(name);
    }

    /// Turns the guard on.
    pub(super) fn raise(&mut self, now: Moment) {
        self.active.get_or_insert(Active {
            since: now,
            calm_since: None,
        });
    }

    /// Turns the guard on or off as the losses require; returns whether that changed it.
    pub(super) fn update(&mut self, census: Census, now: Moment) -> bool {
        self.losses.retain(|_, at| now.since(*at) <= WINDOW);
        let was_active = self.is_active();
        if are_most(self.losses.len(), census.members) {
            self.raise(now);
        }
        if let Some(active) = &mut self.active {
            if are_most(census.lost, census.members) {
                active.calm_since = None;
            } else {
                let since = *active.calm_since.get_or_insert(now);
                if now.since(since) >= CALM {
                    self.active = None;
                    self.losses.clear();
                }
            }
        }
        self.is_active() != was_active
    }
}

/// Whether most of the recorded members are missing in the inventory at the start.
pub(super) fn most_are_missing(recorded: usize, missing: usize) -> bool {
    are_most(missing, recorded)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::mk_name;

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    /// A guard over 5 members that lost one of them at each of these seconds, and when it turned on.
    fn lose(seconds: &[u64]) -> (Guard, Option<usize>) {
        let mut guard = Guard::default();
        let mut turned = None;
        for (n, second) in seconds.iter().enumerate() {
            guard.lost(&mk_name(&format!("m{n}")), at(*second));
            let census = Census {
                members: 5,
                lost: n + 1,
            };
            if guard.update(census, at(*second)) {
                turned = Some(n);
            }
        }
        (guard, turned)
    }

    #[rstest]
    #[case::at_once(&[0, 0, 0], Some(2))]
    #[case::one_by_one(&[0, 5, 10], Some(2))]
    #[case::too_slowly(&[0, 5, 11], None)]
    #[case::not_most(&[0, 0], None)]
    fn it_turns_on_when_most_go_within_ten_seconds(
        #[case] seconds: &[u64],
        #[case] turned: Option<usize>,
    ) {
        assert_eq!(lose(seconds).1, turned);
    }

    #[rstest]
    #[case::one_of_one(1, 1, false)]
    #[case::one_of_two(1, 2, false)]
    #[case::two_of_two(2, 2, true)]
    #[case::two_of_three(2, 3, true)]
    #[case::two_of_four(2, 4, false)]
    fn most_are_two_or_more_and_above_half(
        #[case] lost: usize,
        #[case] members: usize,
        #[case] expected: bool,
    ) {
        let mut guard = Guard::default();
        for n in 0..lost {
            guard.lost(&mk_name(&format!("m{n}")), at(0));
        }
        assert_eq!(guard.update(Census { members, lost }, at(0)), expected);
        assert_eq!(most_are_missing(members, lost), expected);
    }

    #[test]
    fn it_ends_when_at_most_half_are_lost_for_half_a_minute() {
        let (mut guard, _) = lose(&[0, 0, 0]);
        let census = |lost| Census { members: 5, lost };
        assert!(!guard.update(census(3), at(100)));
        assert!(!guard.update(census(2), at(101)));
        assert!(!guard.update(census(2), at(130)));
        // one more is lost: the time of calm restarts
        assert!(!guard.update(census(3), at(130)));
        assert!(!guard.update(census(2), at(131)));
        assert!(!guard.update(census(2), at(160)));
        assert!(guard.update(census(2), at(161)));
        assert!(!guard.is_active());
    }

    #[test]
    fn one_that_came_back_does_not_count() {
        let mut guard = Guard::default();
        for name in ["a", "b"] {
            guard.lost(&mk_name(name), at(0));
        }
        guard.found(&mk_name("a"));
        guard.lost(&mk_name("c"), at(1));
        let census = Census {
            members: 4,
            lost: 2,
        };
        assert!(!guard.update(census, at(1)));
    }
}
