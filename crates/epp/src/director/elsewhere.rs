//! Picks that are made elsewhere, by who knows what all endpoint pickers of the pool sent. Between the narrowing here and
//! the choice there a request waits, as it waits in the queue.
//!
//! ```text
//!  Prepared ─ narrow ─► candidates, biases ─► PickElsewhere ─► Picks ─ take ─► Answer
//!                                                  └─► nothing, or nobody of ours: the choice is made here
//! ```

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::future::BoxFuture;
use metadata::{
    Address, Cluster, RequestId,
    wire::{
        load::PromptLength,
        pick::{Candidate, DynamicWeight, Params, Pick, Picks, PrefillCharge},
    },
};
use scheduling::{
    Endpoint, Moment, PickerKind, Profile, Scorer, Snapshot, Unplaced,
    inference_lb::{self, Growth},
    narrow,
};
use smallvec::SmallVec;

use super::{
    Director, Prepared, SCRATCH, Scratch, Staging,
    pick::{Picked, Told},
};
use crate::{
    config::InForce,
    extproc::Answer,
    llm::{LlmPick, LlmRequest, TraceId},
    reject::Reject,
};

/// How long a charge that is made elsewhere stays unconfirmed, in milliseconds: where a reply is lost, loads are right again
/// after so long.
const RESERVE_MS: u32 = 5_000;

/// Makes picks for this endpoint picker, and is told what becomes of requests. A call only notes what is to be reported, and
/// never waits.
pub trait PickElsewhere: fmt::Debug + Send + Sync {
    /// Picks. Nothing, within a time of its own, where nobody can be asked: then the pick is made here.
    fn pick(&self, pick: Pick, trace_id: Option<&TraceId>) -> BoxFuture<'static, Option<Picks>>;

    /// The pick of this request is not used, or not awaited any more.
    fn discard(&self, cluster: &Cluster, request: &RequestId);

    /// The request is charged to this endpoint from now on, whoever picked it, with so much prefill to do.
    fn charge(&self, cluster: &Cluster, request: &RequestId, endpoint: SocketAddr, prefill: u64);

    /// Its prefill is done.
    fn prefilled(&self, cluster: &Cluster, request: &RequestId);

    /// It ended.
    fn end(&self, cluster: &Cluster, request: &RequestId);

    /// The endpoint has answered a prompt; its cache holds so many chunks.
    fn save(&self, cluster: &Cluster, endpoint: SocketAddr, hashes: &[u64], capacity: Option<u32>);

    /// The endpoint has no prompt any more: it is gone, or its engine started again.
    fn forget(&self, endpoint: SocketAddr);
}

/// A charge that is reported elsewhere, from its pick to its end, which is its drop.
#[derive(Debug)]
pub(crate) struct ChargeElsewhere {
    by: Arc<dyn PickElsewhere>,
    cluster: Cluster,
    request: RequestId,
    endpoint: SocketAddr,
    prefill: u64,
}

/// A pick, or the wait for it.
#[derive(Debug)]
pub(crate) enum Picking {
    Made(Result<Box<Answer>, Reject>),
    Asked(Box<Asking>),
    /// The external stage comes first.
    Staged(Box<Staging>),
}

/// A request whose pick is made elsewhere. Dropping it before its end discards the pick.
pub(crate) struct Asking {
    by: Arc<dyn PickElsewhere>,
    picks: BoxFuture<'static, Option<Picks>>,
    /// Who was asked for; absent once it is over.
    asked: Option<(Prepared, Vec<SocketAddr>)>,
    unplaced: Option<UnplacedOne>,
}

/// Requests that somebody else is asked about: they are in flight, and at no endpoint yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(Arc<(AtomicU64, AtomicU64)>);

/// One of them, until its drop.
#[derive(Debug)]
pub(super) struct UnplacedOne {
    all: Awaited,
    tokens: u64,
}

/// What became of it.
pub(crate) struct PickedElsewhere {
    prepared: Prepared,
    candidates: Vec<SocketAddr>,
    picks: Option<Picks>,
    /// Until it counts at an endpoint.
    _unplaced: Option<UnplacedOne>,
}

// === impl Awaited ===

impl Awaited {
    /// How much they are.
    pub(super) fn unplaced(&self) -> Unplaced {
        let (requests, tokens) = &*self.0;
        Unplaced {
            requests: requests.load(Ordering::Relaxed) as f64,
            tokens: tokens.load(Ordering::Relaxed) as f64,
        }
    }

