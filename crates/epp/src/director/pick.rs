//! The pick for a request of which all else is known: who may serve it, who of them is to, and the answer.

use std::sync::Arc;

use scheduling::{
    Booking, Endpoint, Explanation, Moment, Narrowed, NoPick, PickerKind, Request, Snapshot,
    Verdict, choose_among, narrow,
};
use smallvec::SmallVec;
use tracing::{Level, debug, enabled};

use super::{
    Director, Prepared, Readers, SCRATCH, Scratch, filter,
    picks::{Asked, Considered, Record},
};
use crate::{
    config::InForce,
    extproc::{Answer, PrefixMatch, Route},
    llm::{LlmPick, LlmRequest},
    reject::Reject,
};

/// Who was picked, by whomever.
pub(super) struct Picked {
    /// Best first; at least one.
    pub(super) endpoints: SmallVec<[Arc<Endpoint>; 1]>,
    /// Blocks of the prompt that the first has cached.
    pub(super) blocks: u32,
    /// Of the first.
    pub(super) score: f64,
    /// What the LLM filter tells of the pick, where it has a say.
    pub(super) llm: Option<LlmPick>,
}

/// What a choice tells beside its result, where somebody wants to know.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Of all candidates; of those that were named, where the choice was made elsewhere.
    pub(super) scores: Vec<(String, f64)>,
    pub(super) members: Vec<Considered>,
    /// When it began; absent: it was made elsewhere.
    began: Option<Moment>,
}

// === impl Director ===

impl Director {
    /// Picks by what is known here.
    pub(super) fn pick_by(
        &self,
        config: &InForce,
        mut prepared: Prepared,
        now: Moment,
    ) -> Result<Box<Answer>, Reject> {
        let Prepared {
            request,
            llm,
            asked,
            ..
        } = &mut prepared;
        let found = llm.as_ref().map(|llm| &llm.found);
        let profile = config.profile_of(found);
        if profile.picker.kind == PickerKind::RoundRobin {
            request.turn = self.turns.next(found.map(|found| &found.cluster));
        }
        let snapshot = self.pool.0.snapshot.load();
        let mut told = Told {
            began: Some(self.clock.now()),
            ..Told::default()
        };
        let picked = self.choose(config, &snapshot, request, llm.as_deref(), now, &mut told);
        let picked = picked.map_err(|no_pick| filter::refusal(no_pick, llm.as_deref()));
        let picked = picked.inspect_err(|reject| {
            debug!(
                reason = reject.reason(),
                members = snapshot.members().len(),
                "not picked"
            );
            if let (Some(picks), Some(asked)) = (&self.picks, &*asked) {
                let members = std::mem::take(&mut told.members);
                let asked = Asked::clone(asked);
                picks.push(Record::refused(asked, reject, None, members));
            }
        })?;
        if let Some(llm) = llm {
            llm.pick = picked.llm.unwrap_or_default();
        }
        self.answer(config, prepared, picked, told, now)
    }

    /// The answer with this pick, which counts at its first endpoint from now on.
    pub(super) fn answer(
        &self,
        config: &InForce,
        prepared: Prepared,
        picked: Picked,
        told: Told,
        now: Moment,
    ) -> Result<Box<Answer>, Reject> {
        let Prepared {
            request,
            edit,
            readers: Readers { tap, transcoder },
            session,
            mut llm,
            asked,
            ahead: _,
            behind,
        } = prepared;
        let Picked {
            endpoints,
            blocks,
            score,
            llm: _,
        } = picked;
        let first: &Arc<Endpoint> = endpoints.first().ok_or(NoPick::EmptyPool)?;
        if let (Some(picks), Some(asked)) = (&self.picks, asked) {
            let picked = endpoints.iter().map(|endpoint| endpoint.address());
            let stage = behind.as_ref().map(|behind| behind.told());
            picks.push(Record::picked(*asked, picked.collect(), told.members).after(stage));
        }
        let Request {
            model,
            prompt_tokens,
            transit,
            prefix,
            block_tokens,
            ..
        } = request;
        let uncached = prompt_tokens.saturating_sub(blocks.saturating_mul(block_tokens));
        let cached = prompt_tokens - uncached;
        let counted = match &behind {
            Some(behind) => behind.uncached(uncached, prompt_tokens),
            None => uncached,
        };
        let mut booking = Booking::new(Arc::clone(first), counted, model, now, transit);
        if let Some(llm) = &mut llm {
            booking = booking.charged(llm.pick.charge);
            self.expect_prefill(llm);
            self.expect_chunks(config, llm, first, now);
        }
        // Before the response: the session's next request may come before it.
        if let Some(session) = &session {
            self.served_by(session, first);
        }
        let destination = destination(&endpoints);
        debug!(%destination, score, prompt_tokens, matched = blocks, "picked");
        if let Some(llm) = &llm {
            llm.log_pick(&destination);
        }
        Ok(Box::new(Answer {
            route: Route {
                destination: Some(destination.into()),
                scores: told.scores,
                edit,
            },
            endpoints,
            booking,
            tap,
            transcoder,
            session,
            prefix: (!prefix.is_empty()).then_some(PrefixMatch {
                cached,
                prompt: prompt_tokens,
            }),
            learned: self.prefix.learned(prefix, blocks),
            llm,
            staged: behind.and_then(|behind| behind.into_answer()),
            scheduling: self.clock.now().since(told.began.unwrap_or(now)),
        }))
    }

