//! Whether a cluster is healthy, by the results of probes (pure).

use moment::Moment;

use super::policy::HealthRule;

/// Healthy from the start: a gateway that has just started sends requests before its first probe ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbedHealth {
    unhealthy: bool,
    /// Results in a row that contradict the present state.
    against: u32,
    /// When the state changed last; `None`: never.
    changed: Option<Moment>,
}

// === impl ProbedHealth ===

impl ProbedHealth {
    pub(crate) fn is_healthy(self) -> bool {
        !self.unhealthy
    }

    /// When it became healthy again; `None`: it never was unhealthy, or is so now.
    pub(crate) fn recovered(self) -> Option<Moment> {
        self.changed.filter(|_| !self.unhealthy)
    }

    /// When the state changed last.
    pub(crate) fn changed(self) -> Option<Moment> {
        self.changed
    }

    /// Records the result of one probe. Returns whether the state changed.
    pub(crate) fn record(&mut self, succeeded: bool, rule: &HealthRule, now: Moment) -> bool {
        if succeeded != self.unhealthy {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let needed = if self.unhealthy {
            rule.healthy_after
        } else {
            rule.unhealthy_after
        };
        if self.against < needed {
            return false;
        }
        self.unhealthy = !self.unhealthy;
        self.against = 0;
        self.changed = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// `+` is a probe that succeeds, `-` one that fails; the health after each.
    #[rstest]
    #[case::starts_healthy("", "")]
    #[case::one_failure_is_not_enough("-+-+", "++++")]
    #[case::failures_in_a_row("--", "+-")]
    #[case::one_success_is_not_enough("--+-+-", "+-----")]
    #[case::successes_in_a_row("--+++", "+---+")]
    #[case::and_again("--+++---", "+---++--")]
    fn thresholds_count_results_in_a_row(#[case] results: &str, #[case] expected: &str) {
        let rule = HealthRule {
            unhealthy_after: 2,
            healthy_after: 3,
            ..HealthRule::default()
        };
        let mut health = ProbedHealth::default();
        let mut seen = String::new();
        for (at, result) in (1..).zip(results.chars()) {
            health.record(result == '+', &rule, Moment::from_millis(at));
            seen.push(if health.is_healthy() { '+' } else { '-' });
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn recovery_has_the_time_of_the_change_and_the_start_is_none() {
        let rule = HealthRule::default();
        let mut health = ProbedHealth::default();
        let mut probe = |succeeded, at| {
            health.record(succeeded, &rule, Moment::from_millis(at));
            health.recovered()
        };
        assert_eq!(probe(true, 1), None);
        probe(false, 2);
        assert_eq!(probe(false, 3), None);
        probe(true, 4);
        let back = Some(Moment::from_millis(5));
        assert_eq!(probe(true, 5), back);
        assert_eq!(probe(true, 6), back);
    }
}
