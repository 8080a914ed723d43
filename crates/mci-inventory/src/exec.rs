//! Runs credential plugins: in a process group of their own, with little environment, for a short time.

use std::{
    ffi::OsString,
    io,
    pin::pin,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{Instant, sleep, timeout, timeout_at},
};
use zeroize::Zeroizing;

use crate::{
    credential::{self, CredentialError},
    kubeconfig::{Credentials, KubeconfigError},
    provider::{ExecPlan, INHERITED},
};

/// Runs at most this many plugins at once.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    slots: Arc<Semaphore>,
    /// It is logged that plugins wait long for a place; until one does not.
    warned: Arc<AtomicBool>,
    allow_plain_http: bool,
    limit: Duration,
    patience: Duration,
}

/// Credentials, and how long they last; none: until the server refuses them.
pub(super) type Fresh = (Credentials, Option<Duration>);

/// Why a plugin gave nothing. Quotes nothing that it printed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("no place to run {0} within {1:?}: other plugins held all {AT_ONCE} places")]
    Busy(String, Duration),
    #[error("cannot run {0}: {1}")]
    Start(String, #[source] io::Error),
    #[error("{0} did not start within {1:?}: see whether its file system answers")]
    Hung(String, Duration),
    #[error("{0} did not end within {1:?} and was killed")]
    Timeout(String, Duration),
    #[error("{0} printed more than 1 MiB: an ExecCredential is expected")]
    TooLarge(String),
    #[error("{0} failed ({1}): run it by hand, with KUBERNETES_EXEC_INFO set, to see why")]
    Failed(String, String),
    #[error("{0}: {1}")]
    Answer(String, #[source] CredentialError),
    #[error("{0}: {1}")]
    Material(String, #[source] KubeconfigError),
}

/// At once, over all members.
const AT_ONCE: usize = 8;
/// A plugin that has not ended by then never will, or hangs on something that would hang us. Its start counts.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for a place. Were the plugins of 1000 members all to take their limit and a second to end, the last would
/// begin after 125 rounds of 11 s; who waits longer, waits for what does not even start.
const PATIENCE: Duration = Duration::from_mins(25);
/// A wait for a place that is worth a line: as if some 80 plugins took their limit.
const NOTABLE_WAIT: Duration = Duration::from_mins(2);
/// Largest output, in bytes: as a kubeconfig.
const MAX_OUTPUT: usize = 1024 * 1024;
/// A plugin that closed its output is about to end: polled this often.
const END_PERIOD: Duration = Duration::from_millis(10);
/// Where the plugin finds what it is asked for.
const INFO: &str = "KUBERNETES_EXEC_INFO";

/// A running plugin and all that it started; killed when dropped.
struct Group {
    child: Child,
    /// The group's id is that of its first process, which is not reaped before the group is killed: no other process
    /// can have it.
    id: Option<Pid>,
    /// Its place among those at once.
    _slot: OwnedSemaphorePermit,
}

// === impl Runner ===

impl Runner {
    pub(super) fn new(allow_plain_http: bool) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            warned: Arc::default(),
            allow_plain_http,
            limit: LIMIT,
            patience: PATIENCE,
        }
    }

    /// Runs a plugin and makes credentials of its answer.
    /// # Errors
    /// Why there are none.
    pub(super) async fn run(&self, plan: &ExecPlan) -> Result<Fresh, ExecError> {
        self.run_by(plan, Command::spawn).await
    }

    /// Runs it by a function that starts it, and may block.
    async fn run_by(
        &self,
        plan: &ExecPlan,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child> + Send + 'static,
    ) -> Result<Fresh, ExecError> {
        let command = || plan.command.clone();
        let warn = |held| {
            tracing::warn!(
                command = plan.command,
                held,
                of = AT_ONCE,
                "a plugin waits for a place to run for {NOTABLE_WAIT:?}: see which plugins take long"
            );
        };
        let slot = self
            .place(warn)
            .await
            .ok_or_else(|| ExecError::Busy(command(), self.patience))?;
        let deadline = Instant::now() + self.limit;
        // finding the program may wait for a file system: a start that comes too late is undone where it happens, and
        // keeps its place until then
        let mut waiting = make_command(plan);
        let starting = spawn_blocking(move || Group::start(&mut waiting, slot, spawn));
        let mut group = timeout_at(deadline, starting)
            .await
            .map_err(|_| ExecError::Hung(command(), self.limit))?
            .unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
            .map_err(|error| ExecError::Start(command(), error))?;
        let printed = timeout_at(deadline, group.output(plan)).await;
        group.end().await;
        let output = printed.map_err(|_| ExecError::Timeout(command(), self.limit))??;
        let issued = credential::parse(&output, &plan.api_version, Timestamp::now())
            .map_err(|error| ExecError::Answer(command(), error))?;
        let credentials =
            Credentials::issued(plan.cluster.clone(), issued.user, self.allow_plain_http)
                .map_err(|error| ExecError::Material(command(), error))?;
        Ok((credentials, issued.life))
    }

    /// A place among those at once; none within our patience. `warn` is called for the first of those that wait long, with
    /// the number of places held.
    async fn place(&self, warn: impl FnOnce(usize)) -> Option<OwnedSemaphorePermit> {
        let mut place = pin!(self.slots.clone().acquire_owned());
        let soon = NOTABLE_WAIT.min(self.patience);
        if let Ok(place) = timeout(soon, &mut place).await {
            self.warned.store(false, Ordering::Relaxed);
            return place.ok();
        }
        let rest = self.patience.saturating_sub(soon);
        if !rest.is_zero() && !self.warned.swap(true, Ordering::Relaxed) {
            warn(AT_ONCE.saturating_sub(self.slots.available_permits()));
        }
        timeout(rest, place).await.ok()?.ok()
    }
}

