//! Network namespaces held by a file descriptor: one is gone when its handle and the processes in it are.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// `ip` needs milliseconds; a busy machine gets a thousand times that.
const IP_LIMIT: Duration = Duration::from_secs(20);

/// Where `ip` is on machines whose users do not have it on their `PATH`.
const SYSTEM_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NetNs {
    file: Arc<File>,
}

/// Why the network could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A namespace could not be made or entered.
    #[error("network namespace: {0}")]
    Namespace(#[source] io::Error),
    /// The `ip` program is missing.
    #[error("cannot run `ip` ({0}): install iproute2")]
    Missing(io::Error),
    /// `ip` refused or hung.
    #[error("ip -batch: {stderr}; input was:\n{input}")]
    Refused {
        /// What `ip` said.
        stderr: String,
        /// The batch it was given.
        input: String,
    },
}

// === impl NetNs ===

impl NetNs {
    /// The namespace of the calling thread.
    pub(crate) fn current() -> Result<Self, NetworkError> {
        let file = File::open("/proc/thread-self/ns/net").map_err(NetworkError::Namespace)?;
        Ok(Self {
            file: Arc::new(file),
        })
    }

    /// A new one with nothing in it but a loopback device that is down.
    pub(crate) fn create() -> Result<Self, NetworkError> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })
        .map(|file| Self {
            file: Arc::new(file),
        })
        .map_err(NetworkError::Namespace)
    }

    /// Runs `work` on a thread that is inside; sockets and processes made there stay inside.
    /// Blocks for as long as `work` does.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or what `work` returns.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        on_thread(|| {
            setns(&*self.file, CloneFlags::CLONE_NEWNET)?;
            work()
        })
    }

    /// The name other programs can open it by.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs a batch of `ip` commands inside; stops at the first that fails.
    ///
    /// # Errors
    /// With what `ip` said and the whole batch.
    pub(crate) async fn ip(&self, batch: &str) -> Result<(), NetworkError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(SYSTEM_PLACES.map(PathBuf::from));
        let places = std::env::join_paths(places).unwrap_or(path);
        let mut command = Command::new("ip");
        command
            .args(["-batch", "-"])
            .env("PATH", places)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let mut child = self
            .run(|| {
                let _context = runtime.enter();
                command.spawn()
            })
            .map_err(NetworkError::Missing)?;
        let refused = |stderr: String| NetworkError::Refused {
            stderr,
            input: batch.to_owned(),
        };
        let talk = async {
            if let Some(mut input) = child.stdin.take() {
                input.write_all(batch.as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        match tokio::time::timeout(IP_LIMIT, talk).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(refused(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            )),
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused(format!("no end after {IP_LIMIT:?}"))),
        }
    }
}

/// Runs `work` on a thread of its own, so that what it does to its namespaces ends with it.
pub(crate) fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}
