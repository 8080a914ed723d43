//! The wait for the Processor.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use moment::Clock;
use processor_api::ProcessReply;
use scheduling::Moment;

use super::Ahead;
use crate::{
    director::{Prepared, elsewhere::UnplacedOne},
    external::{Ask, External, NoReply, Outcome, Pending, Question, Reservation},
};

/// A request in the stage. Dropping it before its end ends what the Router may have booked.
pub(crate) struct Staging {
    pub(super) external: Arc<External>,
    /// Absent once it is over.
    pub(super) staged: Option<(Prepared, Box<Ahead>)>,
    pub(super) ask: Ask,
    /// Until it is sent.
    pub(super) question: Option<Question>,
    pub(super) reply: Option<BoxFuture<'static, Result<ProcessReply, NoReply>>>,
    pub(super) reservation: Option<Reservation>,
    pub(super) pending: Option<(UnplacedOne, Pending)>,
    pub(super) clock: Clock,
    pub(super) began: Moment,
}

/// A request with the reply of the Processor.
pub(crate) struct Staged {
    pub(super) prepared: Prepared,
    pub(super) ahead: Box<Ahead>,
    pub(super) ask: Ask,
    pub(super) reply: Result<ProcessReply, NoReply>,
    pub(super) reservation: Option<Reservation>,
    pub(super) took: Duration,
    /// Until it counts at an endpoint.
    pub(super) pending: Option<(UnplacedOne, Pending)>,
}

// === impl Staging ===

impl Staging {
    /// Sends the question. `parent`: the span that it belongs to, if it is traced.
    pub(crate) fn begin(&mut self, parent: Option<String>) {
        let Some(question) = self.question.take() else {
            return;
        };
        self.began = self.clock.now();
        self.reservation = self.ask.route.then(|| Reservation::begin(&self.external));
        let id = self.reservation.as_ref().map(Reservation::id);
        let reply = self.external.processor.process(question.encode(parent, id));
        self.reply = Some(reply);
    }
}

impl Future for Staging {
    type Output = Option<Box<Staged>>;

    /// Nothing, if it was over before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.begin(None);
        let Some(reply) = &mut self.reply else {
            return Poll::Ready(None);
        };
        let reply = ready!(reply.as_mut().poll(cx));
        self.reply = None;
        let took = self.clock.now().since(self.began);
        let (ask, reservation) = (self.ask, self.reservation.take());
        let pending = self.pending.take();
        Poll::Ready(self.staged.take().map(|(prepared, ahead)| {
            Box::new(Staged {
                prepared,
                ahead,
                ask,
                reply,
                reservation,
                took,
                pending,
            })
        }))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.reply.is_some() {
            let took = self.clock.now().since(self.began);
            self.external.metrics.ended(Outcome::Cancelled, took);
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging")
            .field("ask", &self.ask)
            .finish_non_exhaustive()
    }
}

// === impl Staged ===

impl Staged {
    /// How the question ended; stable, for spans.
    pub(crate) fn told(&self) -> &'static str {
        match &self.reply {
            Ok(_) => "replied",
            Err(no_reply) => no_reply.reason(),
        }
    }
}
