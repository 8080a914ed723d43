//! Picks that are made elsewhere, by who knows what all endpoint pickers of the pool sent. Between the narrowing here and
//! the choice there a request waits, as it waits in the queue.
//!
//! ```text
//!  Prepared ─ narrow ─► candidates, biases ─► PickElsewhere ─► ReplyElsewhere ─ take ─► Answer
//!                                                  └─► nothing, or nobody of ours: the choice is made here
//! ```

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use metadata::{
    Address, Cluster, RequestId,
    wire::{
        load::PromptLength,
        pick::{
            Candidate, DynamicWeight, MAX_COUNT, Params, Pick, Picked as PickedThere, Picks,
            PrefillCharge,
        },
    },
};
use scheduling::{
    Endpoint, Explanation, Moment, PickerKind, Profile, Scorer, Snapshot, Unplaced,
    inference_lb::{self, Growth, LengthUnit},
    narrow,
};
use smallvec::SmallVec;
use tracing::trace;

use super::{
    Director, Prepared, SCRATCH, Scratch, Staging,
    pick::{Picked, Told},
    picks::{Considered, Shared},
};
use crate::{
    config::InForce,
    extproc::Answer,
    llm::{AskedElsewhere, LlmPick, LlmRequest, TraceId},
    reject::Reject,
};

/// How long a charge that is made elsewhere stays unconfirmed, in milliseconds: where a reply is lost, loads are right again
/// after so long.
const RESERVE_MS: u32 = 5_000;

/// A proxy waits for so long without being asked to: half of Envoy's 200 ms.
const PATIENCE: Duration = Duration::from_millis(100);

/// Biases this close are equal.
const TIE: f64 = 1e-9;

/// Makes picks for this endpoint picker, and is told what becomes of requests. A call only notes what is to be reported, and
/// never waits.
pub trait PickElsewhere: fmt::Debug + Send + Sync {
    /// What names the endpoint there: its address, or its IP address alone.
    fn name(&self, endpoint: SocketAddr) -> Address;

    /// The longest that a pick may take.
    fn within(&self) -> Duration;

    /// Whether a pick may need what this process knows of caches.
    fn uses_own_caches(&self) -> bool;

    /// Picks, for a request with this id in logs and this `traceparent`. `own_cached`: of each candidate how many chunks of the
    /// prompt it has, as far as this process sent them there; empty where [own caches](Self::uses_own_caches) are not used.
    fn pick(
        &self,
        pick: Pick,
        own_cached: Vec<u32>,
        trace_id: Option<&TraceId>,
        trace_parent: Option<&str>,
    ) -> BoxFuture<'static, ReplyElsewhere>;

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

/// What became of asking for a pick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplyElsewhere {
    /// Absent: nobody could be asked, and the pick is made here.
    pub picks: Option<Picks>,
    /// How it was asked for.
    pub asked: AskedElsewhere,
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
    reply: BoxFuture<'static, ReplyElsewhere>,
    /// Who was asked for; absent once it is over.
    asked: Option<(Prepared, Offered)>,
    unplaced: Option<UnplacedOne>,
}

