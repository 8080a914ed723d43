//! Values that `/metrics` tells in place of the truth, fixed or on their way from one to another: pure.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{knobs::FakeMetrics, range::Range};
use crate::{duration::HumanDuration, engine::Moment, metrics::FakeValues};

/// A value in place of a true one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FakeValue {
    /// Always this.
    Fixed(f64),
    /// Moves evenly, and stays where it arrives. Written `ramp:0:10:5s`.
    Ramp {
        /// When it is set.
        from: f64,
        /// At the end.
        to: f64,
        /// From its start to its end.
        over: HumanDuration,
    },
}

/// Why a text is no [`FakeValue`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a value: use a number, or ramp:FROM:TO:DURATION such as ramp:0:10:5s")]
pub struct FakeValueError(String);

/// The fake values in force, and since when.
#[derive(Debug, Default)]
pub(super) struct FakeClock {
    waiting: Since,
    running: Since,
    kv: Since,
}

#[derive(Clone, Copy, Debug, Default)]
struct Since {
    value: Option<FakeValue>,
    start: Moment,
}

// === impl FakeValue ===

impl FakeValue {
    /// Its value this long after it was set.
    fn at(self, elapsed: Duration) -> f64 {
        match self {
            Self::Fixed(value) => value,
            Self::Ramp { over, to, .. } if elapsed >= over.get() => to,
            Self::Ramp { from, to, over } => {
                from + (to - from) * elapsed.as_secs_f64() / over.get().as_secs_f64()
            }
        }
    }

    /// The first of its ends that is out of range.
    pub(super) fn outside(self, range: Range) -> Option<f64> {
        let ends = match self {
            Self::Fixed(value) => [value, value],
            Self::Ramp { from, to, .. } => [from, to],
        };
        ends.into_iter().find(|end| !range.contains(*end))
    }
}

impl FromStr for FakeValue {
    type Err = FakeValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = || {
            let mut parts = text.strip_prefix("ramp:")?.splitn(3, ':');
            let from = parts.next()?.parse().ok()?;
            let to = parts.next()?.parse().ok()?;
            let over = parts.next()?.parse().ok()?;
            Some(Self::Ramp { from, to, over })
        };
        parts().ok_or_else(|| FakeValueError(text.chars().take(50).collect()))
    }
}

impl fmt::Display for FakeValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(value) => write!(out, "{value}"),
            Self::Ramp { from, to, over } => write!(out, "ramp:{from}:{to}:{over}"),
        }
    }
}

impl Serialize for FakeValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(value) => serializer.serialize_f64(*value),
            Self::Ramp { .. } => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for FakeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "use a number, or a ramp such as ramp:0:10:5s")]
        enum Raw {
            Number(f64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(value) => Ok(Self::Fixed(value)),
            Raw::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

// === impl FakeClock ===

impl FakeClock {
    /// Ramps that are new begin now; those that were there before go on.
    pub(super) fn set(&mut self, metrics: &FakeMetrics, now: Moment) {
        self.waiting.set(metrics.waiting, now);
        self.running.set(metrics.running, now);
        self.kv.set(metrics.kv, now);
    }

    /// Requests are whole.
    pub(super) fn values(&self, now: Moment) -> FakeValues {
        FakeValues {
            waiting: self.waiting.at(now).map(f64::round),
            running: self.running.at(now).map(f64::round),
            kv: self.kv.at(now),
        }
    }
}

// === impl Since ===

impl Since {
    fn set(&mut self, value: Option<FakeValue>, now: Moment) {
        if self.value != value {
            *self = Self { value, start: now };
        }
    }

    fn at(&self, now: Moment) -> Option<f64> {
        self.value.map(|value| value.at(now.since(self.start)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_ramp_moves_evenly_and_stays_at_its_end() {
        let mut clock = FakeClock::default();
        let ramp: FakeValue = "ramp:10:0:5s".parse().expect("valid");
        let mut metrics = FakeMetrics {
            waiting: Some(ramp),
            ..FakeMetrics::default()
        };
        clock.set(&metrics, Moment::from_millis(1_000));
        metrics.kv = Some(FakeValue::Fixed(0.5));
        clock.set(&metrics, Moment::from_millis(2_000));
        let waiting = [1_000, 3_000, 6_000, 60_000].map(|millis| {
            let values = clock.values(Moment::from_millis(millis));
            values.waiting.map(|value| value.to_string())
        });
        let wanted = ["10", "6", "0", "0"].map(|value| Some(value.to_owned()));
        assert_eq!(waiting, wanted, "it went on when another value was set");
        let values = clock.values(Moment::from_millis(2_000));
        assert_eq!((values.running, values.kv), (None, Some(0.5)));
    }

    #[rstest]
    #[case("ramp:0:1:0", 1.0)]
    #[case("ramp:0:1:1s", 0.0)]
    fn a_ramp_of_no_length_is_at_its_end(#[case] text: &str, #[case] value: f64) {
        let ramp: FakeValue = text.parse().expect("valid");
        assert!((ramp.at(Duration::ZERO) - value).abs() < 1e-9);
    }

    #[rstest]
    #[case("ramp:0:10")]
    #[case("ramp:0:10:5")]
    #[case("ramp:a:10:5s")]
    #[case("jump:0:10:5s")]
    fn other_texts_are_refused_with_an_example(#[case] text: &str) {
        let error = text.parse::<FakeValue>().expect_err("refused");
        assert!(error.to_string().contains("ramp:0:10:5s"), "{error}");
    }

    #[rstest]
    #[case("7.5", FakeValue::Fixed(7.5))]
    #[case("\"ramp:0:10:5s\"", FakeValue::Ramp { from: 0.0, to: 10.0, over: HumanDuration::from_millis(5_000) })]
    fn values_survive_their_json_form(#[case] json: &str, #[case] value: FakeValue) {
        assert_eq!(
            serde_json::from_str::<FakeValue>(json).expect("valid"),
            value
        );
        assert_eq!(serde_json::to_string(&value).expect("JSON"), json);
    }
}
