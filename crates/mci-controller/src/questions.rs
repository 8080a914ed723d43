//! What the admin port asks the world's loop: with a bound, and each answer with a deadline.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{explain::Explanation, name::Key};

/// Why each member has or lacks a key. The loop answers it between two turns and never waits.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) key: Key,
    /// None: nothing is known of it.
    pub(crate) answer: oneshot::Sender<Option<Explanation>>,
}

/// Where questions are asked.
#[derive(Clone, Debug)]
pub(crate) struct Questions(mpsc::Sender<Question>);

/// The loop has other questions to answer, or ends, or does not answer in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller is busy or ending: try again")]
pub(crate) struct Busy;

/// Questions that may wait, each a few milliseconds of the world's loop; more are refused.
const WAITING: usize = 8;
/// Timeout of an answer. The loop makes five turns a second at least, unless it is busy.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

// === impl Questions ===

impl Questions {
    /// Asks, and the receiver that answers.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    pub(crate) async fn explain(&self, key: Key) -> Result<Option<Explanation>, Busy> {
        let (answer, answered) = oneshot::channel();
        let question = Question { key, answer };
        self.0.try_send(question).map_err(|_| Busy)?;
        let answered = timeout(ANSWER_TIMEOUT, answered).await.map_err(|_| Busy)?;
        answered.map_err(|_| Busy)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_answer_is_waited_for_so_long() {
        let (questions, asked) = Questions::new();
        let key = Key::new("ml", "llm");
        let started = Instant::now();
        let asking = (0..WAITING).map(|_| questions.explain(key.clone()));
        for answer in futures::future::join_all(asking).await {
            assert_eq!(answer, Err(Busy));
        }
        assert_eq!(started.elapsed(), ANSWER_TIMEOUT);
        // the next finds no room: refused at once
        assert_eq!(questions.explain(key).await, Err(Busy));
        assert_eq!(started.elapsed(), ANSWER_TIMEOUT);
        drop(asked);
    }
}
