//! What test programs print, read line by line: which targets ran, and what their closing lines count. Pure.

use std::{fmt, time::Duration};

/// Tests and checks that passed, failed, or are marked as ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// The output of a run of tests, standard output and standard error in one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Name of the run.
    name: String,
    tally: Tally,
    timings: Vec<Timing>,
    /// When the latest test ended, or the runner began, since the start of the run.
    latest: Duration,
    targets: Vec<Target>,
    ignored: Vec<String>,
}

/// How long a test took.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timing {
    pub(crate) took: Duration,
    /// Name of the run and of the test.
    pub(crate) test: String,
}

/// A test program, from the line with which cargo announces it to the next such line.
#[derive(Clone, Debug)]
struct Target {
    name: String,
    kind: Kind,
    tally: Tally,
    /// Tests that a name filter left out.
    filtered: usize,
    /// Closing lines: a program without any has not run its tests.
    closings: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `tests/…`: it exists for its tests.
    Integration,
    /// A library or program, which may have none.
    Unit,
    /// The examples in a library's documentation, which may have none.
    Doc,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    fn ran(self) -> usize {
        self.passed + self.failed
    }
}

/// The last line of `cargo xtask test`.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.ignored > 0 {
            write!(f, ", {} skipped", self.ignored)?;
        }
        Ok(())
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Reads the next line, which was printed so long after the start of the run.
    pub(crate) fn read(&mut self, line: &str, at: Duration) {
        if let Some((test, took)) = ended(line) {
            // a runner that does not report how long it took runs one test after another
            let took = took.unwrap_or_else(|| at.saturating_sub(self.latest));
            let test = format!("{} {test}", self.name);
            self.timings.push(Timing { took, test });
            self.latest = at;
        } else if line.starts_with("running ") {
            self.latest = at;
        }
        if let Some((name, kind)) = heading(line) {
            self.targets.push(Target {
                name: name.to_owned(),
                kind,
                tally: Tally::default(),
                filtered: 0,
                closings: 0,
            });
        } else if let Some((tally, filtered)) = closing(line) {
            self.tally.add(tally);
            if let Some(target) = self.targets.last_mut() {
                target.tally.add(tally);
                target.filtered += filtered;
                target.closings += 1;
            }
        } else if let Some(name) = ignored(line) {
            self.ignored.push(name.to_owned());
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// How long each test took that was run.
    pub(crate) fn timings(&self) -> &[Timing] {
        &self.timings
    }

    /// Names of the tests that are marked as ignored.
    pub(crate) fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Targets that have tests and ran none, though no filter was given.
    pub(crate) fn idle(&self) -> Vec<&str> {
        let idle = self.targets.iter().filter(|target| target.is_idle());
        idle.map(|target| &*target.name).collect()
    }
}

// === impl Target ===

impl Target {
    fn is_idle(&self) -> bool {
        match self.kind {
            Kind::Integration => self.tally.ran() == 0,
            Kind::Unit => {
                let left_out = self.filtered + self.tally.ignored;
                self.closings == 0 || (self.tally.ran() == 0 && left_out > 0)
            }
            Kind::Doc => self.closings == 0,
        }
    }
}

/// Of cargo's `     Running tests/faults/main.rs (target/debug/deps/faults-0123)`, or `   Doc-tests crd`.
fn heading(line: &str) -> Option<(&str, Kind)> {
    if let Some(library) = line.strip_prefix("   Doc-tests ") {
        return Some((line.trim_start(), Kind::Doc)).filter(|_| !library.is_empty());
    }
    let program = line.strip_prefix("     Running ")?;
    let (source, executable) = program.split_once(" (")?;
    executable.strip_suffix(')')?;
    let kind = if source.starts_with("tests/") {
        Kind::Integration
    } else {
        Kind::Unit
    };
    Some((program, kind))
}

/// What a runner's `test result: ok. 12 passed; 0 failed; …` counts, and how many tests a filter left out.
fn closing(line: &str) -> Option<(Tally, usize)> {
    let counts = line.strip_prefix("test result:")?;
    let number = |label: &str| {
        let mut parts = counts.split([';', '.']);
        let found = parts.find_map(|part| part.trim().strip_suffix(label)?.trim().parse().ok());
        found.unwrap_or(0)
    };
    let tally = Tally {
        passed: number("passed"),
        failed: number("failed"),
        ignored: number("ignored"),
    };
    Some((tally, number("filtered out")))
}

/// The name in `test NAME ... ok` or `… FAILED`, and what the standard library's runner adds of the time: `<1.234s>`.
fn ended(line: &str) -> Option<(&str, Option<Duration>)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let (outcome, time) = outcome.split_once(" <").unwrap_or((outcome, ""));
    let seconds = time.strip_suffix("s>").and_then(|it| it.parse().ok());
    let took = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    matches!(outcome, "ok" | "FAILED").then(|| (name.trim_end(), took))
}