fn make_command(plan: &ExecPlan) -> Command {
    let mut command = Command::new(&plan.command);
    command
        .args(&plan.args)
        .env_clear()
        .envs(INHERITED.iter().filter_map(|name| inherited(name)))
        .envs(&plan.env)
        .env(INFO, {
            let cluster = plan.provide_cluster_info.then_some(&plan.cluster);
            credential::exec_info(&plan.api_version, cluster)
        })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    command
}

// === impl Group ===

impl Group {
    fn start(
        command: &mut Command,
        slot: OwnedSemaphorePermit,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> io::Result<Self> {
        let child = spawn(command)?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            child,
            id: id.map(Pid::from_raw),
            _slot: slot,
        })
    }

    /// What it prints until it ends well.
    async fn output(&mut self, plan: &ExecPlan) -> Result<Zeroizing<Vec<u8>>, ExecError> {
        let name = || plan.command.clone();
        // of its final size: growing would leave copies behind
        let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT + 1));
        if let Some(stdout) = self.child.stdout.take() {
            let limit = u64::try_from(MAX_OUTPUT).unwrap_or(u64::MAX) + 1;
            let read = stdout.take(limit).read_to_end(&mut output).await;
            read.map_err(|error| ExecError::Start(name(), error))?;
        }
        if output.len() > MAX_OUTPUT {
            return Err(ExecError::TooLarge(name()));
        }
        loop {
            match self.peek() {
                WaitStatus::StillAlive => sleep(END_PERIOD).await,
                WaitStatus::Exited(_, 0) => return Ok(output),
                WaitStatus::Exited(_, code) => {
                    return Err(ExecError::Failed(name(), format!("exit code {code}")));
                }
                WaitStatus::Signaled(_, signal, _) => {
                    return Err(ExecError::Failed(name(), signal.to_string()));
                }
                _ => return Err(ExecError::Failed(name(), "lost".to_owned())),
            }
        }
    }

    /// How the first process stands, without reaping it.
    fn peek(&self) -> WaitStatus {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        self.id
            .and_then(|id| waitid(Id::Pid(id), flags).ok())
            .unwrap_or(WaitStatus::Continued(Pid::from_raw(0)))
    }

    fn kill(&mut self) {
        if let Some(id) = self.id.take() {
            // gone already is as good
            let _ = killpg(id, Signal::SIGKILL);
        }
    }

    /// Ends it and all that it started.
    async fn end(&mut self) {
        self.kill();
        let _ = timeout(Duration::from_secs(1), self.child.wait()).await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn inherited(name: &'static str) -> Option<(&'static str, OsString)> {
    Some((name, std::env::var_os(name)?))
}

#[cfg(test)]
mod tests;
