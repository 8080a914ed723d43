//! The external stage of a request: before its pick it waits for a Processor, as it may have waited in the queue.
//!
//! ```text
//!  Prepared ─ plan ─► skipped ───────────────────────────────► pick here or elsewhere
//!                └──► Staging ─ reply ─► Staged ─ unstage ─┬─► its worker, checked ─► Answer
//!                                                          └─► no worker of ours ─► pick here or elsewhere
//! ```

mod staging;

use std::sync::Arc;

use bytes::Bytes;
use processor_api::{
    DP_RANK_HEADER, Degraded, Fallback, MAX_CANDIDATES, ProcessReply, StageFailure,
    TOKENS_KEY_HEADER,
};
use scheduling::{
    Entry, Freshness, MAX_LIST, Moment, Picker, Profile, Request, Table, choose, narrow,
};
use smallvec::SmallVec;
use tracing::debug;

use super::{
    Director, Prepared, Resolved, SCRATCH, Scratch,
    elsewhere::Picking,
    pick::{Picked, Told, endpoints},
};
use crate::{
    body::{Api, Parsed},
    config::InForce,
    edit::Edit,
    external::{
        Ask, Choice, External, ExternalMetrics, Facts, Found, Internal, Members, NoReply, Outcome,
        Overwritten, PickedBy, Plan, Question, QuestionHead, Reservation, Resolution, Skip, Stage,
        Tokens, Transfer, model_header, plan, resolve,
    },
    extproc::{REQUEST_ID, RequestHead, StagedAnswer},
    llm::LlmPick,
    reject::Reject,
};

pub(crate) use staging::{Staged, Staging};

/// Bytes of a message of the Processor that a client is told.
const MAX_MESSAGE: usize = 1000;

/// Has requests name their model in a header.
#[derive(Debug)]
pub(super) struct ModelHeader(pub(super) ExternalMetrics);

/// What the stage needs of a request.
#[derive(Debug)]
pub(super) struct Ahead {
    facts: Facts,
    found: Found,
    body: Bytes,
    /// Absent where nothing is asked in any case.
    head: Option<QuestionHead>,
    priority: i32,
    /// The client's.
    model: Option<Arc<str>>,
}

/// What the stage told of a request.
#[derive(Debug)]
pub(super) struct Behind {
    /// Of the prompt.
    tokens: Option<u32>,
    /// Of the prompt, cached by the worker that is used.
    overlap: Option<u32>,
    reservation: Option<Reservation>,
    told: &'static str,
}

// === impl ModelHeader ===

impl ModelHeader {
    pub(super) fn name(&self, head: &RequestHead, model: &str, edit: &mut Edit) {
        if model_header(head, model, edit) {
            self.0.overwritten(Overwritten::ModelName);
        }
    }
}

// === impl Ahead ===

impl Ahead {
    /// `edit`: what of the request is changed already.
    pub(super) fn of(
        external: &External,
        head: &RequestHead,
        parsed: Option<&Parsed>,
        body: &Bytes,
        resolved: &Resolved,
        is_translated: bool,
        edit: &Edit,
    ) -> Self {
        let External {
            switches, metrics, ..
        } = external;
        let api = Api::for_path(&head.path).ok().flatten();
        let facts = Facts::of(api, parsed, body, is_translated);
        let found = Found::of(api, parsed);
        for what in found.overwritten(body, switches) {
            metrics.overwritten(what);
        }
        if head.field(&[TOKENS_KEY_HEADER]).is_some() {
            metrics.overwritten(Overwritten::TokensKey);
        }
        let api = api.filter(|_| facts.is_askable());
        let id = edit.value(REQUEST_ID);
        Self {
            head: api.map(|api| QuestionHead::of(api, head, id, switches)),
            facts,
            found,
            body: body.clone(),
            priority: resolved.priority,
            model: resolved.model.clone(),
        }
    }

    /// Changes the request for the worker.
    fn finish(&self, external: &External, edit: &mut Edit, tokens: &Tokens) {
        tokens.set_header(edit);
        let splices = self
            .found
            .for_worker(&self.body, &external.switches, tokens);
        let added = splices.and_then(|splices| {
            let mut splices = splices.into_iter();
            splices.try_for_each(|splice| edit.splice(splice))
        });
        if let Err(error) = added {
            // A body that is made anew has nothing of the client's.
            debug!(%error, "the body is left as it is");
        }
    }

