//! The EPP, or its floor, as a process on a core of its own.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{Signal, kill},
    time::ClockId,
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

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
    metrics: Option<SocketAddr>,
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
}

/// The name that metrics have for the pool.
const POOL: &str = "bench";
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

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
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        Ok(command)
    }
}

// === impl Picker ===

impl Picker {
    /// Our EPP or another one with the same flags, by this configuration file. `more`: flags beside those for its ports and
    /// its configuration.
    /// # Errors
    /// When it does not start.
    pub fn epp(
        cores: Cores,
        program: &Path,
        config: &Path,
        more: &[String],
        log: &Path,
    ) -> Result<Self> {
        let address = apiserver_sim::free_address()?;
        let metrics = apiserver_sim::free_address()?;
        let port = |flag: &str, port: u16| [flag.to_owned(), port.to_string()];
        let mut flags: Vec<String> = [
            port("--grpc-port", address.port()),
            port("--grpc-health-port", apiserver_sim::free_address()?.port()),
            port("--metrics-port", metrics.port()),
            ["--config-file".to_owned(), config.display().to_string()],
            ["--pool-name", POOL].map(str::to_owned),
        ]
        .into_iter()
        .flatten()
        .collect();
        flags.push("--secure-serving=false".to_owned());
        flags.extend_from_slice(more);
        let start = Start {
            program: program.to_owned(),
            flags,
        };
        Self::start(cores, &start, address, Some(metrics), log)
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
        };
        Self::start(cores, &start, address, None, log)
    }

    fn start(
        cores: Cores,
        start: &Start,
        address: SocketAddr,
        metrics: Option<SocketAddr>,
        log: &Path,
    ) -> Result<Self> {
        let child = cores
            .spawn_measured(&mut start.command(log)?)
            .with_context(|| format!("starting {}", start.program.display()))?;
        let pid = child.id().context("it ended at once")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        Ok(Self {
            address,
            metrics,
            pid,
            clock: ClockId::pid_cpu_clock_id(pid)?,
            _child: child,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The sum of a metric's series on its page; zero where there is none.
    /// # Errors
    /// When it has no page.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = http_page(self.metrics.context("it has no metrics")?).await?;
        Ok(sum_of_series(&page, name))
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

/// The sum of a metric's series on a page; zero where there is none.
pub fn sum_of_series(page: &str, name: &str) -> f64 {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_it = labels.is_empty() || labels.starts_with('{');
        is_it.then(|| value.parse::<f64>().ok()).flatten()
    });
    series.sum()
}

/// The metrics page of a server.
/// # Errors
/// When it does not answer with one.
pub async fn http_page(server: SocketAddr) -> Result<String> {
    let fetch = async {
        let mut socket = TcpStream::connect(server).await?;
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = timeout(PAGE_TIMEOUT, fetch)
        .await
        .with_context(|| format!("the metrics of {server}"))??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no page")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "no page, but {head}");
    Ok(body.to_owned())
}
