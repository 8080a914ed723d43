//! PID 1 inside: reaps orphans, bounds the end of `main`, and leaves no process and no state behind.

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};

use super::{EnterError, KEEP, RunDirectory, again, setup};

/// Seconds `main` has to clean up after a signal: more than the 10 s its own `stop` may take.
const CLEANUP_LIMIT_S: u32 = 15;

/// Returns the exit code of `main`.
pub(super) fn run(run: &RunDirectory) -> Result<i32, EnterError> {
    // when the outer process is killed, this one is, and with PID 1 everything inside
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| setup("parent death signal", errno))?;
    let nothing: Option<&str> = None;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("proc"), "/proc", Some("proc"), flags, nothing)
        .map_err(|errno| setup("mount /proc", errno))?;

    // the mask that `outer` set is kept until the wait: a signal that comes before it stays pending; `main` resets its own
    let main = again("main", run)?
        .spawn()
        .map_err(|source| setup("start inside", source))?;
    let main = i32::try_from(main.id()).map_err(|_| setup("start inside", Errno::ERANGE))?;
    let code = wait_for(Pid::from_raw(main));

    // -1 is everything inside but this process
    let _sent = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
    if std::env::var_os(KEEP).is_none() {
        run.remove_state();
    } else {
        // tells later sweeps
        let _made = std::fs::write(run.path().join("keep"), "");
    }
    code
}

/// Waits for `main`, reaping whatever else ends; passes signals on, and kills it when they do not end it in time.
fn wait_for(main: Pid) -> Result<i32, EnterError> {
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
        Signal::SIGALRM,
    ] {
        signals.add(signal);
    }
    signals
        .thread_block()
        .map_err(|errno| setup("signal mask", errno))?;
    loop {
        // before the first wait too: a child that ended before the mask was set sent its signal to nobody
        if let Some(code) = reap(main) {
            return Ok(code);
        }
        match signals.wait() {
            Ok(Signal::SIGCHLD) => {}
            Ok(Signal::SIGALRM) => {
                let _sent = kill(main, Signal::SIGKILL);
            }
            Ok(signal) => {
                let _sent = kill(main, signal);
                alarm::set(CLEANUP_LIMIT_S);
            }
            Err(errno) => return Err(setup("wait", errno)),
        }
    }
}

/// Collects every process that has ended; the exit code of `main` if it is among them.
fn reap(main: Pid) -> Option<i32> {
    let mut code = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == main => code = Some(status),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                code = Some(128 + signal as i32);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return code,
            Ok(_) => {}
        }
    }
}
