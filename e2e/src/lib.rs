//! What the end-to-end tests share: see `tests` and `README.md`. Run them with `cargo xtask test --only e2e`.

pub mod apart;
pub mod compare;
pub mod environment;
pub mod front;
pub mod lease;
pub mod pair;
pub mod programs;
pub mod rights;
pub mod tools;
pub mod watching;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Conclusion, Trial};
use tokio::runtime::Handle;

use crate::environment::Environment;

/// A test on a pair of clusters, or on other programs: what it promises, and how to see it.
pub struct Test<E = Environment> {
    /// With the module it is in.
    pub name: &'static str,
    /// Fails with what it saw.
    pub run: for<'a> fn(&'a E) -> LocalBoxFuture<'a, Result<()>>,
}

/// A list of [`Test`]s, from the paths of their functions.
#[macro_export]
macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$($crate::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |environment| Box::pin($module::$name(environment)),
        }),*]
    };
}

/// The main function of a test program: one pair of clusters for all tests, which run one after another. Where none is
/// chosen there are no clusters either.
#[must_use]
pub fn main(tests: &'static [Test]) -> ExitCode {
    match chosen(Arguments::from_args(), tests) {
        Ok(arguments) => environment::main(&arguments, tests),
        Err(code) => code,
    }
}

/// Runs those of these tests that were asked for, on one environment. `hint` ends the text of a failure.
pub fn run<E: Send + Sync + 'static>(
    arguments: &Arguments,
    tests: &'static [Test<E>],
    environment: &Arc<E>,
    handle: &Handle,
    hint: &str,
) -> Conclusion {
    let trials = tests.iter().map(|test| {
        let (environment, handle) = (environment.clone(), handle.clone());
        let hint = hint.to_owned();
        Trial::test(test.name, move || {
            let outcome = handle.block_on((test.run)(&environment));
            outcome.map_err(|error| format!("{error:#}{hint}").into())
        })
    });
    libtest_mimic::run(arguments, trials.collect())
}

/// What was asked for, one test after another; the exit code where that is no test.
///
/// # Errors
/// With that exit code.
pub fn chosen<E>(mut arguments: Arguments, tests: &[Test<E>]) -> Result<Arguments, ExitCode> {
    arguments.test_threads = Some(1);
    let mut names = tests.iter().map(|test| test.name);
    if !arguments.list && names.any(|name| is_chosen(&arguments, name)) {
        return Ok(arguments);
    }
    let trials = tests.iter().map(|test| Trial::test(test.name, || Ok(())));
    Err(libtest_mimic::run(&arguments, trials.collect()).exit_code())
}

/// Whether the runner would run the test of this name: what nobody looks at needs no clusters.
#[must_use]
pub fn is_chosen(arguments: &Arguments, name: &str) -> bool {
    let hits = |filter: &String| {
        if arguments.exact {
            name == filter
        } else {
            name.contains(filter.as_str())
        }
    };
    arguments.filter.as_ref().is_none_or(hits) && !arguments.skip.iter().any(hits)
}
