//! Results as the standard library's runner of tests shows them, which `cargo xtask` reads.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
};

use testbed::official::{Counts, Ended, Outcome, ReportError};

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    passed: BTreeSet<String>,
    /// Name and what it printed.
    failed: Vec<(String, String)>,
    /// Everything that the suite printed.
    log: PathBuf,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn new(log: &Path) -> Self {
        Self {
            passed: BTreeSet::new(),
            failed: Vec::new(),
            log: log.to_owned(),
        }
    }

    /// Shows a test that has ended. One that was skipped is not shown: the suite skips what it does not ask of us, and the
    /// report names what it does.
    pub(crate) fn add(&mut self, test: &Ended) {
        let Ended {
            name,
            outcome,
            took,
            lines,
        } = test;
        let took = took.as_secs_f64();
        match outcome {
            Outcome::Passed => {
                println!("test {name} ... ok <{took:.3}s>");
                self.passed.insert(name.clone());
            }
            Outcome::Failed => {
                println!("test {name} ... FAILED <{took:.3}s>");
                self.failed.push((name.clone(), lines.join("\n")));
            }
            Outcome::Skipped => {}
        }
    }

    /// The suite failed, and none of its tests: its set-up did.
    pub(crate) fn fail_beside_tests(&mut self, problem: &str) {
        const LINES: usize = 40;
        let printed = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = printed.lines().collect();
        let (_, last) = lines.split_at(lines.len().saturating_sub(LINES));
        let text = format!("{problem}\n{}", last.join("\n"));
        self.fail("suite", &text);
    }

    fn fail(&mut self, name: &str, problem: &str) {
        println!("test {name} ... FAILED");
        self.failed.push((name.to_owned(), problem.to_owned()));
    }

    /// A test that did not run has failed.
    pub(crate) fn require(&mut self, name: &str) {
        let failed = self.failed.iter().any(|(failed, _)| failed == name);
        if !failed && !self.passed.contains(name) {
            self.fail(name, "it was not run");
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The report must count what was seen, and nothing as skipped.
    pub(crate) fn compare(&mut self, counts: Result<Counts, ReportError>) {
        let problem = match counts {
            Err(error) => error.to_string(),
            Ok(Counts { skipped, .. }) if !skipped.is_empty() => {
                format!("the report has tests that were skipped: {skipped:?}")
            }
            Ok(Counts { passed, failed, .. }) if passed != self.passed.len() => {
                let seen = self.passed.len();
                format!(
                    "the report counts {passed} tests that passed and {failed} that failed; {seen} were seen to pass"
                )
            }
            Ok(_) => return,
        };
        self.fail("report", &problem);
    }

    /// Shows the failures and the counts.
    pub(crate) fn close(self) -> ExitCode {
        let Self {
            passed,
            failed,
            log,
        } = self;
        for (name, problem) in &failed {
            println!("\n---- {name} ----\n{problem}");
        }
        let word = if failed.is_empty() {
            "ok"
        } else {
            println!("\nall that the suite printed: {}", log.display());
            "FAILED"
        };
        println!(
            "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
            passed.len(),
            failed.len()
        );
        ExitCode::from(u8::from(!failed.is_empty()))
    }
}
