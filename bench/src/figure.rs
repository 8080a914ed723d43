//! One measured number, and whether it is good.

use std::time::Duration;

use serde::Serialize;

use crate::rows::{Bound, SetBy, goal_of};

/// A figure of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured, where.
    pub name: String,
    /// In `unit`.
    pub value: f64,
    /// Unit, spelled as people write it.
    pub unit: &'static str,
    /// Its limit; none: for information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Bound>,
    /// Who set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<SetBy>,
    /// Whether it is within the goal; none without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
}

// === impl Figure ===

impl Figure {
    /// A figure, with the goal that the table of rows has for its name.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let name = name.into();
        let goal = goal_of(&name);
        Self {
            name,
            value,
            unit,
            goal: goal.map(|goal| goal.bound),
            set_by: goal.map(|goal| goal.set_by),
            holds: goal.map(|goal| goal.bound.holds(value)),
        }
    }

    /// A time in milliseconds.
    pub fn time(name: impl Into<String>, value: Duration) -> Self {
        Self::new(name, value.as_secs_f64() * 1e3, "ms")
    }

    /// The value with its unit, as the document has it: three digits, and more where the goal is that near.
    pub fn text(&self) -> String {
        let Self { value, unit, .. } = self;
        let decimals = match value.abs() {
            0.0 => 0,
            ..1.0 => 2,
            1.0..10.0 => 1,
            _ => 0,
        };
        let good = |decimals: &usize| {
            let read: f64 = format!("{value:.decimals$}").parse().unwrap_or(*value);
            self.goal
                .is_none_or(|goal| goal.holds(read) == goal.holds(*value))
        };
        let decimals = (decimals..6).find(good).unwrap_or(6);
        format!("{value:.decimals$} {unit}").trim_end().to_owned()
    }

    /// A row for a terminal.
    pub fn row(&self) -> String {
        let goal = self.goal.map_or_else(String::new, |goal| {
            format!("{} {:.2}", goal.sign(), goal.limit())
        });
        let holds = match self.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        format!(
            "{:<88} {:>10.2} {:<6} {:>10} {:>5}",
            self.name, self.value, self.unit, goal, holds
        )
    }
}

/// How many figures have a goal and which of them miss it, in a sentence; and the number of those.
pub fn verdict(figures: &[Figure]) -> (String, usize) {
    let goals = figures.iter().filter(|figure| figure.holds.is_some());
    let missed = figures.iter().filter(|figure| figure.holds == Some(false));
    let names: Vec<&str> = missed.map(|figure| figure.name.as_str()).collect();
    let mut text = format!("{} of {} goals missed", names.len(), goals.count());
    for name in &names {
        text.push_str("\n  ");
        text.push_str(name);
    }
    (text, names.len())
}

/// A value that `share` of all are not above; `times` need not be sorted.
pub fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank within the list"
    )]
    let rank = rank as usize;
    let at = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_the_goal_of_its_row() {
        let name = "failover after SIGTERM: event to all applied";
        let reached = Figure::new(name, 3.0, "s");
        let goal = Some(Bound::AtMost(3.0));
        assert_eq!((reached.goal, reached.holds), (goal, Some(true)));
        assert_eq!(reached.set_by, Some(SetBy::Specification));
        assert_eq!(Figure::new(name, 3.1, "s").holds, Some(false));
        let name = "data path, pool: requests/s / without EPP";
        assert_eq!(Figure::new(name, 0.45, "x").holds, Some(true));
        assert_eq!(Figure::new(name, 0.449, "x").holds, Some(false));
        let other = Figure::new("of no row", 1.0, "s");
        assert_eq!((other.goal, other.holds), (None, None));
    }

    #[test]
    fn the_verdict_names_what_is_missed() {
        let figures = [
            Figure::new("failover after SIGTERM: event to all applied", 3.0, "s"),
            Figure::new("failover after a crash: event to all applied", 17.5, "s"),
            Figure::new("of no row", 1.0, "s"),
        ];
        let (text, missed) = verdict(&figures);
        assert_eq!(missed, 1);
        assert_eq!(
            text,
            "1 of 2 goals missed\n  failover after a crash: event to all applied"
        );
        assert_eq!(verdict(&figures[..1]).1, 0);
    }

    #[test]
    fn figures_are_rounded_but_never_across_their_goal() {
        let name = "failover after SIGTERM: event to all applied";
        let text = |value| Figure::new(name, value, "s").text();
        assert_eq!(text(0.0), "0 s");
        assert_eq!(text(0.412), "0.41 s");
        assert_eq!(text(2.96), "3.0 s");
        assert_eq!(text(3.02), "3.02 s");
        assert_eq!(text(13.6), "14 s");
        let name = "data path, pool: requests/s / without EPP";
        let text = |value| Figure::new(name, value, "x").text();
        assert_eq!(text(0.4512), "0.45 x");
        assert_eq!(text(0.4496), "0.4496 x");
        assert_eq!(Figure::new("n", 120.4, "").text(), "120");
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&times, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&times[..1], 0.5), Duration::from_millis(100));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
