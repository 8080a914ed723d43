//! The demos: three clusters, a pool that two of them export, requests to it from the third; or without Kubernetes, one
//! endpoint picker, three that share a Metadata-Center, or one with a Processor and a Router.
//! Started by `cargo xtask demo`.
#![allow(clippy::print_stdout, reason = "a terminal program")]

mod clusters;
mod dynamo;
mod llm;
mod place;
mod screen;
mod standalone;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (demo, keep) = match words[..] {
        [] => (Kind::Clusters, false),
        ["--keep"] => (Kind::Clusters, true),
        ["epp"] => (Kind::Epp, false),
        ["epp", "--keep"] => (Kind::Epp, true),
        ["llm"] => (Kind::Llm, false),
        ["llm", "--keep"] => (Kind::Llm, true),
        ["dynamo"] => (Kind::Dynamo, false),
        ["dynamo", "--keep"] => (Kind::Dynamo, true),
        _ => {
            let given = words.join(" ");
            eprintln!("{given}: expected [epp|llm|dynamo] [--keep]; see cargo xtask demo --help");
            return ExitCode::from(64);
        }
    };
    let outcome = match demo {
        Kind::Clusters => testbed::enter()
            .context("entering namespaces")
            .and_then(|inside| until_interrupted(clusters::run(&inside, keep))),
        // on the machine itself: its addresses are for the user to try
        Kind::Epp => until_interrupted(standalone::run(keep)),
        Kind::Llm => until_interrupted(llm::run(keep)),
        Kind::Dynamo => until_interrupted(dynamo::run(keep)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

enum Kind {
    Clusters,
    Epp,
    Llm,
    Dynamo,
}

/// Runs the demo to its end, or to the first signal, which drops it and with it all that it started.
fn until_interrupted(demo: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            outcome = demo => outcome.map(|()| ExitCode::SUCCESS),
            signal = interrupted() => signal,
        }
    })
}

/// The exit code of a process that a signal ended, once one came.
async fn interrupted() -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let number = tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    };
    eprintln!("\nEnding.");
    let code = u8::try_from(128 + number.as_raw_value()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
