//! Durations as people write them: `20ms`, `1.5s`, `0`.

use std::{fmt, str::FromStr, time::Duration};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// 24 h: no simulated delay is longer, and every sum of such delays stays far from overflow.
const LONGEST: Duration = Duration::from_hours(24);

/// A duration between zero and 24 h, written with a unit (`20ms`, `1.5s`, `2m`); plain `0` needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(Duration);

/// Why a text is no [`HumanDuration`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a duration: write a number from zero with its unit, at most 24h, such as 20ms, 1.5s or 2m"
)]
pub struct DurationError(String);

// === impl HumanDuration ===

impl HumanDuration {
    /// The same span for the clock.
    pub fn get(self) -> Duration {
        self.0
    }

    /// A whole number of milliseconds, cut to 24 h.
    pub fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis).min(LONGEST))
    }
}

impl FromStr for HumanDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || DurationError(text.to_owned());
        if text == "0" {
            return Ok(Self::default());
        }
        let signed: SignedDuration = text.parse().map_err(|_| invalid())?;
        let span = Duration::try_from(signed).map_err(|_| invalid())?;
        if span > LONGEST {
            return Err(invalid());
        }
        Ok(Self(span))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(signed) => write!(out, "{signed:#}"),
            Err(_) => write!(out, "{}s", self.0.as_secs()),
        }
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", 0)]
    #[case("0s", 0)]
    #[case("20ms", 20)]
    #[case("1.5s", 1_500)]
    #[case("2m", 120_000)]
    #[case("1m30s", 90_000)]
    fn usual_spellings_are_read(#[case] text: &str, #[case] millis: u64) {
        assert_eq!(text.parse(), Ok(HumanDuration::from_millis(millis)));
    }

    #[rstest]
    #[case("")]
    #[case("20")]
    #[case("-1s")]
    #[case("soon")]
    #[case("25h")]
    #[case("9999999999999999999s")]
    fn other_texts_are_refused_with_an_example(#[case] text: &str) {
        let error = text.parse::<HumanDuration>().expect_err("not a duration");
        assert!(error.to_string().contains("20ms"), "{error}");
    }

    #[test]
    fn display_is_read_back_as_the_same_span() {
        for millis in [0, 1, 20, 1_500, 90_000, 86_400_000] {
            let span = HumanDuration::from_millis(millis);
            assert_eq!(span.to_string().parse(), Ok(span), "{span}");
        }
    }
}
