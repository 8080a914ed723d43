//! Large bodies are read beside the threads of streams: one prompt of 4 MB takes longer than a hundred small requests,
//! which would wait for it.

use std::{
    future::{Future, pending},
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::body::{Api, BodyError, Parsed};

/// Bodies read at once, by all threads together: one of 64 MiB does not hold up the next. Who waits holds its body, so
/// that their number is bounded by the budget of bodies.
const AT_ONCE: usize = 2;

/// Reads bodies. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Reader(Arc<Semaphore>);

/// What a body says, once it is read. Dropping it leaves the queue.
pub(super) type Reading = Pin<Box<dyn Future<Output = Result<Parsed, BodyError>> + Send>>;

// === impl Reader ===

impl Reader {
    pub(super) fn read(&self, api: Api, body: Bytes) -> Reading {
        let turns = Arc::clone(&self.0);
        Box::pin(async move {
            // An error: somebody closed it, which nobody does.
            let Ok(turn) = turns.acquire_owned().await else {
                return pending().await;
            };
            let read = move || {
                let _turn = turn; // to the end of the reading, also where nobody waits for it any more
                api.parse(&body)
            };
            match spawn_blocking(read).await {
                Ok(parsed) => parsed,
                // As if it had been read here.
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                Err(_) => pending().await, // the thread of the stream ends, and the stream with it
            }
        })
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const BODY: Bytes = Bytes::from_static(br#"{"model":"m"}"#);

    #[tokio::test]
    async fn who_gives_up_waiting_holds_up_nobody() {
        let reader = Reader::default();
        let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
        let turns = u32::try_from(AT_ONCE).unwrap();
        let busy = reader.0.acquire_many(turns).await.unwrap();
        let (mut first, mut second) = (reader.read(api, BODY), reader.read(api, BODY));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        drop(busy);
        assert_eq!(second.await.unwrap().model, "m");
        assert_eq!(reader.0.available_permits(), AT_ONCE);
    }
}
