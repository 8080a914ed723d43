//! `cargo xtask test`: every check, in the order in which a failure is cheapest to find.

mod alerts;
mod built;
mod inherited;
mod report;
mod runs;
mod times;

use std::{
    ffi::OsString,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Result, bail};
use clap::ValueEnum;

use self::{
    built::TestProgram,
    report::{Report, Timing},
};
pub(crate) use self::{
    built::{Tests, build},
    report::Tally,
    runs::{Run, run_all},
};
use crate::{
    command::{cargo, run},
    conformance, docs, manifests,
    tools::{self, conformance::Suite},
    workspace,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these parts alone (repeatable)
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Cases of each property test that does not fix their number itself, others in each run [default: as many as it says, the same in each run]
    #[arg(long, value_name = "N")]
    cases: Option<u32>,
    /// Passed on to the tests: a name filter, or flags of the test runner (with --only)
    #[arg(last = true, requires = "only")]
    rest: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// rustfmt
    Format,
    /// shellcheck on each script; clippy, all targets, warnings denied
    Lints,
    /// licences, duplicate and banned crates
    Deny,
    /// alert rules, their tests, and the queries of dashboards, by promtool
    Alerts,
    /// unit, property and doc tests; CRD drift is among them
    Unit,
    /// links of the pages, and rustdoc, warnings denied
    Docs,
    /// the testbed itself
    Testbed,
    /// end-to-end tests on real clusters
    E2e,
    /// endpoint pickers behind a real Istio; only where it is named here, since istiod takes 10 minutes of CPU to build
    Istio,
}

/// What the parts share.
struct Session<'a> {
    /// For the test programs.
    rest: &'a [String],
    cases: Option<u32>,
    /// Variables of our environment that test programs do not get.
    removed: Vec<OsString>,
    tally: Tally,
    ignored: Vec<String>,
    timings: Vec<Timing>,
}

/// Targets of the package `e2e`, the longest first: each has clusters of its own, and most of its time is waiting.
const E2E_TARGETS: [&str; 12] = [
    "members",
    "suite",
    "official",
    "anywhere",
    "conformance",
    "installation",
    "plugin",
    "chart",
    "epp",
    "llm",
    "dynamo",
    "crd_facts",
];
/// Target of the package `e2e` that is a part of its own, and of no run of all parts.
const ISTIO_TARGET: &str = "istio";
/// How many of [`E2E_TARGETS`] run at a time: as many as the two cores of a small machine can start clusters for.
const E2E_AT_ONCE: usize = 2;
/// The seed for the random cases of property tests.
const SEED: u64 = 1;
/// Targets of the package `testbed` that bring up clusters.
const TESTBED_TARGETS: [&str; 2] = ["clusters", "isolation"];
/// How many programs of unit tests run at a time: most of them wait for processes and files now and then.
const UNIT_AT_ONCE: usize = 2;

