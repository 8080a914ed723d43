//! A part of the program on a thread and a runtime of its own: what it does delays no other part.

use std::{
    io,
    thread::{self, JoinHandle, Thread},
};

use tokio::{runtime::Builder, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// A thread with a single-threaded runtime, on which one future runs. Dropping it ends the future and all that it
/// spawned, and waits for the thread.
#[derive(Debug)]
pub struct OwnThread<T> {
    output: oneshot::Receiver<T>,
    stop: CancellationToken,
    /// Absent only while it is dropped.
    thread: Option<JoinHandle<()>>,
}

/// The future of a thread panicked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread {0} panicked")]
pub struct Panicked(String);

// === impl Panicked ===

impl Panicked {
    /// Of the thread of this name.
    pub fn of(thread: &str) -> Self {
        Self(thread.to_owned())
    }
}

// === impl OwnThread ===

impl<T: Send + 'static> OwnThread<T> {
    /// Runs what `make` makes on a new thread; `make` is called there.
    ///
    /// # Errors
    /// When there is no thread or runtime to be had.
    pub fn start<F, M>(name: &str, make: M) -> io::Result<Self>
    where
        F: Future<Output = T>,
        M: FnOnce() -> F + Send + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (sender, output) = oneshot::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = move || {
            let output = runtime.block_on(async { stopped.run_until_cancelled(make()).await });
            drop(runtime); // once there is an output nothing of the thread is left
            if let Some(output) = output {
                // An error: nobody waits for it any more.
                let _ = sender.send(output);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self {
            output,
            stop,
            thread: Some(thread),
        })
    }

    /// Waits for the future's output.
    ///
    /// # Errors
    /// When it panicked.
    pub async fn output(mut self) -> Result<T, Panicked> {
        let output = (&mut self.output).await;
        let thread = self.thread.as_ref().map(JoinHandle::thread);
        output.map_err(|_| Panicked::of(thread.and_then(Thread::name).unwrap_or_default()))
    }
}

impl<T> Drop for OwnThread<T> {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed, and shows as a missing output.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{Arc, Weak},
    };

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn the_output_comes_from_another_thread() {
        let name = || thread::current().name().map(str::to_owned);
        let own = OwnThread::start("apart", move || async move { name() }).unwrap();
        assert_eq!(own.output().await, Ok(Some("apart".to_owned())));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_that_names_the_thread() {
        let own = OwnThread::<()>::start("apart", || async { panic!("on purpose") }).unwrap();
        assert_eq!(own.output().await, Err(Panicked::of("apart")));
    }

    #[test]
    fn dropping_it_ends_the_future_and_what_it_spawned() {
        let kept = Arc::new(());
        let seen: Weak<()> = Arc::downgrade(&kept);
        let (started, began) = std::sync::mpsc::channel();
        let own = OwnThread::<()>::start("apart", move || async move {
            let mut tasks = JoinSet::new();
            tasks.spawn(async move {
                started.send(()).unwrap();
                pending::<()>().await;
                drop(kept);
            });
            pending::<()>().await;
        });
        began.recv().unwrap();
        assert!(seen.upgrade().is_some());
        drop(own);
        assert!(seen.upgrade().is_none());
    }
}
