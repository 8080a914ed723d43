//! A program as a process of its own, and the cores that all of them share.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::ClockId,
    unistd::Pid,
};
use tokio::process::{Child, Command};

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    clock: ClockId,
    log: String,
}

/// Number of cores that a measurement has for everything.
const CORES: usize = 2;

/// Leaves two cores to this thread and to what it starts from now on.
/// # Errors
/// When there is only one.
pub fn share_two_cores() -> Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let mut cores = CpuSet::new();
    let found = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    let found: Vec<usize> = found.take(CORES).collect();
    if found.len() < CORES {
        bail!("two cores are needed: goals are of what two can do");
    }
    for core in found {
        cores.set(core)?;
    }
    sched_setaffinity(this_thread, &cores).context("moving to two cores")
}

// === impl Program ===

impl Program {
    /// Starts it; its log goes to a file. Call it within a runtime.
    /// # Errors
    /// When it does not start.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let out = std::fs::File::create(log).context("the log file")?;
        let child = command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                let program = command.as_std().get_program();
                format!("starting {}", program.to_string_lossy())
            })?;
        let pid = child.id().context("it ended at once")?;
        Ok(Self {
            child,
            clock: ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?))?,
            log: log.display().to_string(),
        })
    }

    /// User and system time so far, of all its threads.
    /// # Errors
    /// When the process is gone.
    pub fn cpu(&self) -> Result<Duration> {
        Ok(Duration::from(self.clock.now()?))
    }

    /// Succeeds while it runs.
    /// # Errors
    /// When it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("a program ended with {status}: see {}", self.log),
        }
    }
}
