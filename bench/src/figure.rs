//! One measured number, and whether it is good.

use std::time::Duration;

use serde::Serialize;

/// A figure of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured, where.
    pub name: String,
    /// In `unit`.
    pub value: f64,
    /// Unit, spelled as people write it.
    pub unit: &'static str,
    /// Upper limit; none: for information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
    /// Whether it is within the goal; none without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
}

// === impl Figure ===

impl Figure {
    /// For information.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            goal: None,
            holds: None,
        }
    }

    /// A time in milliseconds.
    pub fn time(name: impl Into<String>, value: Duration) -> Self {
        Self::new(name, value.as_secs_f64() * 1e3, "ms")
    }

    /// It is to be at most this.
    #[must_use]
    pub fn at_most(self, goal: f64) -> Self {
        Self {
            goal: Some(goal),
            holds: Some(self.value <= goal),
            ..self
        }
    }

    /// A row of the table.
    pub fn row(&self) -> String {
        let goal = self
            .goal
            .map_or_else(String::new, |goal| format!("{goal:.2}"));
        let holds = match self.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        format!(
            "{:<88} {:>10.2} {:<6} {:>8} {:>5}",
            self.name, self.value, self.unit, goal, holds
        )
    }
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
    fn percentiles_are_values_of_the_list() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&times, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&times[..1], 0.5), Duration::from_millis(100));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
