//! A service as a process.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use nix::{time::ClockId, unistd::Pid};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::Wire;

/// A running service; killed when dropped.
pub struct ServiceProcess {
    address: SocketAddr,
    clock: ClockId,
    _child: Child,
}

const READY_TIMEOUT: Duration = Duration::from_secs(10);
const READY: &[u8] = b"GET /readyz HTTP/1.1\r\nhost: bench\r\n\r\n";
const WORKER_READY: &[u8] = b"GET /health/ready HTTP/1.1\r\nhost: bench\r\n\r\n";

// === impl ServiceProcess ===

impl ServiceProcess {
    /// Starts the program, and waits until it is ready. `port`: its flag for the port that is called.
    /// # Errors
    /// When it does not start, or is not ready in time.
    pub async fn start(program: &Path, port: &str, more: &[String], log: &Path) -> Result<Self> {
        let address = apiserver_sim::free_address()?;
        // Both are on one address.
        let admin = SocketAddr::new(address.ip(), apiserver_sim::free_address()?.port());
        let mut command = Command::new(program);
        command
            .args(["--host", &address.ip().to_string()])
            .args([port, &address.port().to_string()])
            .args(["--admin-port", &admin.port().to_string()])
            .args(more);
        Self::spawn(command, address, (admin, READY), log).await
    }

    /// Starts a simulated model server, and waits until it is ready.
    /// # Errors
    /// When it does not start, or is not ready in time.
    pub async fn start_worker(program: &Path, more: &[String], log: &Path) -> Result<Self> {
        let address = apiserver_sim::free_address()?;
        let mut command = Command::new(program);
        command
            .args(["--count", "1", "--bind-base", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()])
            // connections that wait for their turn stay open
            .args(["--keep-alive-timeout", "0"])
            .args(more);
        Self::spawn(command, address, (address, WORKER_READY), log).await
    }

    /// `ready`: who is asked, and what, until it answers 200.
    async fn spawn(
        mut command: Command,
        address: SocketAddr,
        ready: (SocketAddr, &[u8]),
        log: &Path,
    ) -> Result<Self> {
        let out = std::fs::File::create(log).context("the log file")?;
        let child = command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let pid = child.id().context("it ended at once")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        let service = Self {
            address,
            clock: ClockId::pid_cpu_clock_id(pid)?,
            _child: child,
        };
        let start = Instant::now();
        while let Err(error) = answers(ready).await {
            if start.elapsed() > READY_TIMEOUT {
                bail!("not ready: {error:#}; see {}", log.display());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(service)
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
}

async fn answers((address, request): (SocketAddr, &[u8])) -> Result<()> {
    let mut wire = Wire::connect(address).await?;
    wire.call(request).await.map(|_| ())
}