/// The name in `test NAME ... ignored`, which may go on with a reason.
fn ignored(line: &str) -> Option<&str> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    outcome.starts_with("ignored").then(|| name.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: &str =
        "     Running tests/suite/main.rs (target/debug/deps/suite-0123456789abcdef)";
    const LIBRARY: &str =
        "     Running unittests src/lib.rs (target/debug/deps/crd-0123456789abcdef)";

    fn report(lines: &[&str]) -> Report {
        let mut report = Report::default();
        for line in lines {
            report.read(line, Duration::ZERO);
        }
        report
    }

    #[test]
    fn times_of_tests_are_those_that_the_runner_says_or_else_from_line_to_line() {
        let mut report = Report::new("suite");
        for (line, at) in [
            ("running 4 tests", 20),
            ("test a::b ... ok <0.250s>", 21),
            ("test c ... FAILED", 24),
            ("test d ... ignored", 25),
            ("test e ... ok", 30),
            ("test result: ok. 2 passed; 1 failed; 1 ignored;", 30),
        ] {
            report.read(line, Duration::from_secs(at));
        }
        let found: Vec<_> = report
            .timings()
            .iter()
            .map(|timing| (&*timing.test, timing.took))
            .collect();
        let expected = [
            ("suite a::b", Duration::from_millis(250)),
            ("suite c", Duration::from_secs(3)),
            ("suite e", Duration::from_secs(6)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn closing_lines_are_counted_and_others_are_not() {
        let report = report(&[
            "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test a_line ... ok",
            "test result: FAILED. 0 passed; 1 failed;",
        ]);
        let expected = Tally {
            passed: 12,
            failed: 4,
            ignored: 1,
        };
        assert_eq!(report.tally(), expected);
    }

    #[test]
    fn the_last_line_names_skipped_tests_only_where_there_are_some() {
        let mut tally = Tally {
            passed: 3,
            failed: 1,
            ignored: 0,
        };
        assert_eq!(tally.to_string(), "3 passed, 1 failed");
        tally.ignored = 2;
        assert_eq!(tally.to_string(), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn ignored_tests_are_named() {
        let report = report(&[
            "test plan::slow ... ignored",
            "test plan::needs ... a reason ... ignored, takes a minute",
            "test plan::quick ... ok",
        ]);
        assert_eq!(report.ignored(), ["plan::slow", "plan::needs ... a reason"]);
    }

    #[test]
    fn an_integration_target_that_ran_nothing_beside_one_that_did_is_idle() {
        let report = report(&[
            LIBRARY,
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            SUITE,
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        assert_eq!(
            report.idle(),
            ["tests/suite/main.rs (target/debug/deps/suite-0123456789abcdef)"]
        );
    }

    #[test]
    fn a_target_without_a_closing_line_is_idle() {
        assert_eq!(report(&[SUITE]).idle().len(), 1);
        assert_eq!(report(&[LIBRARY, "   Doc-tests crd"]).idle().len(), 2);
    }

    #[test]
    fn all_tests_of_a_target_ignored_or_left_out_is_idle() {
        for counts in [
            "3 ignored; 0 measured; 0 filtered out",
            "0 ignored; 0 measured; 3 filtered out",
        ] {
            let closing =
                format!("test result: ok. 0 passed; 0 failed; {counts}; finished in 0.00s");
            assert_eq!(report(&[LIBRARY, &closing]).idle().len(), 1, "{counts}");
            assert_eq!(report(&[SUITE, &closing]).idle().len(), 1, "{counts}");
        }
    }

    #[test]
    fn a_target_of_several_closing_lines_needs_one_test_among_them() {
        let none = "test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let some = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert!(report(&[SUITE, none, some]).idle().is_empty());
    }

    #[test]
    fn libraries_and_documentation_may_have_no_tests() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert!(
            report(&[LIBRARY, none, "   Doc-tests crd", none])
                .idle()
                .is_empty()
        );
        let unchecked = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert!(report(&["   Doc-tests crd", unchecked]).idle().is_empty());
    }
}