/// Runs the parts; the last line is the tally. Stops at the first part that fails: what follows would only repeat it.
pub(crate) fn run_tests(args: &Args) -> ExitCode {
    let parts = chosen(&args.only);
    let start = now();
    let removed = inherited::weakening(std::env::vars_os().map(|(name, _)| name));
    if let Some(notice) = inherited::notice(&removed) {
        println!("{notice}");
    }
    let mut session = Session {
        rest: &args.rest,
        cases: args.cases,
        removed,
        tally: Tally::default(),
        ignored: Vec::new(),
        timings: Vec::new(),
    };
    // Kubernetes' binaries take minutes to build from nothing, and the first parts do not need them
    let clusters = [Part::Testbed, Part::E2e];
    let _preparing = parts
        .iter()
        .any(|part| clusters.contains(part))
        .then(|| tools::Preparing::begin(tools::prepare_for_tests));
    let mut times = Vec::new();
    let mut failure = None;
    for (index, part) in parts.iter().enumerate() {
        let name = part.name();
        println!("\n== {name}");
        let begin = now();
        let before = session.tally;
        if let Err(error) = part.run(&mut session) {
            if session.tally.failed == before.failed {
                session.tally.failed += 1;
            }
            failure = Some((index, error.context(format!("{name} failed"))));
            break;
        }
        let took = begin.elapsed();
        println!("== {name}: ok, {:.0} s", took.as_secs_f64());
        times.push((name, took));
    }
    println!("\n{}", times::slowest(&session.timings));
    println!("{}", times::parts(&times, start.elapsed()));
    if !session.ignored.is_empty() {
        println!("ignored: {}", session.ignored.join(", "));
    }
    if let Some((index, error)) = &failure {
        println!("{error:#}");
        if let Some(line) = not_run(&parts, *index) {
            println!("{line}");
        }
    }
    println!("{}", session.tally);
    if failure.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What is run: the parts that were named, or all but the optional ones.
fn chosen(only: &[Part]) -> Vec<Part> {
    if !only.is_empty() {
        return only.to_vec();
    }
    let all = Part::value_variants().iter().copied();
    all.filter(|part| *part != Part::Istio).collect()
}

/// The line that names the parts after the one that failed; none where it was the last.
fn not_run(parts: &[Part], failed: usize) -> Option<String> {
    let names: Vec<String> = parts
        .iter()
        .skip(failed + 1)
        .map(|part| part.name())
        .collect();
    (!names.is_empty()).then(|| format!("not run: {}", names.join(", ")))
}

// === impl Part ===

impl Part {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        match self {
            Self::Format => session.check(&mut cargo(&["fmt", "--all", "--check"])),
            Self::Lints => {
                session.check(&mut shellcheck()?)?;
                session.check(clippy().arg("--all-targets").args(DENY))?;
                // `--all-targets` skips targets with `test = false`
                let mut apart = clippy();
                let e2e = E2E_TARGETS.iter().chain([&ISTIO_TARGET]);
                for target in e2e.chain(&TESTBED_TARGETS) {
                    apart.args(["--test", target]);
                }
                session.check(apart.args(DENY))
            }
            Self::Deny => {
                let mut deny = Command::new(tools::cargo_deny()?);
                // advisories change with the day, not with the commit, so they do not decide here
                deny.args(["--locked", "check", "bans", "licenses", "sources"])
                    .current_dir(workspace::root());
                session.check(&mut deny)
            }
            Self::Alerts => {
                for mut command in alerts::commands(&tools::promtool()?)? {
                    session.check(&mut command)?;
                }
                Ok(())
            }
            Self::Unit => {
                let programs = build(Tests::Unit)?;
                let tools = [
                    ("ENVOY_BIN", tools::envoy()?),
                    ("REDIS_SERVER_BIN", tools::redis()?),
                    ("LIBZMQ", tools::libzmq()?),
                    ("CRANE_BIN", tools::crane()?),
                ];
                let mut runs: Vec<Run> = programs
                    .iter()
                    .map(|program| session.program(&program.package, program))
                    .collect();
                runs.push(session.doc_tests());
                for run in &mut runs {
                    run.command.envs(tools.clone());
                }
                session.test(runs, UNIT_AT_ONCE)
            }
            Self::Docs => {
                docs::check()?;
                session.tally.passed += 1;
                session.check(
                    cargo(&["doc", "--workspace", "--no-deps", "--locked", "--quiet"])
                        .env("RUSTDOCFLAGS", "-D warnings"),
                )
            }
            Self::Testbed => {
                let programs = build(Tests::Targets(&TESTBED_TARGETS))?;
                let tools = tools::ensure()?;
                let mut runs = Vec::new();
                for program in &programs {
                    let mut tests = session.program(&program.target, program);
                    tools.tell(&mut tests.command)?;
                    runs.push(tests);
                }
                session.test(runs, 1)
            }
            Self::E2e => {
                let programs = build(Tests::Targets(&E2E_TARGETS))?;
                let (tools, helm) = (tools::ensure()?, tools::helm()?);
                let redis = tools::redis()?;
                let promtool = tools::promtool()?;
                let official = conformance::places(Suite::Inference)?;
                manifests::check()?;
                session.tally.passed += 1;
                let mut runs = Vec::new();
                for target in E2E_TARGETS {
                    let Some(program) = programs.iter().find(|it| it.target == target) else {
                        bail!("cargo built no test program {target} of the package e2e");
                    };
                    let mut tests = session.program(target, program);
                    tools.tell(&mut tests.command)?;
                    tests.command.envs(official.clone());
                    tests.command.env("HELM_BIN", &helm);
                    tests.command.env("REDIS_SERVER_BIN", &redis);
                    tests.command.env("PROMTOOL_BIN", &promtool);
                    runs.push(tests);
                }
                session.test(runs, E2E_AT_ONCE)
            }
            Self::Istio => {
                let programs = build(Tests::Targets(&[ISTIO_TARGET]))?;
                let (tools, helm, istio) = (tools::ensure()?, tools::helm()?, tools::istio()?);
                let mut runs = Vec::new();
                for program in &programs {
                    let mut tests = session.program(&program.target, program);
                    tools.tell(&mut tests.command)?;
                    tests.command.env("HELM_BIN", &helm).envs(istio.clone());
                    runs.push(tests);
                }
                session.test(runs, 1)
            }
        }
    }
}

