//! `cargo xtask conformance`: the official conformance suites against our gateway, and their reports.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};

use crate::{
    test::{Run, Tally, Tests, build, run_all},
    tools::{
        self,
        conformance::{Suite, echo_server},
    },
    workspace,
};

/// The test target that runs a suite on a cluster of the testbed.
const TARGET: &str = "official";
/// Where reports are kept.
const REPORTS: &str = "conformance";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// This suite alone [default: both, one after the other]
    #[arg(long, value_name = "SUITE")]
    suite: Option<Suite>,
    /// This test of the suite alone, in which case no report is written
    #[arg(long, value_name = "NAME", requires = "suite")]
    only: Option<String>,
}

/// Runs the suites; the last line counts the tests of all of them.
pub(crate) fn run_conformance(args: &Args) -> ExitCode {
    let mut tally = Tally::default();
    let outcome = run_suites(args, &mut tally);
    if let Err(error) = &outcome {
        println!("{error:#}");
        tally.failed = tally.failed.max(1);
    }
    println!("{tally}");
    if tally.failed == 0 && tally.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_suites(args: &Args, tally: &mut Tally) -> Result<()> {
    let suites = args.suites();
    // from nothing both take minutes, and neither keeps two cores busy all the time
    let wanted = suites.clone();
    let preparing = tools::Preparing::begin(move || prepare(&wanted));
    let programs = build(Tests::Targets(&[TARGET]))?;
    preparing.finish()?;
    let program = programs.iter().find(|it| it.target == TARGET);
    let program = program.with_context(|| format!("cargo built no test program {TARGET}"))?;
    let tools = tools::ensure()?;
    let mut runs = Vec::new();
    for &suite in &suites {
        let mut run = program.run(suite.name(), &args.words(suite, &report(suite)));
        tools.tell(&mut run.command)?;
        run.command.envs(places(suite)?);
        runs.push(run);
    }
    run_one_by_one(runs, tally)
}

fn prepare(suites: &[Suite]) -> Result<()> {
    tools::ensure()?;
    echo_server()?;
    suites.iter().try_for_each(|suite| suite.tool().map(drop))
}

/// Variables that say where the parts of a suite's run are.
pub(crate) fn places(suite: Suite) -> Result<[(&'static str, PathBuf); 3]> {
    let (_, program) = suite.tool()?;
    Ok([
        ("ISTHMUS_BIN_DIR", workspace::target().join("debug")),
        ("ECHO_BASIC_BIN", echo_server()?),
        (suite.variable(), program),
    ])
}

/// Each has a cluster, and the times that a suite waits are for one that has the machine to itself.
fn run_one_by_one(runs: Vec<Run>, tally: &mut Tally) -> Result<()> {
    let mut reports = Vec::new();
    let outcome = run_all(runs, 1, &mut std::io::stdout(), &mut reports);
    for report in &reports {
        tally.add(report.tally());
    }
    outcome
}

/// The file of a suite's report.
fn report(suite: Suite) -> PathBuf {
    let name = format!("{}-{}-report.yaml", suite.name(), suite.version());
    workspace::root().join(REPORTS).join(name)
}

// === impl Args ===

impl Args {
    fn suites(&self) -> Vec<Suite> {
        self.suite
            .map_or_else(|| vec![Suite::Inference, Suite::Gateway], |one| vec![one])
    }

    /// Arguments of the test program.
    fn words(&self, suite: Suite, report: &Path) -> Vec<String> {
        let (flag, value) = match &self.only {
            Some(name) => ("--exact", name.clone()),
            None => ("--report", report.display().to_string()),
        };
        vec![
            "--suite".to_owned(),
            suite.name().to_owned(),
            flag.to_owned(),
            value,
        ]
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("conformance").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args)
    }

    #[test]
    fn without_flags_both_suites_run_and_write_their_reports() {
        let args = parse("").unwrap();
        assert_eq!(args.suites(), [Suite::Inference, Suite::Gateway]);
        let words = args.words(Suite::Gateway, &report(Suite::Gateway));
        assert_eq!(words[..3], ["--suite", "gateway", "--report"]);
        let path = Path::new(&words[3]);
        assert!(path.ends_with("conformance/gateway-v1.6.3-report.yaml"));
    }

    #[test]
    fn one_test_is_of_one_suite_and_leaves_the_report_as_it_is() {
        let args = parse("--suite inference --only InferencePoolAccepted").unwrap();
        assert_eq!(args.suites(), [Suite::Inference]);
        let words = args.words(Suite::Inference, Path::new("report"));
        let expected = ["--suite", "inference", "--exact", "InferencePoolAccepted"];
        assert_eq!(words, expected);
        for line in ["--only InferencePoolAccepted", "--suite mesh", "inference"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
