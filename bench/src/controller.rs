//! The controller as a process, seen from outside.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
    },
    time::ClockId,
    unistd::{Pid, SysconfVar, sysconf},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// A running controller; killed when dropped.
pub struct Controller {
    child: Child,
    pid: Pid,
    admin: SocketAddr,
    log: PathBuf,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time, to a hundredth of a second.
    pub cpu: Duration,
    /// Resident memory, in bytes.
    pub rss: u64,
    /// The most that it ever was.
    pub peak_rss: u64,
}

/// An answer of the admin port.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);
/// From SIGTERM to the end.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(15);

// === impl Controller ===

impl Controller {
    /// Starts the program with these flags; its log goes to a file.
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path, flags: &[String], log: PathBuf) -> Result<Self> {
        Self::start_with(program, flags, &[], log)
    }

    /// The same with these variables.
    /// # Errors
    /// When it cannot be started.
    pub fn start_with(
        program: &Path,
        flags: &[String],
        variables: &[(&str, &Path)],
        log: PathBuf,
    ) -> Result<Self> {
        let admin = apiserver_sim::free_address()?;
        let out = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context("the log file")?;
        let mut command = Command::new(program);
        command
            .args(flags)
            .arg("--admin-address")
            .arg(admin.to_string())
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id().context("it ended at once")?;
        Ok(Self {
            child,
            pid: Pid::from_raw(i32::try_from(pid)?),
            admin,
            log,
        })
    }

    /// Waits until it is ready: how long that took.
    /// # Errors
    /// When it ends, or is not ready in time.
    pub async fn ready(&mut self, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the controller ended with {status}: see {}",
                    self.log.display()
                );
            }
            if self
                .get("/readyz")
                .await
                .is_ok_and(|(status, _)| status == 200)
            {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < limit,
                "the controller is not ready after {limit:?}: see {}",
                self.log.display()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// A GET on the admin port.
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.admin).await?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
            Ok((status.context("no status")?, answer))
        };
        timeout(ADMIN_TIMEOUT, exchange)
            .await
            .context("the admin port does not answer")?
    }

    /// Sum of all series of a metric whose labels contain a text.
    /// # Errors
    /// When the admin port does not answer.
    pub async fn metric(&self, name: &str, labels: &str) -> Result<f64> {
        let (_, page) = self.get("/metrics").await?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(labels));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// What it has used so far.
    /// # Errors
    /// When the process is gone.
    pub fn usage(&self) -> Result<Usage> {
        usage(&self.pid.to_string())
    }

    /// User and system time so far, exactly.
    /// # Errors
    /// When the process is gone.
    pub fn cpu(&self) -> Result<Duration> {
        let clock = ClockId::pid_cpu_clock_id(self.pid)?;
        Ok(Duration::from(clock.now()?))
    }

    /// SIGTERM, and waits.
    /// # Errors
    /// When it does not end in time.
    pub async fn stop(mut self) -> Result<Duration> {
        let start = Instant::now();
        kill(self.pid, Signal::SIGTERM)?;
        timeout(STOP_TIMEOUT, self.child.wait())
            .await
            .context("the controller does not end on SIGTERM")??;
        Ok(start.elapsed())
    }

    /// SIGKILL, and waits.
    /// # Errors
    /// When it does not end in time.
    pub async fn crash(mut self) -> Result<()> {
        self.child.start_kill()?;
        timeout(STOP_TIMEOUT, self.child.wait())
            .await
            .context("the controller does not end on SIGKILL")??;
        Ok(())
    }
}

/// User and system time of this process: the load's own.
/// # Errors
/// Without /proc.
pub fn own_cpu() -> Result<Duration> {
    Ok(usage("self")?.cpu)
}

/// A thousand members are seven thousand connections, of which this process has one end.
/// # Errors
/// When the limit cannot be read.
pub fn raise_open_files() -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

pub(crate) fn usage(pid: &str) -> Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("/proc/…/stat")?;
    // the second field, a name in parentheses, may hold spaces
    let rest = stat.rsplit_once(") ").context("no name in stat")?.1;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).context("no times in stat")?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")?;
    let seconds = (ticks.0 + ticks.1) as f64 / per_second as f64;
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("/proc/…/status")?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Ok(Usage {
        cpu: Duration::from_secs_f64(seconds),
        rss: kib("VmRSS:").context("no VmRSS")? * 1024,
        peak_rss: kib("VmHWM:").context("no VmHWM")? * 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_read() {
        let usage = usage("self").expect("this process");
        assert!(
            usage.rss > 1024 * 1024 && usage.peak_rss >= usage.rss,
            "{usage:?}"
        );
    }
}
