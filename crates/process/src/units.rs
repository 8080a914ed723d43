//! Values of flags with a unit.

use std::{str::FromStr, time::Duration};

/// A duration as the ecosystem writes it: `50ms`, `2s`, `1m30s`; [`Span::LONGEST`] at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A number of bytes: `1024`, `16MiB`, `1GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

// === impl Span ===

impl Span {
    /// A year: more than anybody waits for, and far from where the clock's own arithmetic ends.
    pub const LONGEST: Duration = Duration::from_hours(8760);
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || {
            format!("{text:?} is no duration: write a number and a unit, such as 50ms, 2s or 1m30s")
        };
        let (mut rest, mut total) = (text, 0.0);
        if rest == "0" {
            return Ok(Self(Duration::ZERO));
        }
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(bad)?;
            let (number, after) = rest.split_at(digits);
            let unit = after
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(after.len());
            let (unit, after) = after.split_at(unit);
            let seconds = match unit {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(bad()),
            };
            total += number.parse::<f64>().map_err(|_| bad())? * seconds;
            rest = after;
        }
        if text.is_empty() {
            return Err(bad());
        }
        let span = Duration::try_from_secs_f64(total).ok();
        span.filter(|span| *span <= Self::LONGEST)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is too long: at most 8760h, which is a year"))
    }
}

// === impl Size ===

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad =
            || format!("{text:?} is no size: write bytes or a unit, such as 65536, 64MiB or 1GB");
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor: u64 = match unit {
            "" | "B" => 1,
            "kB" | "KB" | "k" => 1000,
            "Ki" | "KiB" => 1 << 10,
            "M" | "MB" => 1_000_000,
            "Mi" | "MiB" => 1 << 20,
            "G" | "GB" => 1_000_000_000,
            "Gi" | "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        let bytes = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor));
        bytes.filter(|bytes| *bytes > 0).map(Self).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("50ms", Some(50))]
    #[case("1m30s", Some(90_000))]
    #[case("1.5s", Some(1500))]
    #[case("0", Some(0))]
    #[case("", None)]
    #[case("5", None)]
    #[case("s", None)]
    #[case("-1s", None)]
    #[case("1d", None)]
    #[case("8760h", Some(31_536_000_000))]
    fn durations_are_read_as_the_ecosystem_writes_them(
        #[case] text: &str,
        #[case] millis: Option<u64>,
    ) {
        assert_eq!(
            text.parse::<Span>().ok().map(|span| span.0),
            millis.map(Duration::from_millis)
        );
    }

    #[rstest]
    #[case("64MiB", Some(64 << 20))]
    #[case("1GB", Some(1_000_000_000))]
    #[case("4096", Some(4096))]
    #[case("0", None)]
    #[case("MiB", None)]
    #[case("99999999999GiB", None)]
    #[case("1TB", None)]
    fn sizes_are_read_with_their_unit(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(text.parse::<Size>().ok().map(|size| size.0), bytes);
    }
}