    /// The choice: first who may serve the request, then who of them is to.
    fn choose(
        &self,
        config: &InForce,
        snapshot: &Snapshot,
        request: &mut Request,
        llm: Option<&LlmRequest>,
        now: Moment,
        told: &mut Told,
    ) -> Result<Picked, NoPick> {
        let profile = config.profile_of(llm.map(|llm| &llm.found));
        SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            self.match_chunks(config, request, llm, table);
            let is_traced = llm.is_some() && enabled!(Level::TRACE);
            let explains = self.options.emit_scores || self.picks.is_some() || is_traced;
            let mut explanation = explains.then(Explanation::default);
            let narrowed = narrow(table, request, matched, profile, explanation.as_mut());
            let candidates = narrowed.as_ref().map_or(0, Narrowed::len);
            let choice = narrowed.map(|narrowed| {
                let rng = &mut rand::rng();
                choose_among(table, request, narrowed, profile, rng, explanation.as_mut())
            });
            if let Some(explanation) = &explanation {
                if self.options.emit_scores {
                    told.scores = scores(snapshot, explanation);
                }
                if self.picks.is_some() {
                    told.members =
                        Considered::all(snapshot, table, matched, request, profile, explanation);
                }
                if let Some(llm) = llm.filter(|_| is_traced) {
                    filter::trace_scores(llm, table, request, profile, explanation);
                }
            }
            let choice = choice?;
            let first = choice.first().ok_or(NoPick::EmptyPool)?;
            let at_first = |column: &[u32]| column.get(first.member).copied().unwrap_or(0);
            let chunks = at_first(&request.cached_chunks);
            Ok(Picked {
                endpoints: endpoints(snapshot, choice.iter().map(|chosen| chosen.member)),
                blocks: at_first(matched),
                score: first.score,
                llm: llm.map(|llm| LlmPick {
                    candidates: u32::try_from(candidates).unwrap_or(u32::MAX),
                    cached: chunks,
                    score: first.raw,
                    charge: llm.charge(config.prefill_charge_of(&llm.found), chunks),
                }),
            })
        })
    }
}

/// The endpoints of members by their indexes.
pub(super) fn endpoints(
    snapshot: &Snapshot,
    members: impl Iterator<Item = usize>,
) -> SmallVec<[Arc<Endpoint>; 1]> {
    let members = members.filter_map(|member| snapshot.members().get(member));
    members.map(|member| Arc::clone(&member.endpoint)).collect()
}

/// The sums of all candidates.
fn scores(snapshot: &Snapshot, explanation: &Explanation) -> Vec<(String, f64)> {
    let verdicts = explanation.verdicts().iter();
    let scores =
        snapshot
            .endpoints()
            .zip(verdicts)
            .filter_map(|(endpoint, verdict)| match verdict {
                Verdict::Scored(scores) => Some((endpoint.destination().to_owned(), scores.sum)),
                Verdict::Excluded(_) => None,
            });
    scores.collect()
}

/// The endpoints in the protocol's text, best first.
fn destination(endpoints: &[Arc<Endpoint>]) -> String {
    match endpoints {
        [only] => only.destination().to_owned(),
        all => {
            let texts: Vec<_> = all.iter().map(|endpoint| endpoint.destination()).collect();
            texts.join(",")
        }
    }
}
