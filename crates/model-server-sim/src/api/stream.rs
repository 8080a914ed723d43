//! An answer as server-sent events, each sent when its token is made.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{Stream, stream};

use super::answer::Answer;
use crate::{
    engine::{Cancelled, Progress, Sequence},
    server::App,
};

/// A stream on its way.
struct Events {
    app: Arc<App>,
    /// The request's number in the log.
    number: u64,
    answer: Answer,
    /// `None` once it has ended.
    sequence: Option<Sequence>,
    /// Tokens turned into events.
    sent: u32,
    /// Events that are ready: bounded by the tokens of the answer.
    ready: VecDeque<Bytes>,
}

/// The events of an answer. Dropping the stream (the client has gone) drops the sequence and so frees its
/// place; an engine that stops breaks the stream off.
pub(crate) fn events(
    app: Arc<App>,
    number: u64,
    answer: Answer,
    sequence: Sequence,
) -> impl Stream<Item = Result<Bytes, Cancelled>> + Send {
    let events = Events {
        app,
        number,
        answer,
        sequence: Some(sequence),
        sent: 0,
        ready: VecDeque::new(),
    };
    stream::try_unfold(events, async |mut events| {
        let event = events.next().await?;
        Ok(event.map(|event| (event, events)))
    })
}

// === impl Events ===

impl Events {
    async fn next(&mut self) -> Result<Option<Bytes>, Cancelled> {
        if self.ready.is_empty()
            && let Some(sequence) = &mut self.sequence
        {
            let progress = sequence.beyond(self.sent).await?;
            self.take(progress);
        }
        Ok(self.ready.pop_front())
    }

    /// Makes the events between what was sent and `progress`.
    fn take(&mut self, progress: Progress) {
        if self.sent == 0 {
            self.answer.cached_tokens = progress.cached_tokens;
            self.app
                .admin
                .record_cached(self.number, progress.cached_tokens);
            self.ready.extend(self.answer.start_events());
        }
        for index in self.sent..progress.tokens {
            self.ready.push_back(self.answer.token_event(index));
        }
        self.sent = progress.tokens;
        if progress.finished {
            self.ready.extend(self.answer.end_events());
            self.sequence = None;
        }
    }
}
