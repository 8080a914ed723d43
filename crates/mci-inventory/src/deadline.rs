//! A deadline in real time for tests that start processes, or whose threads block.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::runtime::Builder;

/// What a test has seen, shown when it does not end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

/// How time goes on in a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Time {
    Real,
    Paused,
}

/// Twice what the longest such test may wait for, all its waits taken together, and some for a loaded machine.
const DEADLINE: Duration = Duration::from_mins(1);

/// Runs a test, and fails it when it does not end, whatever holds it up: where time is paused, or a call blocks, no
/// timeout of the runtime's own would fire, and a runtime that is dropped waits for its blocking threads for ever.
pub(crate) fn in_time<F: Future<Output = ()>>(
    time: Time,
    test: impl FnOnce(Seen) -> F + Send + 'static,
) {
    within(DEADLINE, time, test);
}

fn within<F: Future<Output = ()>>(
    limit: Duration,
    time: Time,
    test: impl FnOnce(Seen) -> F + Send + 'static,
) {
    let seen = Seen::default();
    let seeing = seen.clone();
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(matches!(time, Time::Paused))
            .build()
            .expect("a runtime");
        let run = || runtime.block_on(async { test(seeing).await });
        let outcome = catch_unwind(AssertUnwindSafe(run));
        runtime.shutdown_background();
        // nobody waits any more for one that is late
        let _ = end.send(outcome);
    });
    match ended.recv_timeout(limit) {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!(
            "not ended within {limit:?} ({error}); seen: {:#?}",
            seen.0.lock()
        ),
    }
}

// === impl Seen ===

impl Seen {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    #[test]
    #[should_panic(expected = "seen: [\n    \"the beginning\",\n]")]
    fn a_test_that_blocks_fails_and_shows_what_it_saw() {
        let (hold, held) = mpsc::channel::<()>();
        within(SOON, Time::Paused, |seen| async move {
            seen.note("the beginning");
            let _ = held.recv();
        });
        drop(hold);
    }

    #[test]
    #[should_panic(expected = "a reason")]
    fn a_test_that_fails_does_not_wait_for_its_threads() {
        let (hold, held) = mpsc::channel::<()>();
        within(DEADLINE, Time::Real, |_| async move {
            let _blocked = tokio::task::spawn_blocking(move || held.recv());
            panic!("a reason");
        });
        drop(hold);
    }

    #[test]
    fn a_test_that_ends_is_done() {
        let (report, reported) = mpsc::channel();
        within(SOON * 10, Time::Paused, |_| async move {
            tokio::time::sleep(DEADLINE).await;
            report.send(()).expect("received");
        });
        assert_eq!(reported.try_recv(), Ok(()));
    }
}
