//! Reports on the duration of a run of the tests. Pure.

use std::{fmt::Write, time::Duration};

use super::report::Timing;

/// How many of the slowest tests are named.
const SLOWEST: usize = 10;

/// The slowest tests, a line each, the slowest first.
pub(super) fn slowest(timings: &[Timing]) -> String {
    let mut sorted: Vec<&Timing> = timings.iter().collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut text = String::from("slowest tests:");
    for timing in sorted.iter().take(SLOWEST) {
        // writing to a String cannot fail
        let _ = write!(
            text,
            "\n{:8.1} s  {}",
            timing.took.as_secs_f64(),
            timing.test
        );
    }
    text
}

/// How long each part took, and all of them.
pub(super) fn parts(parts: &[(String, Duration)], all: Duration) -> String {
    let mut text = String::new();
    for (name, took) in parts {
        let _ = write!(text, "{name} {:.0} s, ", took.as_secs_f64());
    }
    let _ = write!(text, "in all {:.0} s", all.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_slowest_are_named_slowest_first() {
        let timings: Vec<Timing> = (1..=12)
            .map(|seconds| Timing {
                took: Duration::from_secs(seconds),
                test: format!("t{seconds}"),
            })
            .collect();
        let text = slowest(&timings);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[..2], ["slowest tests:", "12.0 s  t12"]);
        assert_eq!(lines.last(), Some(&"3.0 s  t3"));
    }

    #[test]
    fn parts_are_in_their_order_and_summed_by_the_clock() {
        let seconds = Duration::from_secs;
        let times = [
            ("unit".to_owned(), seconds(61)),
            ("docs".to_owned(), seconds(2)),
        ];
        let expected = "unit 61 s, docs 2 s, in all 70 s";
        assert_eq!(parts(&times, seconds(70)), expected);
    }
}
