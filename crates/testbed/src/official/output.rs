//! What a Go test program prints with `-test.v=test2json`, read line by line. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Before each line that says which test it is about.
const MARK: char = '\u{16}';
/// Lines that are kept of each test: a failure's message and what led to it.
const KEPT_LINES: usize = 60;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// The test failed.
    Failed,
    /// It was not run.
    Skipped,
}

/// A test of a suite that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name, without those of the tests that it is a part of.
    pub name: String,
    /// How.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
    /// The last lines that it, or a part of it, printed.
    pub lines: Vec<String>,
}

/// Reads lines; knows which test they are of.
#[derive(Debug)]
pub(super) struct Reader {
    /// What the names of the suite's tests begin with.
    prefix: &'static str,
    /// The test that prints; absent: none of the suite's.
    current: Option<String>,
    lines: BTreeMap<String, VecDeque<String>>,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            current: None,
            lines: BTreeMap::new(),
        }
    }

    /// Reads the next line, without its end. Gives the test that it announces the end of.
    pub(super) fn read(&mut self, line: &str) -> Option<Ended> {
        // text without an end of line may stand before the mark
        let Some((before, event)) = line.rsplit_once(MARK) else {
            self.keep(line);
            return None;
        };
        if !before.is_empty() {
            self.keep(before);
        }
        if let Some(event) = event.strip_prefix("=== ") {
            let name = event.split_once(' ').map_or("", |(_, name)| name.trim());
            self.current = self.test(name).map(|(name, _)| name.to_owned());
            return None;
        }
        let (outcome, rest) = event.strip_prefix("--- ")?.split_once(": ")?;
        let (name, took) = rest.rsplit_once(" (")?;
        let (name, part) = self.test(name)?;
        if part {
            return None;
        }
        let name = name.to_owned();
        let outcome = match outcome {
            "PASS" => Outcome::Passed,
            "SKIP" => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        let seconds = took.strip_suffix("s)").and_then(|it| it.parse().ok());
        let took = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let lines = self.lines.remove(&name).unwrap_or_default();
        Some(Ended {
            name,
            outcome,
            took: took.unwrap_or_default(),
            lines: lines.into(),
        })
    }

    /// The suite's test that this name is of, and whether it is that of a part of it.
    fn test<'a>(&self, name: &'a str) -> Option<(&'a str, bool)> {
        let name = name.strip_prefix(self.prefix)?;
        match name.split_once('/') {
            Some((test, _)) => Some((test, true)),
            None => (!name.is_empty()).then_some((name, false)),
        }
    }

    fn keep(&mut self, line: &str) {
        let Some(current) = &self.current else { return };
        let lines = self.lines.entry(current.clone()).or_default();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<Ended> {
        let mut reader = Reader::new("TestConformance/Suite/");
        lines.iter().filter_map(|line| reader.read(line)).collect()
    }

    #[test]
    fn tests_of_the_suite_end_and_their_parts_do_not_count() {
        let ended = read(&[
            "\u{16}=== RUN   TestConformance",
            "\u{16}=== RUN   TestConformance/Suite",
            "    helpers.go:1: set-up",
            "no end of line\u{16}=== RUN   TestConformance/Suite/A",
            "\u{16}=== RUN   TestConformance/Suite/A/Phase_1",
            "\u{16}--- PASS: TestConformance/Suite/A/Phase_1 (1.00s)",
            "\u{16}--- PASS: TestConformance/Suite/A (2.50s)",
            "\u{16}=== RUN   TestConformance/Suite/B",
            "\u{16}--- SKIP: TestConformance/Suite/B (0.00s)",
            "\u{16}--- PASS: TestConformance/Suite (3.00s)",
            "\u{16}--- PASS: TestConformance (3.00s)",
            "PASS",
        ]);
        let found: Vec<_> = ended
            .iter()
            .map(|test| (&*test.name, test.outcome, test.took.as_millis()))
            .collect();
        let expected = [("A", Outcome::Passed, 2500), ("B", Outcome::Skipped, 0)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_failure_has_its_own_last_lines_also_beside_a_test_that_runs_with_it() {
        let mut lines = vec!["\u{16}=== RUN   TestConformance/Suite/B"];
        lines.extend(std::iter::repeat_n("early", KEPT_LINES));
        lines.extend([
            "\u{16}=== NAME  TestConformance/Suite",
            "    suite.go:1: of none of them",
            "\u{16}=== CONT  TestConformance/Suite/P",
            "    p.go:1: of the other",
            "\u{16}=== NAME  TestConformance/Suite/B/part",
            "    b.go:1: not equal",
            "a request\u{16}--- FAIL: TestConformance/Suite/B (1.00s)",
        ]);
        let ended = read(&lines);
        let [test] = &*ended else {
            panic!("{ended:?}");
        };
        assert_eq!(test.outcome, Outcome::Failed);
        let (early, late) = test.lines.split_at(KEPT_LINES - 2);
        assert!(early.iter().all(|line| line == "early"), "{early:?}");
        assert_eq!(late, ["    b.go:1: not equal", "a request"]);
    }
}
