#![cfg(test)]
//! The testbed itself, on real parts: clusters, pods, Services and faults. Run as a pod, it is the program under test.
#![allow(clippy::print_stdout, reason = "a terminal program")]

#[path = "clusters/echo.rs"]
mod echo;
#[path = "clusters/trials.rs"]
mod trials;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use testbed::{Progress, Testbed};
use tokio::runtime::Runtime;
use tokio::time::Instant;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(echo::ARGUMENT) {
        echo::serve();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    if arguments.list {
        // needs no clusters
        let trials = trials::ALL
            .iter()
            .map(|(name, _)| Trial::test(*name, || Ok(())));
        return libtest_mimic::run(&arguments, trials.collect()).exit_code();
    }
    // they share clusters, and faults in them
    arguments.test_threads = Some(1);
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let inside = testbed::enter()?;
    // kube tells every request that fails, and here many are meant to
    tracing_subscriber::fmt()
        .with_env_filter("warn,kube_client=off,watch=off")
        .with_writer(std::io::stderr)
        .init();
    let runtime = Arc::new(Runtime::new()?);
    let begin = Instant::now();
    let builder = Testbed::builder(&inside)
        .cluster("east")
        .cluster("west")
        .image_with("isthmus/echo", std::env::current_exe()?, &[echo::ARGUMENT]);
    let testbed = runtime.block_on(builder.start(|progress| {
        if let Progress::Finished { step, took } = progress {
            println!("{step}: {:.1} s", took.as_secs_f64());
        }
    }))?;
    println!(
        "two clusters ready after {:.1} s; logs: {}",
        begin.elapsed().as_secs_f64(),
        testbed.logs_dir().display()
    );

    runtime.block_on(trials::prepare(&testbed))?;

    let testbed = Arc::new(testbed);
    let trials = trials::ALL.iter().map(|&(name, trial)| {
        let (runtime, testbed) = (Arc::clone(&runtime), Arc::clone(&testbed));
        Trial::test(name, move || {
            runtime.block_on(trial(&testbed)).map_err(|error| {
                format!("{error:#}\nlogs: {}", testbed.logs_dir().display()).into()
            })
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    if let Some(testbed) = Arc::into_inner(testbed) {
        let begin = Instant::now();
        runtime.block_on(testbed.stop());
        println!("stopped after {:.1} s", begin.elapsed().as_secs_f64());
    }
    Ok(conclusion.exit_code())
}
