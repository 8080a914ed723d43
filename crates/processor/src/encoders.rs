//! The threads on which prompts are rendered and encoded, and the wait for one of them.
//!
//! ```text
//!  callers ─► places (bounded) ─► permits, one for each thread ─► job ─► thread
//! ```
//!
//! Whoever waits holds a place and nothing else: a caller that gives up, or whose time is over, leaves no work behind.

use std::{
    fmt, io,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tracing::error;

/// As much as the main thread of a process has: templates and regular expressions of others recurse.
const STACK: usize = 8 << 20;

/// A pool of threads. Work is given to a thread that is idle.
pub struct Encoders {
    /// As many as there are threads.
    idle: Arc<Semaphore>,
    /// As many as may wait for a thread.
    places: Semaphore,
    queue: usize,
    jobs: mpsc::Sender<Job>,
    /// They end with the sender.
    _threads: Vec<JoinHandle<()>>,
}

/// Why work was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// There is no place to wait, or the time was over.
    Overloaded,
    /// It panicked.
    Panicked,
}

type Job = Box<dyn FnOnce() + Send>;

// === impl Encoders ===

impl Encoders {
    /// Starts the threads; `queue` callers may wait for one of them.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(threads: NonZeroUsize, queue: usize) -> io::Result<Self> {
        let threads = threads.get();
        // a job is sent with a permit only, so that the channel is never full
        let (jobs, queued) = mpsc::channel::<Job>(threads);
        let queued = Arc::new(Mutex::new(queued));
        let threads: io::Result<Vec<_>> = (0..threads)
            .map(|number| {
                let queued = Arc::clone(&queued);
                let thread = thread::Builder::new()
                    .name(format!("tokenizer-{number}"))
                    .stack_size(STACK);
                thread.spawn(move || work_off(&queued))
            })
            .collect();
        let threads = threads?;
        Ok(Self {
            idle: Arc::new(Semaphore::new(threads.len())),
            places: Semaphore::new(queue),
            queue,
            jobs,
            _threads: threads,
        })
    }

    /// Does `work` on one of the threads. Work that has begun goes on to its end, whether or not somebody waits for it.
    ///
    /// # Errors
    /// [`NotDone`] when it was not begun or not done by `deadline`, or panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let permit = self.permit(deadline).await?;
        // timers are a millisecond late
        if Instant::now() >= deadline {
            return Err(NotDone::Overloaded);
        }
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move || {
            let _permit = permit;
            if !done.is_closed() {
                // an error: nobody waits any more
                let _ = done.send(work());
            }
        });
        self.jobs.try_send(job).map_err(|_| NotDone::Panicked)?;
        match timeout_at(deadline, result).await {
            Ok(result) => result.map_err(|_| NotDone::Panicked),
            Err(_) => Err(NotDone::Overloaded),
        }
    }

    /// Callers that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.queue.saturating_sub(self.places.available_permits())
    }

    async fn permit(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, NotDone> {
        // while somebody waits there is none to be had this way
        if let Ok(permit) = Arc::clone(&self.idle).try_acquire_owned() {
            return Ok(permit);
        }
        let place = self.places.try_acquire();
        let _place = place.map_err(|_| NotDone::Overloaded)?;
        let waiting = timeout_at(deadline, Arc::clone(&self.idle).acquire_owned());
        match waiting.await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(NotDone::Overloaded),
        }
    }
}

impl fmt::Debug for Encoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoders")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

