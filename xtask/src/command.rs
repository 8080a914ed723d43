//! Running other programs, with errors that say what ran and how it ended.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{progress::Step, signals::Running, workspace};

/// A cargo command in the checkout.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(workspace::root());
    if std::env::var_os("CARGO_TARGET_DIR").is_some() {
        // a relative one means another directory from there
        command.env("CARGO_TARGET_DIR", workspace::target());
    }
    command
}

/// Runs to the end; its output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", shown(command)))?;
    let running = Running::new(&child);
    let status = child.wait().context("waiting for it to end")?;
    drop(running);
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Becomes the command: signals and the exit code are its own. Returns only when it cannot be started.
pub(crate) fn become_it(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", shown(command)))
}

/// Runs to the end and gives its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", shown(command)))?;
    let running = Running::new(&child);
    let output = child.wait_with_output().context("waiting for it to end")?;
    drop(running);
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    Ok(output.stdout)
}

/// Runs to the end as a step; each line it writes to standard error is the step's detail, and the last lines are in the
/// error when it fails.
pub(crate) fn run_as_step(what: &str, command: &mut Command) -> Result<()> {
    const KEPT_LINES: usize = 30;
    let mut step = Step::begin(what);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", shown(command)))?;
    let _running = Running::new(&child);
    let mut last = std::collections::VecDeque::with_capacity(KEPT_LINES);
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines() {
            let line = line.context("reading what it says")?;
            step.at(&line);
            if last.len() == KEPT_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
    }
    let status = child.wait().context("waiting for it to end")?;
    if !status.success() {
        let tail = Vec::from(last).join("\n");
        bail!("{} ended with {status}:\n{tail}", shown(command));
    }
    step.done();
    Ok(())
}

/// The first file of this name on `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}
