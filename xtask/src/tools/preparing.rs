//! Tools that are made in the background.

use std::thread::{self, JoinHandle};

use anyhow::Result;

use crate::signals;

/// A thread that makes tools. When it is dropped, the processes that it still runs are ended, as they are no longer
/// needed.
pub(crate) struct Preparing(Option<JoinHandle<Result<()>>>);

impl Preparing {
    /// Starts the thread.
    pub(crate) fn begin(make: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self(Some(thread::spawn(make)))
    }

    /// Waits until all tools are made.
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
        // a later request for the tool reports the same error
        let _ = thread.join();
    }
}
