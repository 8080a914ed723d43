//! Signals: what ends this command ends what it started.

use std::{
    process::Child,
    sync::atomic::{AtomicI32, Ordering},
    thread,
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// The process that is being waited for; 0 for none.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Says which child signals go to, until dropped.
pub(crate) struct Running;

/// From now on SIGTERM and SIGHUP are passed on to the running child, whose end is then waited for as usual. SIGINT is
/// not: a terminal sends it to the child by itself.
pub(crate) fn pass_on() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
    thread::spawn(move || {
        for signal in &mut signals {
            let child = RUNNING.load(Ordering::SeqCst);
            if child == 0 {
                end(128 + signal);
            }
            if let (true, Ok(signal)) = (signal != SIGINT, Signal::try_from(signal)) {
                // it may just have ended, which is what was wanted
                let _ = kill(Pid::from_raw(child), signal);
            }
        }
    });
    Ok(())
}

#[expect(clippy::exit, reason = "stands for the default action of the signal")]
fn end(code: i32) -> ! {
    std::process::exit(code)
}

// === impl Running ===

impl Running {
    pub(crate) fn new(child: &Child) -> Self {
        RUNNING.store(i32::try_from(child.id()).unwrap_or(0), Ordering::SeqCst);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.store(0, Ordering::SeqCst);
    }
}