/// Who may serve the request of a pick that is made elsewhere.
#[derive(Debug)]
struct Offered {
    candidates: Vec<Offer>,
    /// How many of them are named to the proxy.
    list: usize,
    told: Told,
    asked_at: Moment,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offer {
    name: Address,
    address: SocketAddr,
    /// What scorers of this process give it.
    bias: f64,
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
    offered: Offered,
    reply: ReplyElsewhere,
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

impl Asking {
    /// Whether it may take longer than a proxy waits that is not asked to.
    pub(crate) fn is_long(&self) -> bool {
        self.by.within() > PATIENCE
    }
}

impl Future for Asking {
    type Output = Option<PickedElsewhere>;

    /// Nothing, if it was over before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.asked.is_none() {
            return Poll::Ready(None);
        }
        let reply = ready!(self.reply.as_mut().poll(cx));
        let asked = self.asked.take();
        let unplaced = self.unplaced.take();
        Poll::Ready(asked.map(|(prepared, offered)| PickedElsewhere {
            prepared,
            offered,
            reply,
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
        let Some((pick, own_cached, offered)) = self.ask(&**by, config, &prepared, now) else {
            return Picking::Made(self.pick_by(config, prepared, now));
        };
        let llm = prepared.llm.as_deref();
        let trace_id = llm.and_then(|llm| llm.trace_id.as_ref());
        let trace_parent = llm.and_then(|llm| llm.trace_parent.as_deref());
        let reply = by.pick(pick, own_cached, trace_id, trace_parent);
        let unplaced = Some(self.awaited.begin(prepared.request.prompt_tokens));
        Picking::Asked(Box::new(Asking {
            by: Arc::clone(by),
            reply,
            asked: Some((prepared, offered)),
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
            mut offered,
            reply,
            _unplaced,
        } = picked;
        let config = self.config.load();
        let now = self.clock.now();
        let snapshot = self.pool.snapshot();
        if let Some(llm) = &mut prepared.llm {
            llm.asked = reply.asked;
            llm.phases.asked = Some([offered.asked_at, now]);
        }
        let Some((picks, llm)) = reply.picks.zip(prepared.llm.as_deref_mut()) else {
            let id = prepared.llm.as_deref();
            let id = id.map(|llm| (llm.found.cluster.clone(), llm.id.clone()));
            let answer = self.pick_by(&config, prepared, now);
            // The pick may have been made all the same, and its answer lost.
            if let (Err(_), Some(by), Some((cluster, id))) = (&answer, &self.elsewhere, id) {
                by.discard(&cluster, &id);
            }
            return answer;
        };
        let first = picks.picks.first().copied();
        let first = first.filter(|first| offered.endpoint(&snapshot, first.ip).is_some());
        let Some(first) = first else {
            if let Some(by) = &self.elsewhere {
                by.discard(&llm.found.cluster, &llm.id);
            }
            return self.pick_by(&config, prepared, now);
        };
        llm.pick = LlmPick {
            candidates: picks.candidates,
            cached: first.matched,
            score: first.raw,
            charge: u64::try_from(picks.charge).unwrap_or(0),
        };
        let named = picks.picks.iter();
        let named = named.filter_map(|one| Some((offered.endpoint(&snapshot, one.ip)?, one)));
        let named: SmallVec<[_; 1]> = named.collect();
        let mut told = std::mem::take(&mut offered.told);
        for (endpoint, one) in &named {
            if self.options.emit_scores {
                let destination = endpoint.destination().to_owned();
                told.scores.push((destination, one.score));
            }
            told.consider(endpoint.address(), one);
            trace!(
                trace_id = llm.trace_id(),
                address = %endpoint.address(),
                requests = one.queued_req_num,
                prefill = one.prompt_length,
                cached_chunks = one.matched,
                score = one.score,
                raw = one.raw,
                "candidate"
            );
        }
        let endpoints = named.into_iter().take(offered.list);
        let endpoints: SmallVec<[_; 1]> = endpoints.map(|(endpoint, _)| endpoint).collect();
        let first_blocks = endpoints
            .first()
            .map(|first| self.prefix.blocks_at(&prepared.request.prefix, first));
        let picked = Picked {
            endpoints,
            blocks: first_blocks.unwrap_or(0),
            score: first.score,
            llm: Some(llm.pick),
        };
        self.answer(&config, prepared, picked, told, now)
    }

    /// What to ask elsewhere; none: the pick is made here, for it does not depend on load and caches, or there is nobody.
    fn ask(
        &self,
        by: &dyn PickElsewhere,
        config: &InForce,
        prepared: &Prepared,
        now: Moment,
    ) -> Option<(Pick, Vec<u32>, Offered)> {
        let llm = prepared.llm.as_ref()?;
        let profile = config.profile_of(Some(&llm.found));
        let params = params(profile, llm.unit)?;
        let request = &prepared.request;
        let list = request.list.max(profile.picker.max_endpoints).max(1);
        let tells = self.options.emit_scores || self.picks.is_some();
        let count = if tells { MAX_COUNT } else { list.into() };
        let hashes = if config.uses_caches() {
            llm.hashes()
        } else {
            &[]
        };
        SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            let mut explanation = self.picks.is_some().then(Explanation::default);
            let narrowed = narrow(table, request, matched, profile, explanation.as_mut()).ok()?;
            let addresses = &table.roster().addresses;
            let offers = narrowed.candidates().filter_map(|(member, bias)| {
                let address = *addresses.get(member)?;
                let name = by.name(address);
                Some(Offer {
                    name,
                    address,
                    bias,
                })
            });
            let mut told = Told::default();
            if let Some(explanation) = &explanation {
                told.members =
                    Considered::all(&snapshot, table, matched, request, profile, explanation);
                told.members
                    .iter_mut()
                    .for_each(Considered::is_scored_elsewhere);
            }
            let offered = Offered {
                candidates: offers.collect(),
                list: list.into(),
                told,
                asked_at: now,
            };
            let length = i64::try_from(llm.prompt_length()).unwrap_or(i64::MAX);
            let longest = i64::from(i32::MAX);
            let pick = Pick {
                cluster: llm.found.cluster.clone(),
                request_id: llm.id.clone(),
                prompt_hash: hashes.to_vec().into(),
                prompt_length: PromptLength::try_from(length.min(longest)).unwrap_or_default(),
                count,
                reserve_ms: RESERVE_MS,
                candidates: offered.names(),
                params,
            };
            let own_cached = if by.uses_own_caches() && params.cache_aware_enable {
                let all = offered.candidates.iter();
                let all: Vec<_> = all.map(|offer| offer.address).collect();
                let matched = self.chunks.matches(&pick.cluster, hashes, &all);
                offered.by_name(&matched, &pick.candidates)
            } else {
                Vec::new()
            };
            Some((pick, own_cached, offered))
        })
    }
}

// === impl Offered ===

impl Offered {
    /// Each name once, with the best bias of its endpoints.
    fn names(&self) -> Vec<Candidate> {
        let candidate = |offer: &Offer| Candidate {
            ip: offer.name,
            bias: offer.bias,
        };
        let all = self.candidates.iter();
        if all.clone().all(|offer| offer.name.port().is_some()) {
            return all.map(candidate).collect();
        }
        let mut offers: Vec<_> = all.collect();
        offers.sort_by(|one, other| {
            let best_first = other.bias.total_cmp(&one.bias);
            one.name.cmp(&other.name).then(best_first)
        });
        offers.dedup_by_key(|offer| offer.name);
        offers.into_iter().map(candidate).collect()
    }

    /// What is known of the endpoints, by name: the most that an endpoint of the name has.
    fn by_name(&self, matched: &[u32], names: &[Candidate]) -> Vec<u32> {
        let mut most = HashMap::with_capacity(names.len());
        for (offer, matched) in self.candidates.iter().zip(matched) {
            let most: &mut u32 = most.entry(offer.name).or_default();
            *most = (*most).max(*matched);
        }
        let of_name = |name: &Candidate| most.get(&name.ip).copied().unwrap_or(0);
        names.iter().map(of_name).collect()
    }

    /// A candidate of this name that is still a member: of several the best by this process's scorers, then the one with
    /// the fewest requests in flight.
    fn endpoint(&self, snapshot: &Snapshot, name: Address) -> Option<Arc<Endpoint>> {
        let of_name = self.candidates.iter().filter(|offer| offer.name == name);
        let best = of_name.clone().map(|offer| offer.bias);
        let best = best.fold(f64::NEG_INFINITY, f64::max) - TIE;
        let best = of_name.filter(|offer| offer.bias >= best);
        let members = best.filter_map(|offer| snapshot.at(offer.address));
        members.min_by_key(|it| it.load().in_flight()).cloned()
    }
}

// === impl Told ===

impl Told {
    /// What is said elsewhere of one of the members.
    fn consider(&mut self, address: SocketAddr, picked: &PickedThere) {
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.is_at(address)) {
            let shared = Shared {
                requests: picked.queued_req_num,
                prefill: picked.prompt_length,
                cached_chunks: picked.matched,
            };
            member.scored_elsewhere(picked.score, shared);
        }
    }
}

/// The profile's scorer and picker in the terms of the service; none: it asks for neither load nor caches.
fn params(profile: &Profile, unit: LengthUnit) -> Option<Params> {
    let mut scorers = profile.scorers.iter();
    let (weights, charge, weight) = scorers.find_map(|weighted| match &weighted.scorer {
        Scorer::InferenceLb { params, charge } => Some((params, *charge, weighted.weight)),
        _ => None,
    })?;
    let is_load_aware = weights.request_weight > 0.0 || weights.prefill_weight > 0.0;
    let is_cache_aware = weights.cache_weight > 0.0;
    if !is_load_aware && !is_cache_aware {
        return None;
    }
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
        load_aware_enable: is_load_aware,
        cache_aware_enable: is_cache_aware,
        dynamic_weight: match weights.growth {
            Growth::Linear => DynamicWeight::Linear,
            Growth::Ceil => DynamicWeight::Ceil,
        },
        prompt_floor: u32::try_from(weights.prompt_floor).unwrap_or(u32::MAX),
        prefill_charge: match charge {
            inference_lb::PrefillCharge::Uncached => PrefillCharge::Uncached,
            inference_lb::PrefillCharge::Full => PrefillCharge::Full,
        },
        least_charge: unit.least_charge(),
        weight,
    })
}
