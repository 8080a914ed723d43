//! What a testbed tells while it starts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// One step of a start. Steps overlap; a step's name is the same at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The step has begun.
    Started {
        /// Its name, for people.
        step: String,
    },
    /// The step is done.
    Finished {
        /// Its name, for people.
        step: String,
        /// How long it took.
        took: Duration,
    },
}

/// Where progress goes.
#[derive(Clone)]
pub(crate) struct Listener(Arc<dyn Fn(Progress) + Send + Sync>);

// === impl Listener ===

impl Listener {
    pub(crate) fn new(listener: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Tells the beginning and, unless it fails, the end of `work`.
    pub(crate) async fn step<T, E>(
        &self,
        step: String,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = Instant::now();
        (self.0)(Progress::Started { step: step.clone() });
        let done = work.await?;
        let took = start.elapsed();
        (self.0)(Progress::Finished { step, took });
        Ok(done)
    }
}