// === impl Session ===

impl Session<'_> {
    /// A check without tests of its own counts as one.
    fn check(&mut self, command: &mut Command) -> Result<()> {
        run(command)?;
        self.tally.passed += 1;
        Ok(())
    }

    /// A test program, named like this where several run at a time.
    fn program(&self, name: &str, program: &TestProgram) -> Run {
        let Run {
            name,
            heading,
            command,
        } = program.run(name, self.rest);
        let run = self.prepared(&name, command);
        Run { heading, ..run }
    }

    /// The examples in the documentation of all libraries.
    fn doc_tests(&self) -> Run {
        let mut tests = cargo(&["test", "--workspace", "--doc", "--locked", "--no-fail-fast"]);
        // its announcements are read: see report.rs
        tests
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_QUIET", "false")
            .env("CARGO_TERM_VERBOSE", "false");
        if !self.rest.is_empty() {
            tests.arg("--").args(self.rest);
        }
        self.prepared("docs", tests)
    }

    /// A run that inherits nothing that would weaken it.
    fn prepared(&self, name: &str, mut command: Command) -> Run {
        for variable in &self.removed {
            command.env_remove(variable);
        }
        match self.cases {
            Some(cases) => command.env("PROPTEST_CASES", cases.to_string()),
            // a check of a commit gives the same result each time; only an explicit search varies the seed
            None => command.env("PROPTEST_RNG_SEED", SEED.to_string()),
        };
        Run {
            name: name.to_owned(),
            heading: None,
            command,
        }
    }

    /// Runs tests, shows what they print, and adds up what they report.
    fn test(&mut self, runs: Vec<Run>, at_once: usize) -> Result<()> {
        let mut reports = Vec::new();
        let outcome = run_all(runs, at_once, &mut std::io::stdout(), &mut reports);
        let mut tally = Tally::default();
        for report in &reports {
            tally.add(report.tally());
            self.ignored.extend_from_slice(report.ignored());
            self.timings.extend_from_slice(report.timings());
        }
        self.tally.add(tally);
        outcome?;
        if tally.passed == 0 {
            bail!("no test ran: is the name right?");
        }
        if !is_filter(self.rest) {
            let idle: Vec<&str> = reports.iter().flat_map(Report::idle).collect();
            if !idle.is_empty() {
                bail!("ran none of their tests: {}", idle.join(", "));
            }
        }
        Ok(())
    }
}

/// Warnings fail the lints.
const DENY: [&str; 3] = ["--", "-D", "warnings"];

fn clippy() -> Command {
    cargo(&["clippy", "--workspace", "--locked"])
}

