//! What the user started: makes the namespaces, starts `init` inside, passes on signals and the exit code.

use std::fs;
use std::os::unix::process::CommandExt as _;

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getgid, getuid};

use super::{EnterError, RunDirectory, again, exit_code, setup};

/// Returns the exit code of what ran inside.
pub(super) fn run(run: &RunDirectory) -> Result<i32, EnterError> {
    let _lock = run
        .lock()
        .map_err(|source| setup("lock of the run directory", source))?;
    make_namespaces()?;

    // Blocked before the child exists, so that none is lost between its start and the first wait.
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        signals.add(signal);
    }
    signals
        .thread_block()
        .map_err(|errno| setup("signal mask", errno))?;

    // A runner that is killed (cargo, CI) cannot pass its signal on: its end is one.
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(|errno| setup("parent death signal", errno))?;

    // A process group of its own: a terminal's Ctrl-C comes here alone, and once.
    let mut init = again("init", run)?
        .process_group(0)
        .spawn()
        .map_err(|source| setup("start inside", source))?;
    let pid = i32::try_from(init.id()).map_err(|_| setup("start inside", Errno::ERANGE))?;
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => {
                let ended = init.try_wait().map_err(|source| setup("wait", source))?;
                if let Some(status) = ended {
                    return Ok(exit_code(status));
                }
            }
            Ok(signal) => {
                // it may just have ended; SIGCHLD says so next
                let _sent = kill(Pid::from_raw(pid), signal);
            }
            Err(errno) => return Err(setup("wait", errno)),
        }
    }
}

fn make_namespaces() -> Result<(), EnterError> {
    let (uid, gid) = (getuid(), getgid());
    let own = CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWIPC;
    match nix::sched::unshare(own | CloneFlags::CLONE_NEWUSER) {
        Ok(()) => {
            // without this the kernel refuses an unprivileged gid_map
            fs::write("/proc/self/setgroups", "deny")
                .map_err(|source| setup("setgroups", source))?;
            fs::write("/proc/self/uid_map", format!("0 {uid} 1"))
                .map_err(|source| setup("uid map", source))?;
            fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
                .map_err(|source| setup("gid map", source))?;
        }
        // root may have namespaces where user namespaces are switched off
        Err(_) if uid.is_root() => nix::sched::unshare(own).map_err(EnterError::Namespaces)?,
        Err(errno) => return Err(EnterError::Namespaces(errno)),
    }
    let nothing: Option<&str> = None;
    nix::mount::mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )
    .map_err(|errno| setup("private mounts", errno))
}