    /// What the Processor gets of the body.
    fn for_processor(&self, external: &External, ask: Ask, edit: &Edit) -> Vec<Bytes> {
        let mut edit = edit.clone();
        let splices = self
            .found
            .for_processor(&self.body, &external.switches, ask);
        for splice in splices.into_iter().flatten() {
            let added = edit.splice(splice);
            debug_assert_eq!(added, Ok(()));
        }
        edit.apply_body(self.body.clone()).collect()
    }
}

// === impl Behind ===

impl Behind {
    /// Tokens that the worker has to compute, where `uncached` of `prompt` were the estimates.
    pub(super) fn uncached(&self, uncached: u32, prompt: u32) -> u32 {
        match (self.tokens, self.overlap) {
            (Some(tokens), Some(overlap)) => tokens.saturating_sub(overlap),
            // the estimated share of what was counted
            (Some(tokens), None) if prompt > 0 => {
                let part = u64::from(tokens) * u64::from(uncached) / u64::from(prompt);
                u32::try_from(part).unwrap_or(u32::MAX)
            }
            (Some(tokens), None) => tokens,
            (None, _) => uncached,
        }
    }

    /// For who asks why a request went where it did.
    pub(super) fn told(&self) -> &'static str {
        self.told
    }

    pub(super) fn into_answer(self) -> Option<Box<StagedAnswer>> {
        let Self {
            tokens,
            reservation,
            ..
        } = self;
        let is_something = tokens.is_some() || reservation.is_some();
        is_something.then(|| {
            Box::new(StagedAnswer {
                reservation,
                tokens,
            })
        })
    }
}

// === impl Director ===

impl Director {
    /// Begins the external stage, or picks where there is none.
    pub(super) fn pick(&self, config: &InForce, mut prepared: Prepared, now: Moment) -> Picking {
        let Some((external, ahead)) = self.external.as_ref().zip(prepared.ahead.take()) else {
            return self.pick_staged(config, prepared, now);
        };
        let is_open = ahead.head.is_some() && external.processor.is_open();
        let planned = match plan(&ahead.facts, &external.switches, is_open) {
            Plan::Call(ask) => Ok(ask),
            Plan::Skip(skip) => Err(skip),
        };
        let planned = planned.and_then(|ask| {
            let head = ahead.head.clone().ok_or(Skip::OtherPath)?;
            let candidates = self.candidates(&prepared.request, ask, now);
            Ok((ask, head, candidates.ok_or(Skip::NoEndpoints)?))
        });
        let (ask, head, candidates) = match planned {
            Ok(planned) => planned,
            Err(skip) => return self.skip(external, config, prepared, &ahead, skip, now),
        };
        let profile = config.profile_of(prepared.llm.as_ref().map(|llm| &llm.found));
        let question = Question {
            head,
            body: ahead.for_processor(external, ask, &prepared.edit),
            route: ask.route.then(|| Choice {
                candidates: (candidates.len() <= MAX_CANDIDATES).then_some(candidates),
                priority: ahead.priority,
                max_endpoints: list_of(&prepared.request, profile),
            }),
        };
        let unplaced = self.awaited.begin(prepared.request.prompt_tokens);
        Picking::Staged(Box::new(Staging {
            external: Arc::clone(external),
            staged: Some((prepared, ahead)),
            ask,
            question: Some(question),
            reply: None,
            reservation: None,
            pending: Some((unplaced, external.metrics.pending())),
            clock: self.clock,
            began: now,
        }))
    }

