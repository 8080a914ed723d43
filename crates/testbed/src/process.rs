//! One long-running process of the testbed: started in a namespace, logging to a file, subject to faults.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::mounts::Mounts;
use crate::netns::NetNs;

/// A killed process is reaped within this, or the kernel is in trouble.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// What to start, and where. Nothing of the testbed's own environment is passed on.
#[derive(Clone, Debug)]
pub(crate) struct ProcessSpec {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: PathBuf,
    /// Absent: that of the testbed itself, and its view of the file system.
    pub(crate) namespace: Option<NetNs>,
    pub(crate) mounts: Mounts,
    /// Standard output and standard error are appended here.
    pub(crate) log: PathBuf,
}

/// A running process in a process group of its own.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    group: Group,
    over: bool,
}

/// The process group of a [`Running`], for signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Pid);

/// A process that can be killed and started again as it was.
#[derive(Debug)]
pub(crate) struct Service {
    spec: ProcessSpec,
    running: Mutex<Option<Running>>,
}

// === impl ProcessSpec ===

impl ProcessSpec {
    /// Must be called on a tokio runtime.
    pub(crate) fn start(&self) -> io::Result<Running> {
        if let Some(parent) = self.log.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let mut spawn = || {
            let _context = runtime.enter();
            command.spawn()
        };
        let child = match &self.namespace {
            Some(namespace) => namespace.run(|| {
                self.mounts.enter()?;
                spawn()
            })?,
            None => spawn()?,
        };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or_else(|| io::Error::other("it ended before it could be watched"))?;
        Ok(Running {
            child,
            group: Group(Pid::from_raw(pid)),
            over: false,
        })
    }
}

// === impl Running ===

impl Running {
    pub(crate) fn group(&self) -> Group {
        self.group
    }

    /// Waits for the leader to end, then kills what is left of its group, as the end of a container does.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.over = true;
        self.group.signal(Signal::SIGKILL);
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // once it is over, its number may be another's
        if !self.over {
            self.group.signal(Signal::SIGKILL);
        }
    }
}

// === impl Group ===

impl Group {
    /// To all of the group; one that is gone is no error.
    pub(crate) fn signal(self, signal: Signal) {
        match killpg(self.0, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::warn!(group = %self.0, %signal, %errno, "signal not sent"),
        }
    }

    /// To the leader alone, as the runtime does with the first process of a container.
    pub(crate) fn signal_leader(self, signal: Signal) {
        let _gone = nix::sys::signal::kill(self.0, signal);
    }
}

// === impl Service ===

impl Service {
    pub(crate) fn start(spec: ProcessSpec) -> io::Result<Self> {
        let running = spec.start()?;
        Ok(Self {
            spec,
            running: Mutex::new(Some(running)),
        })
    }

    pub(crate) fn log(&self) -> &PathBuf {
        &self.spec.log
    }

    /// Its process; absent: it was killed.
    pub(crate) async fn pid(&self) -> Option<i32> {
        let running = self.running.lock().await;
        Some(running.as_ref()?.group.0.as_raw())
    }

    /// How it ended, if it has ended by itself.
    pub(crate) async fn ended(&self) -> Option<String> {
        let mut running = self.running.lock().await;
        let status = running.as_mut()?.child.try_wait().ok()??;
        Some(match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit code {}", status.code().unwrap_or_default()),
        })
    }

    pub(crate) async fn signal(&self, signal: Signal) {
        if let Some(running) = &*self.running.lock().await {
            running.group.signal(signal);
        }
    }

    /// SIGKILL; returns when it is gone.
    pub(crate) async fn kill(&self) {
        if let Some(mut running) = self.running.lock().await.take() {
            running.group.signal(Signal::SIGKILL);
            let _in_time = tokio::time::timeout(KILL_LIMIT, running.ended()).await;
        }
    }

    /// Kills it if it runs, and starts it again.
    pub(crate) async fn restart(&self) -> io::Result<()> {
        self.kill().await;
        *self.running.lock().await = Some(self.spec.start()?);
        Ok(())
    }
}