    pub(super) fn begin(&self, tokens: u32) -> UnplacedOne {
        let tokens = u64::from(tokens);
        self.0.0.fetch_add(1, Ordering::Relaxed);
        self.0.1.fetch_add(tokens, Ordering::Relaxed);
        let all = self.clone();
        UnplacedOne { all, tokens }
    }
}

impl Drop for UnplacedOne {
    fn drop(&mut self) {
        let (requests, tokens) = &*self.all.0;
        requests.fetch_sub(1, Ordering::Relaxed);
        tokens.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

// === impl ChargeElsewhere ===

impl ChargeElsewhere {
    /// Another endpoint serves the request.
    pub(crate) fn move_to(&mut self, endpoint: SocketAddr) {
        if self.endpoint != endpoint {
            self.endpoint = endpoint;
            self.report();
        }
    }

    /// The request's prefill is done.
    pub(crate) fn prefilled(&mut self) {
        if std::mem::take(&mut self.prefill) > 0 {
            self.by.prefilled(&self.cluster, &self.request);
        }
    }

    fn report(&self) {
        self.by
            .charge(&self.cluster, &self.request, self.endpoint, self.prefill);
    }
}

impl Drop for ChargeElsewhere {
    fn drop(&mut self) {
        self.by.end(&self.cluster, &self.request);
    }
}

// === impl Asking ===

impl Future for Asking {
    type Output = Option<PickedElsewhere>;

    /// Nothing, if it was over before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.asked.is_none() {
            return Poll::Ready(None);
        }
        let picks = ready!(self.picks.as_mut().poll(cx));
        let asked = self.asked.take();
        let unplaced = self.unplaced.take();
        Poll::Ready(asked.map(|(prepared, candidates)| PickedElsewhere {
            prepared,
            candidates,
            picks,
            _unplaced: unplaced,
        }))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some((Prepared { llm: Some(llm), .. }, _)) = &self.asked {
            self.by.discard(&llm.found.cluster, &llm.id);
        }
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking")
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

// === impl Director ===

impl Director {
    /// Picks, here or elsewhere, with the external stage over.
    pub(super) fn pick_staged(&self, config: &InForce, prepared: Prepared, now: Moment) -> Picking {
        let Some(by) = &self.elsewhere else {
            return Picking::Made(self.pick_by(config, prepared, now));
        };
        let Some((pick, candidates)) = self.ask(config, &prepared, now) else {
            return Picking::Made(self.pick_by(config, prepared, now));
        };
        let trace_id = prepared.llm.as_ref().and_then(|llm| llm.trace_id.as_ref());
        let picks = by.pick(pick, trace_id);
        let unplaced = Some(self.awaited.begin(prepared.request.prompt_tokens));
        Picking::Asked(Box::new(Asking {
            by: Arc::clone(by),
            picks,
            asked: Some((prepared, candidates)),
            unplaced,
        }))
    }

    /// Reports the charge of a pick, where that is to be known elsewhere.
    pub(crate) fn charge_elsewhere(
        &self,
        llm: &LlmRequest,
        endpoint: SocketAddr,
    ) -> Option<ChargeElsewhere> {
        let charge = ChargeElsewhere {
            by: Arc::clone(self.elsewhere.as_ref()?),
            cluster: llm.found.cluster.clone(),
            request: llm.id.clone(),
            endpoint,
            prefill: llm.pick.charge,
        };
        charge.report();
        Some(charge)
    }

    /// The answer to a request that was picked for elsewhere. An endpoint that is no candidate, or left meanwhile, does not
    /// count: the choice is then made here, of those that are there now.
    pub(crate) fn take(&self, picked: PickedElsewhere) -> Result<Box<Answer>, Reject> {
        let PickedElsewhere {
            mut prepared,
            candidates,
            picks,
            _unplaced,
        } = picked;
        let config = self.config.load();
        let now = self.clock.now();
        let snapshot = self.pool.snapshot();
        let Some((picks, llm)) = picks.zip(prepared.llm.as_deref_mut()) else {
            let id = prepared.llm.as_deref();
            let id = id.map(|llm| (llm.found.cluster.clone(), llm.id.clone()));
            let answer = self.pick_by(&config, prepared, now);
            // The pick may have been made all the same, and its answer lost.
            if let (Err(_), Some(by), Some((cluster, id))) = (&answer, &self.elsewhere, id) {
                by.discard(&cluster, &id);
            }
            return answer;
        };
        let endpoint = |ip: Address| endpoint(&snapshot, &candidates, ip);
        let first = picks.picks.first().copied();
        let Some((first, _)) = first.and_then(|first| Some((first, endpoint(first.ip)?))) else {
            if let Some(by) = &self.elsewhere {
                by.discard(&llm.found.cluster, &llm.id);
            }
            return self.pick_by(&config, prepared, now);
        };
        llm.pick = LlmPick {
            candidates: picks.candidates,
            cached: first.matched,
            score: first.score,
            charge: u64::try_from(picks.charge).unwrap_or(0),
        };
        let endpoints = picks.picks.iter().filter_map(|one| endpoint(one.ip));
        let picked = Picked {
            endpoints: endpoints.collect::<SmallVec<_>>(),
            blocks: 0,
            score: first.score,
            llm: Some(llm.pick),
        };
        self.answer(&config, prepared, picked, Told::default(), now)
    }

    /// What to ask elsewhere; none: the pick is made here, for it does not depend on load and caches, or there is nobody.
    fn ask(
        &self,
        config: &InForce,
        prepared: &Prepared,
        now: Moment,
    ) -> Option<(Pick, Vec<SocketAddr>)> {
        let llm = prepared.llm.as_ref()?;
        let profile = config.profile_of(Some(&llm.found));
        let params = params(profile)?;
        let request = &prepared.request;
        SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            let narrowed = narrow(table, request, matched, profile, None).ok()?;
            let addresses = &table.roster().addresses;
            let candidates = narrowed.candidates();
            let candidates =
                candidates.filter_map(|(member, bias)| Some((*addresses.get(member)?, bias)));
            let (addresses, candidates) = candidates
                .map(|(address, bias)| {
                    (
                        address,
                        Candidate {
                            ip: address.into(),
                            bias,
                        },
                    )
                })
                .unzip();
            let length = i64::try_from(llm.prompt_length()).unwrap_or(i64::MAX);
            let longest = i64::from(i32::MAX);
            let pick = Pick {
                cluster: llm.found.cluster.clone(),
                request_id: llm.id.clone(),
                prompt_hash: llm.hashes().to_vec().into(),
                prompt_length: PromptLength::try_from(length.min(longest)).unwrap_or_default(),
                count: request.list.max(profile.picker.max_endpoints).into(),
                reserve_ms: RESERVE_MS,
                candidates,
                params,
            };
            Some((pick, addresses))
        })
    }
}

