//! From the command line to an exit code.

use std::{io::Write, process::ExitCode};

use crate::{
    args::{Args, Command},
    check, completion,
    contexts::Contexts,
    explain, export, join, leave,
    output::plain,
    route, status,
};

/// Parses the command line and runs the command. 0: done, or nothing is wrong; 1: it failed, or something is wrong; 2: some
/// of it could not be looked at; 64: a wrong flag or value.
pub fn main() -> ExitCode {
    let args = match process::parse::<Args>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    let outcome = runtime.block_on(run(args, &mut out));
    // a connection that hangs is not waited for
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        // `| head` has seen enough
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", readable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let Args {
        kubeconfig,
        command,
    } = args;
    match &command {
        Command::Completion(args) => {
            completion::print(&args.shell, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Complete { words } => {
            completion::complete(words, kubeconfig.as_deref(), out)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let contexts = Contexts::read(kubeconfig.as_deref());
    if let Command::Check(args) = command {
        return check::check(args, contexts, out).await;
    }
    let contexts = contexts?;
    match command {
        Command::Join(args) => join::join(args, &contexts, out).await?,
        Command::Leave(args) => leave::leave(args, &contexts, out).await?,
        Command::Export(args) => export::export(args, &contexts, out).await?,
        Command::Unexport(args) => export::unexport(args, &contexts, out).await?,
        Command::Status(args) => status::status(args, &contexts, out).await?,
        Command::Explain(args) => explain::explain(args, &contexts, out).await?,
        Command::Route(args) => route::route(args, &contexts, out).await?,
        Command::Check(_) | Command::Completion(_) | Command::Complete { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines without what would move a cursor: an error may quote a cluster.
fn readable(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
