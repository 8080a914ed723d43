//! The EPP, or its floor, as a process on a core of its own.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{Signal, kill},
    time::ClockId,
    unistd::Pid,
};
use tokio::process::{Child, Command};

use super::Endpoints;
use crate::{Usage, controller::usage};

/// One core for the load and all that belongs to it, one for what is measured.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    load: usize,
    measured: usize,
}

/// A running picker; killed when dropped.
pub struct Picker {
    address: SocketAddr,
    pid: Pid,
    clock: ClockId,
    _child: Child,
}

/// How to start a program.
#[derive(Debug)]
pub(super) struct Start {
    /// The program.
    pub(super) program: PathBuf,
    /// Its flags.
    pub(super) flags: Vec<String>,
    /// Its environment, all of it.
    pub(super) variables: Vec<(&'static str, OsString)>,
}

// === impl Cores ===

impl Cores {
    /// Takes the first two, and moves this thread to the one for the load: what it starts follows.
    /// # Errors
    /// When there is only one.
    pub fn split() -> Result<Self> {
        let allowed = sched_getaffinity(this_thread())?;
        let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
        let pair = cores.next().zip(cores.next());
        let (load, measured) = pair.context("two cores are needed: one is the load's")?;
        let cores = Self { load, measured };
        move_to(cores.load)?;
        Ok(cores)
    }

    /// Starts a process on the core that is measured.
    fn spawn_measured(self, command: &mut Command) -> Result<Child> {
        move_to(self.measured)?;
        let child = command.spawn();
        move_to(self.load)?;
        Ok(child?)
    }
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

fn move_to(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(this_thread(), &cores).context("moving to a core")
}

// === impl Start ===

impl Start {
    pub(super) fn command(&self, log: &Path) -> Result<Command> {
        let out = std::fs::File::create(log).context("the log file")?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.flags)
            .env_clear()
            .envs(self.variables.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        Ok(command)
    }
}

// === impl Picker ===

impl Picker {
    /// Our EPP, for these endpoints.
    /// # Errors
    /// When it does not start.
    pub fn epp(cores: Cores, program: &Path, endpoints: &Endpoints, log: &Path) -> Result<Self> {
        let address = apiserver_sim::free_address()?;
        let port = |flag: &str, port: u16| [flag.to_owned(), port.to_string()];
        let mut flags: Vec<String> = [
            port("--grpc-port", address.port()),
            port("--grpc-health-port", apiserver_sim::free_address()?.port()),
            port("--metrics-port", apiserver_sim::free_address()?.port()),
        ]
        .into_iter()
        .flatten()
        .collect();
        flags.extend(["--secure-serving=false", "--log-level=error"].map(str::to_owned));
        let (more, variables) = endpoints.discovery();
        flags.extend(more);
        let start = Start {
            program: program.to_owned(),
            flags,
            variables,
        };
        Self::start(cores, &start, address, log)
    }

    /// The least that any EPP must do; it picks the first of the endpoints.
    /// # Errors
    /// When it does not start.
    pub fn floor(cores: Cores, program: &Path, endpoints: &Endpoints, log: &Path) -> Result<Self> {
        let address = apiserver_sim::free_address()?;
        let first = endpoints.members().first().context("no endpoint")?;
        let flags = [
            ("--listen", address.to_string()),
            ("--destination", first.to_string()),
        ];
        let flags = flags.into_iter();
        let start = Start {
            program: program.to_owned(),
            flags: flags
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect(),
            variables: Vec::new(),
        };
        Self::start(cores, &start, address, log)
    }

    fn start(cores: Cores, start: &Start, address: SocketAddr, log: &Path) -> Result<Self> {
        let child = cores
            .spawn_measured(&mut start.command(log)?)
            .with_context(|| format!("starting {}", start.program.display()))?;
        let pid = child.id().context("it ended at once")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        Ok(Self {
            address,
            pid,
            clock: ClockId::pid_cpu_clock_id(pid)?,
            _child: child,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// User and system time so far, of all its threads.
    /// # Errors
    /// When the process is gone.
    pub fn cpu(&self) -> Result<Duration> {
        Ok(Duration::from(self.clock.now()?))
    }

    /// Its memory.
    /// # Errors
    /// When the process is gone.
    pub fn usage(&self) -> Result<Usage> {
        usage(&self.pid.to_string())
    }

    /// Takes the core from it, until it is resumed: another is measured.
    /// # Errors
    /// When the process is gone.
    pub fn pause(&self) -> Result<()> {
        Ok(kill(self.pid, Signal::SIGSTOP)?)
    }

    /// Lets it go on.
    /// # Errors
    /// When the process is gone.
    pub fn resume(&self) -> Result<()> {
        Ok(kill(self.pid, Signal::SIGCONT)?)
    }
}