/// A candidate that is still a member.
fn endpoint(snapshot: &Snapshot, candidates: &[SocketAddr], ip: Address) -> Option<Arc<Endpoint>> {
    let mut candidates = candidates.iter();
    let address = candidates.find(|candidate| Address::from(**candidate) == ip)?;
    snapshot.at(*address).cloned()
}

/// The profile's scorer and picker in the terms of the service; none: it asks for neither load nor caches.
fn params(profile: &Profile) -> Option<Params> {
    let mut scorers = profile.scorers.iter();
    let (weights, charge, weight) = scorers.find_map(|weighted| match &weighted.scorer {
        Scorer::InferenceLb { params, charge } => Some((params, *charge, weighted.weight)),
        _ => None,
    })?;
    let candidate_percent = match profile.picker.kind {
        PickerKind::TopPercent { percent } => percent,
        PickerKind::MaxScore => 0,
        PickerKind::WeightedRandom | PickerKind::Random | PickerKind::RoundRobin => return None,
    };
    Some(Params {
        cache_radio_weight: weights.cache_weight,
        request_load_weight: weights.request_weight,
        prefill_load_weight: weights.prefill_weight,
        candidate_percent,
        load_aware_enable: true,
        cache_aware_enable: true,
        dynamic_weight: match weights.growth {
            Growth::Linear => DynamicWeight::Linear,
            Growth::Ceil => DynamicWeight::Ceil,
        },
        prompt_floor: u32::try_from(weights.prompt_floor).unwrap_or(u32::MAX),
        prefill_charge: match charge {
            inference_lb::PrefillCharge::Uncached => PrefillCharge::Uncached,
            inference_lb::PrefillCharge::Full => PrefillCharge::Full,
        },
        weight,
    })
}
