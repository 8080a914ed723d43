//! One running Redis.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::find::{MissingRedis, find};

/// It starts in some 20 ms; a loaded machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// A Redis of its own, empty, that keeps nothing on disk. It ends with this value.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    directory: TempDir,
    child: Option<Child>,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is none.
    #[error(transparent)]
    Missing(#[from] MissingRedis),
    /// The system refused.
    #[error("starting Redis")]
    Io(#[from] io::Error),
    /// It ended, or does not answer.
    #[error("Redis does not answer on its socket; it wrote: {0}")]
    NoAnswer(String),
}

// === impl Server ===

impl Server {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// Says what to do where there is none.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with more arguments, such as `--maxmemory 4mb`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(arguments: &[&str]) -> Result<Self, StartError> {
        let mut server = Self {
            program: find()?,
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            directory: tempfile::tempdir()?,
            child: None,
        };
        server.begin()?;
        Ok(server)
    }

    /// Where clients connect to.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Ends it at once, and with it all that it holds.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already: the wait says so too.
            let _gone = child.kill();
            let _status = child.wait();
        }
    }

    /// Starts it again, empty, on the same socket.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.kill();
        self.begin()
    }

    /// It stops answering, and its connections stay.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// It goes on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn begin(&mut self) -> Result<(), StartError> {
        // An earlier one left it.
        let _absent = fs::remove_file(self.socket());
        let log = File::create(self.log())?;
        let child = Command::new(&self.program)
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--maxmemory-policy", "noeviction"])
            .arg("--unixsocket")
            .arg(self.socket())
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        let mut waited = Duration::ZERO;
        while !self.answers() {
            if waited >= START_LIMIT || self.has_ended() {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                return Err(StartError::NoAnswer(log));
            }
            thread::sleep(POLL);
            waited += POLL;
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut socket = UnixStream::connect(self.socket())?;
            socket.set_read_timeout(Some(START_LIMIT))?;
            socket.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            socket.read_exact(&mut answer)?;
            Ok(answer == *b"+PONG")
        };
        ask().unwrap_or(false)
    }

    fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_none_or(|it| !matches!(it.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .as_ref()
            .and_then(|it| i32::try_from(it.id()).ok());
        if let Some(pid) = pid {
            let _gone = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_until_it_is_killed_and_again_after_a_restart() {
        let mut server = Server::start().unwrap();
        assert!(server.answers());
        server.kill();
        assert!(!server.answers());
        server.restart().unwrap();
        assert!(server.answers());
    }
}
