//! `cargo xtask test`: every check, in the order in which a failure is cheapest to find.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    bench,
    command::{cargo, run},
    demo::programs,
    signals::Running,
    tools, workspace,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these parts alone (repeatable)
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Passed on to the tests: a name filter, or flags of the test runner (with --only)
    #[arg(last = true, requires = "only")]
    rest: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// rustfmt
    Format,
    /// clippy, all targets, warnings denied
    Lints,
    /// licences, duplicate and banned crates
    Deny,
    /// unit, property and doc tests; CRD drift is among them
    Unit,
    /// rustdoc, warnings denied
    Docs,
    /// a minute of random faults on thirty scripted clusters
    Soak,
    /// the testbed itself
    Testbed,
    /// end-to-end tests on real clusters
    E2e,
}

/// Tests and checks that passed or failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
}

/// Runs the parts; the last line is the tally. Stops at the first part that fails: what follows would only repeat it.
pub(crate) fn run_tests(args: &Args) -> ExitCode {
    let parts: Vec<Part> = if args.only.is_empty() {
        Part::value_variants().to_vec()
    } else {
        args.only.clone()
    };
    let start = now();
    let mut tally = Tally::default();
    let mut failure = None;
    for part in parts {
        let name = part.name();
        println!("\n== {name}");
        let begin = now();
        let before = tally;
        if let Err(error) = part.run(&args.rest, &mut tally) {
            if tally.failed == before.failed {
                tally.failed += 1;
            }
            failure = Some(error.context(format!("{name} failed")));
            break;
        }
        println!("== {name}: ok, {:.0} s", begin.elapsed().as_secs_f64());
    }
    println!("\ntook {:.0} s", start.elapsed().as_secs_f64());
    if let Some(error) = &failure {
        println!("{error:#}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if failure.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

// === impl Part ===

impl Part {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, rest: &[String], tally: &mut Tally) -> Result<()> {
        match self {
            Self::Format => check(&mut cargo(&["fmt", "--all", "--check"]), tally),
            Self::Lints => check(
                &mut cargo(&[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--locked",
                    "--",
                    "-D",
                    "warnings",
                ]),
                tally,
            ),
            Self::Deny => {
                let mut deny = Command::new(tools::cargo_deny()?);
                // advisories change with the day, not with the commit, so they do not decide here
                deny.args(["--locked", "check", "bans", "licenses", "sources"])
                    .current_dir(workspace::root());
                check(&mut deny, tally)
            }
            Self::Unit => {
                let mut tests = cargo(&[
                    "test",
                    "--workspace",
                    "--locked",
                    "--exclude",
                    "e2e",
                    "--exclude",
                    "testbed",
                    "--no-fail-fast",
                ]);
                count(pass_on(&mut tests, rest), tally)
            }
            Self::Docs => check(
                cargo(&["doc", "--workspace", "--no-deps", "--locked", "--quiet"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
                tally,
            ),
            Self::Soak => count(&mut bench::short_soak()?, tally),
            Self::Testbed => {
                let tools = tools::ensure()?;
                let mut tests =
                    cargo(&["test", "--locked", "--package", "testbed", "--no-fail-fast"]);
                tools.tell(&mut tests)?;
                count(pass_on(&mut tests, rest), tally)
            }
            Self::E2e => {
                let tools = tools::ensure()?;
                // the `dev` profile: what the unit tests compiled serves again, which halves a run from nothing
                run(&mut programs(&[]))?;
                let mut tests = cargo(&["test", "--locked", "--package", "e2e", "--no-fail-fast"]);
                tools.tell(&mut tests)?;
                tests.env("ISTHMUS_BIN_DIR", workspace::target().join("debug"));
                count(pass_on(&mut tests, rest), tally)
            }
        }
    }
}

fn pass_on<'a>(tests: &'a mut Command, rest: &[String]) -> &'a mut Command {
    if !rest.is_empty() {
        tests.arg("--").args(rest);
    }
    tests
}

/// A part without tests of its own counts as one.
fn check(command: &mut Command, tally: &mut Tally) -> Result<()> {
    run(command)?;
    tally.passed += 1;
    Ok(())
}

/// Runs tests, shows what they print, and adds up the closing lines of their runners.
fn count(command: &mut Command, tally: &mut Tally) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo test")?;
    let before = *tally;
    let running = Running::new(&child);
    if let Some(stdout) = child.stdout.take() {
        let mut out = std::io::stdout().lock();
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("reading what the tests print")?;
            out.write_all(&line).context("printing")?;
            out.write_all(b"\n").context("printing")?;
            let Tally { passed, failed } = closing_line(&String::from_utf8_lossy(&line));
            tally.passed += passed;
            tally.failed += failed;
        }
    }
    let status = child.wait().context("waiting for the tests")?;
    drop(running);
    if !status.success() {
        bail!("the tests ended with {status}");
    }
    if tally.passed == before.passed {
        bail!("no test ran: is the name right?");
    }
    Ok(())
}

/// What a runner's `test result: ok. 12 passed; 0 failed; …` counts; nothing for other lines.
fn closing_line(line: &str) -> Tally {
    let Some(counts) = line.strip_prefix("test result:") else {
        return Tally::default();
    };
    let number = |word: &str| {
        counts
            .split([';', '.'])
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
            .unwrap_or(0)
    };
    Tally {
        passed: number("passed"),
        failed: number("failed"),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command runner without async has no other clock"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted_and_others_are_not() {
        let line = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        let expected = Tally {
            passed: 12,
            failed: 3,
        };
        assert_eq!(closing_line(line), expected);
        assert_eq!(closing_line("test a_line ... ok"), Tally::default());
        assert_eq!(
            closing_line("test result: FAILED. 0 passed; 1 failed;").failed,
            1
        );
    }
}
