//! Signals: what ends this command ends what it started.

use std::{
    collections::BTreeSet,
    process::Child,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// Ids of the processes that are being waited for.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Whether this command is at its end, and what another thread starts now is ended at once.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A child that signals go to, until dropped.
pub(crate) struct Running(i32);

/// From now on SIGTERM and SIGHUP are passed on to the running children, whose end is then waited for as usual. SIGINT is
/// not: a terminal sends it to the children by itself.
pub(crate) fn pass_on() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
    thread::spawn(move || {
        for signal in &mut signals {
            if RUNNING.lock().is_empty() {
                end(128 + signal);
            }
            if let (true, Ok(signal)) = (signal != SIGINT, Signal::try_from(signal)) {
                send(signal);
            }
        }
    });
    Ok(())
}

/// Ends the children that still run, and those that another thread starts from now on.
pub(crate) fn end_running() {
    ENDING.store(true, Ordering::SeqCst);
    send(Signal::SIGTERM);
}

fn send(signal: Signal) {
    for child in RUNNING.lock().clone() {
        // it may just have ended, which is what was wanted
        let _ = kill(Pid::from_raw(child), signal);
    }
}

#[expect(clippy::exit, reason = "stands for the default action of the signal")]
fn end(code: i32) -> ! {
    std::process::exit(code)
}

// === impl Running ===

impl Running {
    pub(crate) fn new(child: &Child) -> Self {
        // Linux' ids are below 2^22
        let id = i32::try_from(child.id()).unwrap_or(i32::MAX);
        RUNNING.lock().insert(id);
        if ENDING.load(Ordering::SeqCst) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        Self(id)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.lock().remove(&self.0);
    }
}
