//! Tasks that end with whoever holds them.

use tokio_util::task::AbortOnDropHandle;

/// Runs it until it ends or the handle is dropped.
#[expect(clippy::disallowed_methods, reason = "the handle is owned")]
pub(super) fn spawn<F>(task: F) -> AbortOnDropHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    AbortOnDropHandle::new(tokio::spawn(task))
}
