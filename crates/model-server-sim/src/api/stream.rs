//! An answer as server-sent events, each sent when its token is made.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{Stream, stream};

use super::{answer::Answer, responses::keep};
use crate::{
    engine::{Cancelled, Progress, Sequence},
    server::App,
};

/// Why a stream breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    #[error("cut, as /admin/config says")]
    ToldToCut,
}

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
    /// Tokens after which the stream breaks off.
    cut_after: Option<u32>,
    /// Events that are ready: bounded by the tokens of the answer.
    ready: VecDeque<Bytes>,
}

/// The events of an answer. Dropping the stream (the client has gone) drops the sequence and so frees its
/// place; an engine that stops breaks the stream off, and so may the knobs.
pub(crate) fn events(
    app: Arc<App>,
    number: u64,
    answer: Answer,
    sequence: Sequence,
) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
    let events = Events {
        cut_after: app.admin.cut_after(),
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
    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        while self.ready.is_empty()
            && let Some(sequence) = &mut self.sequence
        {
            if self.cut_after.is_some_and(|limit| self.sent >= limit) {
                return Err(Broken::ToldToCut);
            }
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
        let cut = self.cut_after.filter(|limit| *limit <= progress.tokens);
        let tokens = cut.unwrap_or(progress.tokens);
        for index in self.sent..tokens {
            let event = self.answer.token_event(index);
            self.ready.extend((!event.is_empty()).then_some(event));
        }
        self.sent = tokens;
        if progress.finished && self.cut_after.is_some() {
            // The end is missing also if the answer is shorter.
            self.cut_after = Some(tokens);
        } else if progress.finished {
            keep(&self.app, &self.answer);
            self.ready.extend(self.answer.end_events());
            self.sequence = None;
        }
    }
}
