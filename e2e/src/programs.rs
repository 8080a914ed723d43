//! Tests on programs without Kubernetes: started once for all tests of a target, which run one after another since several
//! of them break the programs on purpose; each leaves them as it found them.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};
use testbed::Inside;

use crate::Test;

/// A test that needs no programs: its name, and what it does.
pub type Alone = (&'static str, fn() -> Result<()>);

/// The programs that the tests of a target run on.
pub trait Programs: Send + Sync + Sized + 'static {
    /// Starts them, in namespaces of their own.
    ///
    /// # Errors
    /// When one does not come up.
    fn start(inside: &Inside) -> impl Future<Output = Result<Self>>;

    /// Ends them.
    fn stop(self) -> impl Future<Output = ()>;
}

/// The main function of a test program. Where no test is chosen no program is started.
#[must_use]
pub fn main<P: Programs>(tests: &'static [Test<P>]) -> ExitCode {
    main_beside(&[], tests)
}

/// As [`main`], with tests that need no programs and go before those that do.
#[must_use]
pub fn main_beside<P: Programs>(alone: &[Alone], tests: &'static [Test<P>]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let alone = alone.iter().map(|&(name, test)| {
        Trial::test(name, move || {
            test().map_err(|error| format!("{error:#}").into())
        })
    });
    let alone: Vec<Trial> = alone.collect();
    if arguments.list
        || !tests
            .iter()
            .any(|test| crate::is_chosen(&arguments, test.name))
    {
        let tests = tests.iter().map(|test| Trial::test(test.name, || Ok(())));
        let trials = alone.into_iter().chain(tests).collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &arguments, alone, tests));
    outcome.unwrap_or_else(|error| {
        eprintln!("the programs did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn run<P: Programs>(
    inside: &Inside,
    arguments: &Arguments,
    alone: Vec<Trial>,
    tests: &'static [Test<P>],
) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let programs = Arc::new(runtime.block_on(P::start(inside))?);
    let logs = inside.logs_dir().display().to_string();
    let handle = runtime.handle();
    let trials = tests.iter().map(|test| {
        let (programs, handle, logs) = (programs.clone(), handle.clone(), logs.clone());
        Trial::test(test.name, move || {
            handle
                .block_on((test.run)(&programs))
                .map_err(|error| format!("{error:#}\nlogs: {logs}").into())
        })
    });
    let trials = alone.into_iter().chain(trials).collect();
    let conclusion = libtest_mimic::run(arguments, trials);
    let programs = Arc::into_inner(programs).context("a test kept the programs")?;
    runtime.block_on(programs.stop());
    Ok(conclusion.exit_code())
}
