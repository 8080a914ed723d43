//! The steps of a call: read, render, encode, then ask the Router and write to the token cache side by side.
//!
//! ```text
//!  body ─► thread: Members, Model::prompt, Model::encode ─► Prepared ─┬─► Router ──────► worker
//!                                                                     └─► token cache ─► key, or the ids themselves
//! ```
//!
//! Without its ids there is no reply; without a worker or a key there is a lesser one, which says so.

mod prepare;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use processor_api::{Degraded, MAX_REPLY, ProcessReply, Refusal, RouteReply, TokenKey, write_ids};
use token_cache::Entry;
use tokenization::{Api, EncodeOptions};
use tokio::time::Instant;

use crate::{
    encoders::{Encoders, NotDone},
    metrics::{Metrics, Stage},
    models::Models,
    spans::{Spans, Trace},
    transfer::{Transfer, Way},
};
pub(crate) use prepare::{Ids, ids_of};
use prepare::{Prepared, Took, prepare_process, prepare_render};

/// Of a reply: what it has beside the ids, 1024 fallbacks of some hundred bytes among it.
const OTHER_BYTES: usize = 256 << 10;

/// Ids that are longer as text are not in a reply.
const MAX_TEXT: usize = MAX_REPLY - OTHER_BYTES;

/// The Router. It ends by itself `within` the time that it is given, so that it sees its own timeouts.
pub trait Routes: Send + Sync + 'static {
    /// Chooses a worker.
    fn route(
        &self,
        call: RouteCall,
        within: Duration,
    ) -> impl Future<Output = Result<RouteReply, RouteFailure>> + Send;
}

/// The token cache. It ends by itself `within` the time that it is given, as the Router does.
pub trait Tokens: Send + Sync + 'static {
    /// Keeps the ids of a prompt.
    fn put(
        &self,
        key: TokenKey,
        entry: Entry,
        within: Duration,
    ) -> impl Future<Output = Result<(), NotKept>> + Send;
}

/// What the Router is asked.
#[derive(Clone, Debug)]
pub struct RouteCall {
    /// A [`processor_api::RouteRequest`] in its binary form.
    pub frame: Bytes,
    /// The request's name and trace.
    pub headers: HeaderMap,
}

/// Why there is no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteFailure {
    /// No answer in time.
    Late,
    /// There is no room.
    Saturated,
    /// Anything else.
    Failed,
}

/// The ids were not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKept;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The call is refused.
    Refused(Refusal),
    /// A bug.
    Internal,
}

/// What the steps run with.
#[derive(Debug)]
pub struct Steps<R, T> {
    /// Where prompts are rendered and encoded.
    pub encoders: Arc<Encoders>,
    /// What is the same for all calls.
    pub shared: Arc<Shared>,
    /// Absent: none is configured.
    pub router: Option<R>,
    /// Absent: none is configured.
    pub tokens: Option<T>,
    /// How ids get to workers.
    pub transfer: Transfer,
    /// The longest that the Router is waited for.
    pub route_timeout: Duration,
    /// The longest that the token cache is waited for.
    pub store_timeout: Duration,
    /// Absent: none are made.
    pub spans: Option<Spans>,
}

/// What the threads need too.
#[derive(Debug)]
pub struct Shared {
    /// The catalogue in force.
    pub models: Models,
    /// How prompts are encoded.
    pub options: EncodeOptions,
    /// The largest body of a client.
    pub max_prompt_bytes: usize,
    /// Where it is counted.
    pub metrics: Metrics,
}

/// Where the ids of one prompt are.
#[derive(Debug, Default)]
struct Sent {
    key: Option<TokenKey>,
    value: Option<Bytes>,
    degraded: Option<Degraded>,
}

// === impl Steps ===

impl<R: Routes, T: Tokens> Steps<R, T> {
    /// Answers a call of `/process` by `deadline`.
    ///
    /// # Errors
    /// [`Failure`] when there are no ids.
    pub async fn process(&self, call: Bytes, deadline: Instant) -> Result<ProcessReply, Failure> {
        let begun = Instant::now();
        let with_router = self.router.is_some();
        let work = move |shared: &Shared| prepare_process(shared, &call, with_router);
        let mut prepared = self.prepare(deadline, work).await?;
        let trace = self.trace(&mut prepared, begun);
        let reply = self.complete(&prepared, deadline, trace.as_ref()).await;
        if let Some(trace) = trace {
            trace.end(&prepared.name, &reply);
        }
        Ok(reply)
    }

    /// The ids of a client's body, by `deadline`.
    ///
    /// # Errors
    /// [`Failure`] when there are none.
    pub async fn render(
        &self,
        api: Api,
        body: Bytes,
        deadline: Instant,
    ) -> Result<String, Failure> {
        let work = move |shared: &Shared| prepare_render(shared, api, &body);
        let ids = self.prepare(deadline, work).await?;
        Ok(write_ids(&ids))
    }

    /// The call's spans, if it is sampled; the Router is then called under them.
    fn trace(&self, prepared: &mut Prepared, begun: Instant) -> Option<Trace> {
        let trace = self.spans.as_ref()?.begin(&prepared.headers, begun)?;
        let Took {
            begun,
            render,
            encode,
        } = prepared.took;
        trace.stage(Stage::Render, begun, render);
        trace.stage(Stage::Encode, begun + render, encode);
        if let Some(call) = &mut prepared.route {
            trace.inject(&mut call.headers);
        }
        Some(trace)
    }