    /// Picks with the reply of the Processor.
    pub(crate) fn unstage(&self, staged: Staged) -> Picking {
        let Staged {
            prepared,
            ahead,
            ask,
            reply,
            reservation,
            took,
            pending: _pending,
        } = staged;
        let (config, now) = (self.config.load(), self.clock.now());
        let Some(external) = &self.external else {
            return self.pick_staged(&config, prepared, now);
        };
        match reply {
            Ok(reply) => {
                external.metrics.ended(Outcome::Replied, took);
                let is_shed = ask.route
                    && ahead.priority < 0
                    && reply.degraded.contains(&Degraded::RouteSaturated);
                if is_shed {
                    return self.refuse(&prepared, Reject::Shed);
                }
                self.pick_replied(external, &config, prepared, &ahead, ask, reply, reservation)
            }
            Err(no_reply) => {
                if let Some(reservation) = reservation.filter(|_| !no_reply.may_have_booked()) {
                    reservation.forget();
                }
                if let NoReply::Skipped(skip) = no_reply {
                    return self.skip(external, &config, prepared, &ahead, skip, now);
                }
                let refusal = refusal(external, &no_reply.failure(), &ahead);
                let outcome = match refusal {
                    Some(_) => Outcome::Refused,
                    None => Outcome::Failed,
                };
                external.metrics.ended(outcome, took);
                match refusal {
                    Some(reject) => self.refuse(&prepared, reject),
                    None => self.pick_without_reply(external, &config, prepared, &ahead, &no_reply),
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of what was staged")]
    fn pick_replied(
        &self,
        external: &External,
        config: &InForce,
        mut prepared: Prepared,
        ahead: &Ahead,
        ask: Ask,
        reply: ProcessReply,
        mut reservation: Option<Reservation>,
    ) -> Picking {
        let now = self.clock.now();
        let has_router = !reply.degraded.contains(&Degraded::NoRouter);
        let (resolution, picked) =
            self.resolve_reply(config, external, &mut prepared, ask, reply, now);
        count(&external.metrics, ask, &resolution);
        ahead.finish(external, &mut prepared.edit, &resolution.tokens);
        let mut picked = picked;
        if let (Some(rank), Some(picked)) = (resolution.rank, &mut picked) {
            prepared.edit.set_header(DP_RANK_HEADER, rank.to_string());
            // The header is the same wherever the proxy tries again, and another worker may have fewer ranks.
            picked.endpoints.truncate(1);
        }
        if !has_router && let Some(reservation) = reservation.take() {
            reservation.forget();
        }
        prepared.behind = Some(Box::new(Behind {
            tokens: resolution.count,
            overlap: resolution.overlap.filter(|_| picked.is_some()),
            reservation: reservation.filter(|_| picked.is_some()),
            told: match resolution.workers {
                Ok(_) => "picked",
                Err(internal) => internal.reason().unwrap_or("replied"),
            },
        }));
        match picked {
            Some(picked) => {
                let answer = self.answer(config, prepared, picked, Told::default(), now);
                Picking::Made(answer)
            }
            None => self.pick_staged(config, prepared, now),
        }
    }

    fn pick_without_reply(
        &self,
        external: &External,
        config: &InForce,
        mut prepared: Prepared,
        ahead: &Ahead,
        no_reply: &NoReply,
    ) -> Picking {
        external
            .metrics
            .fell_back(Stage::Process, no_reply.reason());
        external.metrics.picked(PickedBy::Internal);
        ahead.finish(external, &mut prepared.edit, &Tokens::None);
        prepared.behind = Some(Box::new(Behind {
            tokens: None,
            overlap: None,
            reservation: None,
            told: no_reply.reason(),
        }));
        self.pick_staged(config, prepared, self.clock.now())
    }

    fn refuse(&self, prepared: &Prepared, reject: Reject) -> Picking {
        let asked = prepared.asked.as_deref();
        match &reject {
            // A template may repeat parts of the conversation, which are the client's alone.
            Reject::BadRequest(_, param) => {
                let what = "the external processor says what of it".to_owned();
                self.record_refusal(asked, &Reject::BadRequest(what, *param));
            }
            _ => self.record_refusal(asked, &reject),
        }
        Picking::Made(Err(reject))
    }

    /// The worker was to compute so many tokens, and says that it computed others.
    pub(crate) fn token_counts_differ(&self) {
        if let Some(external) = &self.external {
            external.metrics.mismatched();
        }
    }

    fn skip(
        &self,
        external: &External,
        config: &InForce,
        mut prepared: Prepared,
        ahead: &Ahead,
        skip: Skip,
        now: Moment,
    ) -> Picking {
        external.metrics.skipped(skip);
        let failure = skip.failure();
        let refusal = failure.and_then(|failure| refusal(external, &failure, ahead));
        if let Some(reject) = refusal {
            return self.refuse(&prepared, reject);
        }
        ahead.finish(external, &mut prepared.edit, &Tokens::None);
        self.pick_staged(config, prepared, now)
    }

    /// Which members the request may go to, where the Router is to choose of them; none: there is none.
    fn candidates(&self, request: &Request, ask: Ask, now: Moment) -> Option<Vec<String>> {
        SCRATCH.with_borrow_mut(|Scratch { table, .. }| {
            let guard = guard();
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, now, guard.freshness, false);
            let narrowed = narrow(table, request, &[], &guard, None).ok()?;
            let members = narrowed.candidates().filter(|_| ask.route);
            let members = members.filter_map(|(member, _)| snapshot.members().get(member));
            let destination = |member: &Entry| member.endpoint.destination().to_owned();
            Some(members.map(destination).collect())
        })
    }

    /// What the reply means, and whom it picks of the members that are there now.
    fn resolve_reply(
        &self,
        config: &InForce,
        external: &External,
        prepared: &mut Prepared,
        ask: Ask,
        reply: ProcessReply,
        now: Moment,
    ) -> (Resolution, Option<Picked>) {
        let Prepared { request, llm, .. } = prepared;
        let mut llm = llm.as_deref_mut();
        if let Some(llm) = &mut llm {
            let tokens = reply.token_count;
            llm.counted = tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        }
        let profile = config.profile_of(llm.as_ref().map(|llm| &llm.found));
        SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            let narrowed = narrow(table, request, &[], &guard(), None);
            let members = Members::new(table, &narrowed.unwrap_or_default());
            let resolution = resolve(reply, ask, &external.switches, &members);
            let candidates = members.len();
            let Ok(workers) = &resolution.workers else {
                return (resolution, None);
            };
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            self.match_chunks(config, request, llm.as_deref(), table);
            let mut workers = workers.clone();
            fill(&mut workers, table, request, matched, profile);
            let at_first = |column: &[u32]| {
                let first = workers.first().and_then(|first| column.get(*first));
                first.copied().unwrap_or(0)
            };
            let cached = at_first(&request.cached_chunks);
            let pick = llm.map(|llm| {
                llm.pick = LlmPick {
                    candidates: u32::try_from(candidates).unwrap_or(u32::MAX),
                    cached,
                    score: 0.0,
                    charge: llm.charge(config.prefill_charge_of(&llm.found), cached),
                };
                llm.pick
            });
            let picked = Picked {
                endpoints: endpoints(&snapshot, workers.iter().copied()),
                blocks: at_first(matched),
                score: 0.0,
                llm: pick,
            };
            (resolution, Some(picked))
        })
    }
}

/// Who is allowed at all, whatever a profile says of them.
fn guard() -> Profile {
    Profile {
        filters: Vec::new(),
        scorers: Vec::new(),
        picker: Picker::default(),
        freshness: Freshness::default(),
    }
}

/// How many endpoints the answer names.
fn list_of(request: &Request, profile: &Profile) -> u8 {
    let list = request.list.max(profile.picker.max_endpoints);
    list.clamp(1, MAX_LIST)
}

/// Behind the workers of the reply come those that would be chosen here.
fn fill(
    workers: &mut SmallVec<[usize; 1]>,
    table: &Table,
    request: &Request,
    matched: &[u32],
    profile: &Profile,
) {
    let list = usize::from(list_of(request, profile));
    workers.truncate(list);
    if workers.len() == list {
        return;
    }
    let chosen = choose(table, request, matched, profile, &mut rand::rng());
    for one in chosen.into_iter().flatten() {
        if workers.len() < list && !workers.contains(&one.member) {
            workers.push(one.member);
        }
    }
}

/// What the client of such a failure is told; none: its request goes on.
fn refusal(external: &External, failure: &StageFailure, ahead: &Ahead) -> Option<Reject> {
    let is_closed = external.switches.fail_closed;
    match (failure.fallback(is_closed), failure) {
        (Fallback::Internal, _) => None,
        (Fallback::Refuse(_), StageFailure::Client(message)) => {
            let message = message.get(..message.floor_char_boundary(MAX_MESSAGE));
            Some(Reject::BadRequest(
                message.unwrap_or_default().to_owned(),
                None,
            ))
        }
        (Fallback::Refuse(_), StageFailure::UnknownModel) => {
            let model = ahead.model.as_deref().map(str::to_owned);
            Some(Reject::ModelNotFound(model))
        }
        (Fallback::Refuse(_), failure) => Some(Reject::External(failure.clone())),
    }
}

fn count(metrics: &ExternalMetrics, ask: Ask, resolution: &Resolution) {
    if ask.transfer {
        metrics.sent_tokens(match resolution.tokens {
            Tokens::Key(_) => Transfer::Key,
            Tokens::Ids(_) => Transfer::Direct,
            Tokens::None => Transfer::None,
        });
    }
    if resolution.is_uncached {
        metrics.fell_back(Stage::Cache, "cache-write");
    }
    let Err(internal) = resolution.workers else {
        return metrics.picked(PickedBy::External);
    };
    metrics.picked(PickedBy::Internal);
    if let Internal::Refused(why) = internal {
        metrics.refused(why);
    }
    if let Some(reason) = internal.reason() {
        metrics.fell_back(Stage::Route, reason);
    }
}
