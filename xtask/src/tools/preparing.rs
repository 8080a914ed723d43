//! Tools that are made beside something else.

use std::thread::{self, JoinHandle};

use anyhow::Result;

use crate::signals;

/// A thread that makes tools, until dropped: then what it still runs is ended, for nobody needs it any more.
pub(crate) struct Preparing(Option<JoinHandle<Result<()>>>);

impl Preparing {
    /// Begins.
    pub(crate) fn begin(make: fn() -> Result<()>) -> Self {
        Self(Some(thread::spawn(make)))
    }

    /// Waits until all is there.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("making the tools ended with a panic")))
        })
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        if !thread.is_finished() {
            signals::end_running();
        }
        // what it says is said again by whoever asks for the tool
        let _ = thread.join();
    }
}
