//! From the command line to an exit code.

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use crate::{
    args::{Args, Command},
    check, completion,
    contexts::Contexts,
    explain, export, join, leave,
    output::plain,
    route, status,
};

/// The exit status for a command line that does not parse, as in `process`.
const WRONG_FLAG: u8 = 64;

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
        before,
        mut command,
    } = args;
    if let Err(problem) = before.give_to(&mut command) {
        eprintln!("error: {}", plain(&problem));
        return Ok(ExitCode::from(WRONG_FLAG));
    }
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
    // what changes clusters goes on to its end where nobody reads
    let mut unread = Unread(&mut *out);
    match command {
        Command::Join(args) => join::join(args, &contexts, &mut unread).await?,
        Command::Leave(args) => leave::leave(args, &contexts, &mut unread).await?,
        Command::Export(args) => export::export(args, &contexts, &mut unread).await?,
        Command::Unexport(args) => export::unexport(args, &contexts, &mut unread).await?,
        Command::Status(args) => status::status(args, &contexts, out).await?,
        Command::Explain(args) => explain::explain(args, &contexts, out).await?,
        Command::Route(args) => route::route(args, &contexts, out).await?,
        Command::Check(_) | Command::Completion(_) | Command::Complete { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Drops what its reader has closed the pipe to.
struct Unread<W>(W);

// === impl Unread ===

impl<W: Write> Write for Unread<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed,
        }
    }
}

/// Lines without what would move a cursor: an error may quote a cluster.
fn readable(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its reader is gone; anything else fails in another way.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_closed_pipe_ends_nothing_and_other_faults_do() {
        let mut closed = Unread(Closed(ErrorKind::BrokenPipe));
        writeln!(closed, "east: applied").expect("dropped");
        closed.flush().expect("nothing to write");
        let mut full = Unread(Closed(ErrorKind::StorageFull));
        writeln!(full, "east: applied").expect_err("no room");
        full.flush().expect_err("no room");
    }
}