    /// What follows from the ids.
    async fn complete(
        &self,
        prepared: &Prepared,
        deadline: Instant,
        trace: Option<&Trace>,
    ) -> ProcessReply {
        let count = prepared.ids.len();
        let (routed, sent) = tokio::join!(
            self.route(prepared, deadline, trace),
            self.send(prepared, deadline, trace)
        );
        let mut degraded = Vec::new();
        let routed = routed.unwrap_or_else(|why| {
            self.shared.metrics.route_fallback(why);
            degraded.push(why);
            None
        });
        degraded.extend(sent.degraded);
        let mut reply = ProcessReply {
            token_key: sent.key,
            token_value: sent.value,
            token_count: Some(count),
            degraded,
            ..ProcessReply::default()
        };
        if let Some(routed) = routed {
            let overlap = routed.overlap_blocks.saturating_mul(routed.block_size);
            reply.overlap_tokens = Some(overlap.min(count));
            reply.worker_address = Some(routed.worker_address);
            reply.worker_id = routed.worker_id;
            reply.dp_rank = routed.dp_rank;
            reply.fallbacks = routed.fallbacks;
        }
        reply
    }

    /// Runs `work` on a thread.
    async fn prepare<P: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&Shared) -> Result<P, Refusal> + Send + 'static,
    ) -> Result<P, Failure> {
        let (shared, asked) = (Arc::clone(&self.shared), Instant::now());
        let work = move || {
            shared.metrics.took(Stage::Queue, asked.elapsed());
            work(&shared)
        };
        match self.encoders.run(deadline, work).await {
            Ok(prepared) => prepared.map_err(Failure::Refused),
            Err(NotDone::Overloaded) => Err(Failure::Refused(Refusal::Overloaded)),
            Err(NotDone::Panicked) => Err(Failure::Internal),
        }
    }

    /// The Router's choice; none, if it is not asked for.
    async fn route(
        &self,
        prepared: &Prepared,
        deadline: Instant,
        trace: Option<&Trace>,
    ) -> Result<Option<RouteReply>, Degraded> {
        if !prepared.wants_route {
            return Ok(None);
        }
        let router = self.router.as_ref().zip(prepared.route.clone());
        let Some((router, call)) = router else {
            return Err(Degraded::NoRouter);
        };
        let begun = Instant::now();
        let within = self.route_timeout.min(deadline.duration_since(begun));
        let answer = router.route(call, within).await;
        self.took(Stage::Route, begun, trace);
        match answer {
            Ok(reply) => Ok(Some(reply)),
            Err(RouteFailure::Saturated) => Err(Degraded::RouteSaturated),
            Err(RouteFailure::Failed) => Err(Degraded::RouteError),
            Err(RouteFailure::Late) => Err(Degraded::RouteTimeout),
        }
    }

    /// Brings the ids on their way.
    async fn send(&self, prepared: &Prepared, deadline: Instant, trace: Option<&Trace>) -> Sent {
        if prepared.is_clients_own {
            return Sent::default(); // the worker has them in the body
        }
        let way = self.transfer.way(prepared.ids.len());
        match (way, &self.tokens) {
            (Way::Nowhere, _) => Sent::default(),
            (Way::Direct, _) | (Way::Key { else_direct: true }, None) => Sent::direct(prepared),
            (Way::Key { else_direct: false }, None) => Sent::not_kept(),
            (Way::Key { else_direct }, Some(tokens)) => {
                match self.keep(tokens, prepared, deadline, trace).await {
                    Ok(key) => Sent {
                        key: Some(key),
                        ..Sent::default()
                    },
                    Err(NotKept) if else_direct => Sent {
                        degraded: Some(Degraded::CacheWrite),
                        ..Sent::direct(prepared)
                    },
                    Err(NotKept) => Sent::not_kept(),
                }
            }
        }
    }

    async fn keep(
        &self,
        tokens: &T,
        prepared: &Prepared,
        deadline: Instant,
        trace: Option<&Trace>,
    ) -> Result<TokenKey, NotKept> {
        let key = TokenKey::random(&mut rand::rng());
        let entry = Entry {
            model: prepared.model.clone(),
            tokenizer: prepared.tokenizer.clone(),
            ids: prepared.ids.clone(),
        };
        let begun = Instant::now();
        let within = self.store_timeout.min(deadline.duration_since(begun));
        let kept = tokens.put(key, entry, within).await;
        self.took(Stage::Store, begun, trace);
        kept.map(|()| key)
    }

    fn took(&self, stage: Stage, begun: Instant, trace: Option<&Trace>) {
        let took = begun.elapsed();
        self.shared.metrics.took(stage, took);
        if let Some(trace) = trace {
            trace.stage(stage, begun, took);
        }
    }
}

// === impl Sent ===

impl Sent {
    /// In the reply, if there is room for them.
    fn direct(prepared: &Prepared) -> Self {
        let text = write_ids(&prepared.ids);
        Self {
            value: (text.len() <= MAX_TEXT).then(|| text.into()),
            ..Self::default()
        }
    }

    fn not_kept() -> Self {
        Self {
            degraded: Some(Degraded::CacheWrite),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