fn work_off(queued: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // one thread waits here, the others for the lock
        let Some(job) = queued.lock().blocking_recv() else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            error!("a prompt could not be handled: the thread panicked, and goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, Ordering::SeqCst},
            mpsc as blocking,
        },
        time::Duration,
    };

    use futures::FutureExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn mk_encoders(threads: usize, queue: usize) -> Encoders {
        Encoders::start(NonZeroUsize::new(threads).unwrap(), queue).unwrap()
    }

    /// Work that goes on until it is released, and the release.
    fn mk_long_work() -> (impl FnOnce() + Send, blocking::Sender<()>) {
        let (release, released) = blocking::channel();
        let work = move || {
            let _ = released.recv_timeout(LIMIT);
        };
        (work, release)
    }

    #[tokio::test]
    async fn work_is_done_on_a_thread_of_its_own() {
        let encoders = mk_encoders(1, 0);
        let name = || thread::current().name().map(str::to_owned);
        let ran = encoders.run(Instant::now() + LIMIT, name).await;
        assert_eq!(ran, Ok(Some("tokenizer-0".to_owned())));
    }

    #[tokio::test]
    async fn as_much_work_is_done_at_once_as_there_are_threads() {
        let encoders = mk_encoders(2, 0);
        let deadline = Instant::now() + LIMIT;
        let both = Arc::new(std::sync::Barrier::new(2));
        let meet = || {
            let both = Arc::clone(&both);
            encoders.run(deadline, move || both.wait().is_leader())
        };
        let (one, other) = tokio::join!(meet(), meet());
        assert_ne!(one.unwrap(), other.unwrap());
    }

    #[tokio::test]
    async fn beyond_the_queue_callers_are_refused_at_once() {
        let encoders = mk_encoders(1, 1);
        let deadline = Instant::now() + LIMIT;
        let (work, release) = mk_long_work();
        let mut first = Box::pin(encoders.run(deadline, work));
        let mut second = Box::pin(encoders.run(deadline, || 2));
        assert_eq!(first.as_mut().now_or_never(), None);
        assert_eq!(second.as_mut().now_or_never(), None);
        assert_eq!(encoders.waiting(), 1);
        let third = encoders.run(deadline, || 3).now_or_never();
        assert_eq!(third, Some(Err(NotDone::Overloaded)));
        drop(release);
        assert_eq!(tokio::join!(first, second), (Ok(()), Ok(2)));
        assert_eq!(encoders.waiting(), 0);
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_its_place_and_no_work() {
        let encoders = mk_encoders(1, 1);
        let deadline = Instant::now() + LIMIT;
        let (work, release) = mk_long_work();
        let mut first = Box::pin(encoders.run(deadline, work));
        assert_eq!(first.as_mut().now_or_never(), None);
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let second = encoders.run(deadline, move || begins.store(true, SeqCst));
        assert_eq!(second.now_or_never(), None);
        assert_eq!(encoders.waiting(), 0);
        drop(release);
        assert_eq!(first.await, Ok(()));
        assert_eq!(encoders.run(deadline, || ()).await, Ok(()));
        assert!(!begun.load(SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_waits_no_longer_than_its_deadline() {
        let encoders = mk_encoders(1, 1);
        let begin = Instant::now();
        let (work, release) = mk_long_work();
        let first = encoders.run(begin + Duration::from_millis(300), work);
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let second = encoders.run(begin + Duration::from_millis(200), move || {
            begins.store(true, SeqCst);
        });
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Err(NotDone::Overloaded));
        assert_eq!(second, Err(NotDone::Overloaded));
        assert_eq!(begin.elapsed(), Duration::from_millis(300));
        drop(release);
        // a paused clock goes on while only threads work
        tokio::time::resume();
        let deadline = Instant::now() + LIMIT;
        assert_eq!(encoders.run(deadline, || ()).await, Ok(()));
        assert!(!begun.load(SeqCst));
    }

    #[tokio::test]
    async fn a_panic_ends_the_work_and_not_the_thread() {
        let encoders = mk_encoders(1, 0);
        let deadline = Instant::now() + LIMIT;
        let panics: fn() -> u8 = || panic!("on purpose");
        assert_eq!(encoders.run(deadline, panics).await, Err(NotDone::Panicked));
        // the permit comes back with the unwinding, maybe after the caller is told
        while encoders.run(deadline, || ()).await.is_err() {
            assert!(Instant::now() < deadline);
        }
    }
}