/// shellcheck, of all shell scripts of the checkout.
fn shellcheck() -> Result<Command> {
    let mut command = Command::new(tools::shellcheck()?);
    command
        .args(["--external-sources", "--source-path=SCRIPTDIR"])
        .args(workspace::scripts()?)
        .current_dir(workspace::root());
    Ok(command)
}

/// Whether these arguments of a test runner choose among the tests. One that is not known counts as a name.
fn is_filter(rest: &[String]) -> bool {
    const CHOOSING: [&str; 4] = ["--skip", "--exact", "--ignored", "--list"];
    rest.iter().any(|word| {
        let flag = word.split_once('=').map_or(&**word, |(flag, _)| flag);
        !flag.starts_with('-') || CHOOSING.contains(&flag)
    })
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

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn parts_after_the_one_that_failed_are_named() {
        let parts = [Part::Unit, Part::Testbed, Part::E2e];
        assert_eq!(not_run(&parts, 0).unwrap(), "not run: testbed, e2e");
        assert_eq!(not_run(&parts, 2), None);
    }

    #[test]
    fn optional_parts_are_run_only_where_they_are_named() {
        let all = chosen(&[]);
        assert!(
            all.contains(&Part::E2e) && !all.contains(&Part::Istio),
            "{all:?}"
        );
        assert_eq!(chosen(&[Part::Istio]), [Part::Istio]);
    }

    #[test]
    fn names_and_what_chooses_are_filters_and_other_flags_are_not() {
        for line in [
            "weight",
            "--skip=a02",
            "--exact --nocapture",
            "--test-threads 1 a02",
        ] {
            assert!(is_filter(&words(line)), "{line}");
        }
        for line in ["", "--nocapture", "--test-threads=1 --format=pretty"] {
            assert!(!is_filter(&words(line)), "{line}");
        }
    }

    #[test]
    fn scripts_are_found_wherever_they_are() {
        let scripts = workspace::scripts().unwrap();
        for script in [
            ".ci/run",
            "kind/up.sh",
            "e2e/tests/members/sources/token.sh",
        ] {
            assert!(scripts.contains(&script.into()), "{script}: {scripts:?}");
        }
    }

    #[test]
    fn each_target_that_a_plain_cargo_test_leaves_out_is_run() {
        let e2e = [&E2E_TARGETS[..], &[ISTIO_TARGET]].concat();
        for (package, targets) in [("e2e", &e2e[..]), ("crates/testbed", &TESTBED_TARGETS)] {
            let path = workspace::root().join(package).join("Cargo.toml");
            let manifest = std::fs::read_to_string(path).unwrap();
            let tests = manifest.split("[[test]]\nname = \"").skip(1);
            let mut declared: Vec<&str> = tests.filter_map(|rest| rest.split('"').next()).collect();
            let mut run = targets.to_vec();
            declared.sort_unstable();
            run.sort_unstable();
            assert_eq!(run, declared);
            let left_out = manifest.matches("harness = false\ntest = false\n").count();
            assert_eq!(left_out, targets.len(), "{manifest}");
        }
    }

    #[test]
    fn runs_get_neither_what_is_removed_nor_an_inherited_number_of_cases() {
        let session = Session {
            rest: &[],
            cases: Some(7),
            removed: vec!["PROPTEST_CASES".into(), "UPDATE_DOCS".into()],
            tally: Tally::default(),
            ignored: Vec::new(),
            timings: Vec::new(),
        };
        let run = session.doc_tests();
        let variable = |name: &str| {
            let mut variables = run.command.get_envs();
            variables
                .find(|(found, _)| *found == name)
                .map(|(_, value)| value)
        };
        assert_eq!(variable("UPDATE_DOCS"), Some(None));
        assert_eq!(variable("PROPTEST_CASES"), Some(Some("7".as_ref())));
        assert_eq!(variable("PROPTEST_RNG_SEED"), None);
    }
}
