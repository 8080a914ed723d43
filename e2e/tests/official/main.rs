//! The official conformance suites against our gateway, on a cluster of the testbed: `cargo xtask conformance`, and the
//! inference suite in `cargo xtask test`. See `conformance/README.md`.
#![cfg(test)]
#![allow(clippy::print_stdout, reason = "a runner of tests")]

mod arguments;
mod show;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use libtest_mimic::Trial;
use testbed::{
    Inside, Testbed,
    official::{self, Run},
};

use crate::{
    arguments::{Args, Choice},
    show::Tally,
};

/// The cluster's name.
const CLUSTER: &str = "local";

fn main() -> ExitCode {
    let args = match arguments::parse() {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let choice = args.choice();
    if args.tests.list || choice == Choice::Nothing {
        let names = args.suite.tests().iter();
        let trials = names.map(|name| Trial::test(*name, || Ok(())));
        return libtest_mimic::run(&args.tests, trials.collect()).exit_code();
    }
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &args, choice));
    outcome.unwrap_or_else(|error| {
        eprintln!("the suite did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(inside: &Inside, args: &Args, choice: Choice) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let tally = runtime.block_on(async {
        let testbed = start(inside).await?;
        let outcome = run_suite(&testbed, args, choice).await;
        testbed.stop().await;
        let logs = inside.logs_dir();
        outcome.with_context(|| format!("logs: {}", logs.display()))
    })?;
    Ok(tally.close())
}

async fn start(inside: &Inside) -> Result<Testbed> {
    let echo = e2e::tools::echo_server()?;
    let builder = official::with_images(Testbed::builder(inside), &echo)?;
    Ok(builder.cluster(CLUSTER).start(|_| {}).await?)
}

/// Runs the suite and shows each test as it ends.
async fn run_suite(testbed: &Testbed, args: &Args, choice: Choice) -> Result<Tally> {
    let cluster = testbed.cluster(CLUSTER)?;
    official::install(cluster).await?;
    let suite = args.suite;
    let logs = testbed.logs_dir();
    let run = Run {
        suite,
        program: e2e::tools::official_suite(suite.name())?,
        only: match &choice {
            Choice::One(name) => Some(name.clone()),
            _ => None,
        },
        report: logs.join("report.yaml"),
        log: logs.join("suite.log"),
    };
    println!("\nrunning the official {} suite", suite.name());
    let mut tally = Tally::new(&run.log);
    let status = run
        .start(cluster, |test| {
            if args.chosen(&test.name) {
                tally.add(&test);
            }
        })
        .await?;
    if !status.success() && !tally.has_failed() {
        tally.fail_beside_tests(&format!("the suite ended with {status}"));
    }
    for name in suite.tests() {
        if args.chosen(name) {
            tally.require(name);
        }
    }
    if choice == Choice::All {
        tally.compare(run.counts());
        if let Some(report) = &args.report {
            publish(&run.report, report)?;
        }
    }
    Ok(tally)
}

/// Copies the report to where it is asked for, also that of a run with failures.
fn publish(from: &Path, to: &Path) -> Result<()> {
    let text = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    std::fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}
