//! From `main` to an exit code.

use std::{future::Future, panic::resume_unwind, process::ExitCode};

use anyhow::Context;
use clap::Parser;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
use tracing::error;

use crate::{LogArgs, Shutdown, args, limits};

/// `EX_USAGE` of `sysexits.h`: the program was configured wrongly, so a restart will not help.
pub(crate) const EX_USAGE: u8 = 64;

/// What a program's flags offer to the boundary.
pub trait Program: Parser {
    /// The flags for logs.
    fn log(&self) -> &LogArgs;

    /// Whether this call serves, with all the connections that this takes; else it is a command that ends soon.
    fn is_service(&self) -> bool {
        true
    }
}

/// A value from the outside that cannot be used; the program ends with exit code 64 before it opens a port.
#[derive(Debug, thiserror::Error)]
#[error("{value}: expected {expected}, for example {example}")]
pub struct ConfigError {
    value: String,
    expected: String,
    example: String,
}

/// The end of a command that has something to say to whoever typed it: the text goes to standard error as it is, with no
/// log line around it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Exit {
    code: u8,
    text: String,
}

// === impl Exit ===

impl Exit {
    /// `code` is the exit code.
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

// === impl ConfigError ===

impl ConfigError {
    /// `value` says which value is wrong and how (`--members: /x: no such directory`), `expected` what it should be,
    /// `example` one that works.
    pub fn new(
        value: impl Into<String>,
        expected: impl Into<String>,
        example: impl Into<String>,
    ) -> Self {
        Self {
            value: value.into(),
            expected: expected.into(),
            example: example.into(),
        }
    }
}

/// Runs a program: flags, logs, the limit of open files, signals, a multi-threaded runtime, `body`, exit code.
///
/// The code is 0 when `body` returns `Ok`, that of an [`Exit`], 64 for wrong flags or when the error's chain holds a [`ConfigError`], else 1.
pub fn run<A, F, Fut>(body: F) -> ExitCode
where
    A: Program,
    F: FnOnce(A, Shutdown) -> Fut,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let args = match args::parse::<A>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    args.log().init();
    if args.is_service() {
        limits::raise_open_files();
    }
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start the async runtime");
            return ExitCode::FAILURE;
        }
    };
    match run_body(runtime, || Ok(body(args, Shutdown::on_signals()?))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(exit) = error.downcast_ref::<Exit>() {
                eprintln!("{exit}");
            } else {
                error!("{error:#}");
            }
            exit_code(&error)
        }
    }
}

/// Runs what `begin` makes, in the runtime. Panics as it does.
fn run_body<Fut>(
    runtime: Runtime,
    begin: impl FnOnce() -> anyhow::Result<Fut>,
) -> anyhow::Result<()>
where
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let ended = run_to_end(runtime, async {
        // on a worker: from this thread each wake-up between the body and its tasks would cost two context switches
        let mut main = JoinSet::new();
        main.spawn(begin()?);
        let ended = main.join_next().await;
        ended.context("the program did not begin")
    });
    match ended {
        // the runtime is gone, so that this waits for nothing either
        Ok(Err(failed)) if failed.is_panic() => resume_unwind(failed.into_panic()),
        Ok(ended) => ended.context("the program was stopped").flatten(),
        Err(error) => Err(error),
    }
}

/// Runs it, and does not wait for what it leaves behind: a runtime that is dropped waits for its blocking tasks, and one
/// that reads from a dead file system hangs for ever.
fn run_to_end<T>(runtime: Runtime, body: impl Future<Output = T>) -> T {
    let outcome = runtime.block_on(body);
    runtime.shutdown_background();
    outcome
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if let Some(exit) = error.downcast_ref::<Exit>() {
        ExitCode::from(exit.code)
    } else if error
        .chain()
        .any(<dyn std::error::Error>::is::<ConfigError>)
    {
        ExitCode::from(EX_USAGE)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_error_anywhere_in_the_chain_is_64() {
        let error = Err::<(), _>(ConfigError::new("--x: 7", "a file", "--x /etc/x"))
            .context("reading the configuration")
            .expect_err("an error");
        assert_eq!(
            format!("{:?}", exit_code(&error)),
            format!("{:?}", ExitCode::from(64))
        );
        let text = format!("{error:#}");
        assert_eq!(
            text,
            "reading the configuration: --x: 7: expected a file, for example --x /etc/x"
        );
    }

    #[test]
    fn a_command_chooses_its_code() {
        let error = anyhow::Error::from(Exit::new(2, "unknown"));
        let code = exit_code(&error);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)));
    }

    /// How a body ends, in time, that leaves a blocking task behind which hangs.
    fn end_beside_a_hung_task(
        end: fn() -> anyhow::Result<()>,
    ) -> std::thread::Result<anyhow::Result<()>> {
        let (end_of, ended) = std::sync::mpsc::channel();
        let (release, hung) = std::sync::mpsc::channel::<()>();
        let body = move || {
            let body = async move {
                let (begin, begun) = std::sync::mpsc::channel();
                let hanging = tokio::task::spawn_blocking(move || {
                    let _ = begin.send(());
                    hung.recv()
                });
                begun.recv().expect("begun");
                drop(hanging);
                end()
            };
            Ok(body)
        };
        let program = std::thread::spawn(move || {
            // dropped with the outcome, or as a panic passes
            let _end_of = end_of;
            let runtime = Builder::new_multi_thread().build().expect("a runtime");
            run_body(runtime, body)
        });
        let outcome = ended.recv_timeout(std::time::Duration::from_secs(10));
        drop(release);
        let gone = Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
        assert_eq!(outcome, gone as Result<(), _>, "it waits for the task");
        program.join()
    }

    #[test]
    fn a_blocking_task_that_hangs_does_not_hold_up_the_end() {
        let ended = end_beside_a_hung_task(|| Ok(()));
        assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
    }

    #[test]
    fn a_blocking_task_that_hangs_does_not_hold_up_a_panic() {
        let ended = end_beside_a_hung_task(|| panic!("on purpose"));
        let panicked = ended.expect_err("a panic");
        assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
    }

    #[test]
    fn any_other_error_is_1() {
        let error = anyhow::anyhow!("port taken");
        assert_eq!(
            format!("{:?}", exit_code(&error)),
            format!("{:?}", ExitCode::FAILURE)
        );
    }
}
