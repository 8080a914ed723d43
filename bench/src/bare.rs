//! The bare client as a process, seen from outside.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    Usage,
    controller::{STOP_TIMEOUT, usage},
};

/// A running bare client; killed when dropped.
pub struct Bare {
    child: Child,
    pid: u32,
    log: PathBuf,
}

/// What it prints once it waits for events.
pub const BARE_READY: &str = "ready";
/// All connections, and a watch on each: a thousand take some seconds.
const READY_TIMEOUT: Duration = Duration::from_mins(1);

// === impl Bare ===

impl Bare {
    /// Starts the program, and waits until it is ready. What it says of a failure goes to a file.
    /// # Errors
    /// When it does not start, or is not ready in time.
    pub(crate) async fn start(program: &Path, flags: &[String], log: &Path) -> Result<Self> {
        let file = std::fs::File::create(log).context("the log file")?;
        let mut child = Command::new(program)
            .args(flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id().context("it ended at once")?;
        let out = child.stdout.take().context("no output")?;
        let mut lines = BufReader::new(out).lines();
        let line = timeout(READY_TIMEOUT, lines.next_line()).await;
        let said = line.with_context(|| format!("not ready in {READY_TIMEOUT:?}"))??;
        if said.as_deref() != Some(BARE_READY) {
            bail!("the bare client is not ready: see {}", log.display());
        }
        Ok(Self {
            child,
            pid,
            log: log.to_owned(),
        })
    }

    /// What it has used so far.
    /// # Errors
    /// When the process is gone.
    pub fn usage(&self) -> Result<Usage> {
        usage(&self.pid.to_string())
    }

    /// Waits until it ends by itself, which it does when something failed.
    /// # Errors
    /// When it does not.
    pub async fn ended(mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = timeout(limit, self.child.wait()).await;
        Ok(ended.context("the bare client does not end")??)
    }

    /// Ends it.
    /// # Errors
    /// When it has ended by itself, which is a failure, or does not end.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "the bare client ended with {status}: see {}",
                self.log.display()
            );
        }
        timeout(STOP_TIMEOUT, self.child.kill())
            .await
            .context("the bare client does not end on SIGKILL")??;
        Ok(())
    }
}
