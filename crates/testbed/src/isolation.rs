//! Namespaces around the whole program, so that the kernel ends everything it started when it ends.
//!
//! Three processes of one executable: `outer` (what the user started) makes the namespaces and passes on signals;
//! `init` is PID 1 inside, and its end takes every other process inside with it; `main` is the program proper.

mod init;
mod outer;
mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

pub(crate) use run::RunDirectory;

/// Says which of the three processes this one is.
const ROLE: &str = "ISTHMUS_TESTBED_ROLE";
/// Where the run directory is, for `init` and `main`.
const RUN: &str = "ISTHMUS_TESTBED_RUN";
/// Set to anything: the state directory (certificates, kubeconfigs, etcd's data) outlives the run.
const KEEP: &str = "ISTHMUS_TESTBED_KEEP";

/// Proof that this process runs inside the testbed's namespaces; given by [`enter`].
#[derive(Clone, Debug)]
pub struct Inside {
    run: RunDirectory,
}

/// Why the namespaces could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The kernel or its configuration forbids user namespaces.
    #[error(
        "this machine does not allow new user and network namespaces ({0}): run as root, or allow them \
         (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, \
         user.max_user_namespaces above 0; in a container: --privileged)"
    )]
    Namespaces(Errno),
    /// A step of setting up the namespaces failed.
    #[error("testbed namespaces: {step}: {source}")]
    Setup {
        /// What was being done.
        step: &'static str,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The directory of this run could not be made.
    #[error("testbed directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
}

/// Runs the rest of the program inside namespaces of its own; call it first in `main`, before any thread exists.
///
/// In the process the user started this does not return: it starts the same executable again inside the namespaces,
/// passes on SIGINT, SIGTERM and SIGHUP, and ends with its exit code (128 + n after signal n). Whatever runs inside
/// is ended with it, also when this process is killed.
///
/// # Errors
/// When the namespaces cannot be made; the text says what to allow.
pub fn enter() -> Result<Inside, EnterError> {
    let executable = std::env::current_exe().unwrap_or_default();
    let stem = executable.file_stem().unwrap_or_default().to_string_lossy();
    // cargo appends `-<16 hex digits>` to the names of test programs
    let name = match stem.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name.to_owned()
        }
        _ => stem.into_owned(),
    };
    enter_as(&name, &default_root())
}

/// As [`enter`], with the name of the run and the directory under which `<name>-<time>-<pid>/logs` is made.
///
/// # Errors
/// As [`enter`].
pub fn enter_as(name: &str, root: &Path) -> Result<Inside, EnterError> {
    let role = std::env::var_os(ROLE);
    let run = std::env::var_os(RUN).map(RunDirectory::open);
    match (role.as_ref().and_then(|role| role.to_str()), run) {
        (Some("init"), Some(run)) => end(init::run(&run)?),
        (Some("main"), Some(run)) => {
            reset_signals()?;
            Ok(Inside { run })
        }
        _ => end(outer::run(&RunDirectory::create(root, name)?)?),
    }
}

/// `<workspace>/target/testbed`, or below `CARGO_TARGET_DIR` where that is set.
fn default_root() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| crate::workspace().join("target"), PathBuf::from)
        .join("testbed")
}

#[expect(
    clippy::exit,
    reason = "this stands for main in the two processes that are not the program"
)]
fn end(code: i32) -> ! {
    std::process::exit(code)
}

/// The two outer processes block the signals they wait for, and a blocked signal is inherited.
fn reset_signals() -> Result<(), EnterError> {
    nix::sys::signal::SigSet::empty()
        .thread_set_mask()
        .map_err(|errno| setup("signal mask", errno))
}

fn setup(step: &'static str, source: impl Into<std::io::Error>) -> EnterError {
    EnterError::Setup {
        step,
        source: source.into(),
    }
}

/// The same executable with the same arguments in another role.
fn again(role: &str, run: &RunDirectory) -> Result<std::process::Command, EnterError> {
    let executable = std::env::current_exe().map_err(|source| setup("own executable", source))?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = std::process::Command::new(executable);
    command.args(arguments).env(ROLE, role).env(RUN, run.path());
    Ok(command)
}

/// The exit code a shell would report.
fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

// === impl Inside ===

impl Inside {
    /// What to put before a command so that the clusters' addresses can be reached, while this program runs.
    pub fn enter_command(&self) -> String {
        let pid = self.run.owner();
        format!("nsenter --preserve-credentials --user --net --target {pid}")
    }

    /// Where the processes of this run log to; it outlives the run.
    pub fn logs_dir(&self) -> PathBuf {
        self.run.logs()
    }

    /// Where they keep files; it goes when the run ends.
    pub fn state_dir(&self) -> PathBuf {
        self.run.state()
    }

    pub(crate) fn run(&self) -> &RunDirectory {
        &self.run
    }
}
