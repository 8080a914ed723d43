//! From a prompt to its worker, and what becomes of its booking. Knows no HTTP.

use std::{cell::RefCell, collections::HashSet, net::SocketAddr, sync::Arc};

use kv_router::{
    Candidate, Decision, NotBooked, Policy, Prompt, Scratch, Seed, Seq, Slot, Source, chain,
};
use moment::{Clock, Moment};
use processor_api::{
    Keepalive, MAX_CANDIDATES, ReservationId, RouteReply, RouteRequest, RouteSource,
};
use rand::Rng;
use tracing::debug;

use crate::{
    debug::{Record, Routes},
    fault::Fault,
    metrics::Metrics,
    pool::{Pool, Table},
    warnings::{Seen, Warnings},
};

/// Chooses workers for prompts and keeps their bookings. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

/// What a service is made of.
pub struct Parts {
    /// The workers.
    pub pool: Arc<Pool>,
    /// What decides among them.
    pub policy: Policy,
    /// Time.
    pub clock: Clock,
    /// Where decisions are counted.
    pub metrics: Metrics,
    /// Whether the workers' KV events are followed.
    pub follows_events: bool,
    /// Where decisions are explained; absent: nowhere.
    pub routes: Option<Routes>,
}

struct Inner {
    parts: Parts,
    warnings: Warnings,
}

/// What one thread chooses with, again and again.
#[derive(Debug, Default)]
struct Bench {
    scratch: Scratch,
    chain: Vec<Seq>,
    slots: Vec<Slot>,
}

thread_local! {
    /// Never held across an await, so that there is one for each thread and not one for each connection.
    static BENCH: RefCell<Bench> = RefCell::default();
}

// === impl Service ===

impl Service {
    /// A service of these parts.
    pub fn new(parts: Parts) -> Self {
        let warnings = Warnings::new(parts.follows_events);
        Self(Arc::new(Inner { parts, warnings }))
    }

    /// Time.
    pub(crate) fn clock(&self) -> &Clock {
        &self.0.parts.clock
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.parts.pool
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.parts.metrics
    }

    pub(crate) fn warnings(&self) -> &Warnings {
        &self.0.warnings
    }

    /// Chooses a worker for the prompt and books it there.
    pub(crate) fn route(
        &self,
        request: &RouteRequest<'_>,
        now: Moment,
        rng: &mut impl Rng,
    ) -> Result<RouteReply, Fault> {
        BENCH.with_borrow_mut(|bench| self.route_on(bench, request, now, rng))
    }

    fn route_on(
        &self,
        bench: &mut Bench,
        request: &RouteRequest<'_>,
        now: Moment,
        rng: &mut impl Rng,
    ) -> Result<RouteReply, Fault> {
        let Parts {
            pool,
            policy,
            clock,
            metrics,
            routes,
            ..
        } = &self.0.parts;
        let begun = clock.now();
        let block_size = pool.workers.index.block_size();
        let seed = Seed::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
        bench.chain.clear();
        chain(&request.token_ids, block_size, seed, &mut bench.chain);
        let id = request
            .reservation_id
            .unwrap_or_else(|| ReservationId::random(rng));
        let most = request.max_endpoints.unwrap_or(1) as usize;
        let most = most.clamp(1, MAX_CANDIDATES);
        let mut prompt = Prompt {
            id: id.as_str(),
            chain: bench.chain.as_slice().into(),
            // as many as a body can have
            ids: u32::try_from(request.token_ids.len()).unwrap_or(u32::MAX),
            decays: request.reservation_id.is_none(),
            most,
        };
        // A worker that goes while it is chosen is not booked: the next table is without it.
        let mut tries = 2;
        let (table, decided) = loop {
            let table = pool.table();
            prompt.most = most.saturating_mul(table.ranks());
            let slots = candidates(&table, request, &mut bench.slots);
            let decided =
                policy.decide(&pool.workers, &prompt, slots, now, rng, &mut bench.scratch);
            tries -= 1;
            let is_gone = |it: &Decision| it.booked == Err(NotBooked::Gone);
            if tries == 0 || !decided.as_ref().is_ok_and(is_gone) {
                break (table, decided);
            }
        };
        let took = clock.now().since(begun);
        if let Some(routes) = routes {
            let record = Record::new(request, &prompt, &decided, &bench.scratch, &table, now);
            routes.add(record.took(took));
        }
        let decision = decided?;
        self.note(&prompt, &decision, &bench.scratch.candidates);
        let reply = reply(&table, &prompt, &decision, block_size, id, most)?;
        debug!(
            reservation = %id,
            worker = reply.worker_id,
            source = decision.source.name(),
            overlap = reply.overlap_blocks,
            blocks = reply.prompt_blocks,
            "routed"
        );
        metrics.decided(decision.source, &reply, took);
        Ok(reply)
    }

    /// The first byte of the response came, from this address. An address of no worker counts as the chosen one.
    pub(crate) fn prefill_complete(
        &self,
        id: &str,
        served: &str,
        now: Moment,
    ) -> Result<(), Fault> {
        let Parts { pool, .. } = &self.0.parts;
        check(id)?;
        let loads = &pool.workers.loads;
        let booked = loads.slot_of(id).ok_or(Fault::UnknownReservation)?;
        let table = pool.table();
        let address: Option<SocketAddr> = served.parse().ok();
        let served = address.and_then(|address| table.at(address));
        // The server does not report which rank behind another address served the request.
        let elsewhere = served
            .filter(|worker| worker.rank(booked).is_none())
            .and_then(|worker| worker.ranks.first())
            .map(|rank| rank.slot);
        known(loads.prefill_complete(id, elsewhere, now))
    }

    /// The request is over. A booking of that name that comes within 10 s is not made.
    pub(crate) fn free(&self, id: &str, now: Moment) -> Result<(), Fault> {
        // What is remembered of an end takes as much memory as its name.
        check(id)?;
        known(self.0.parts.pool.workers.loads.free(id, now))
    }

    /// Ends all bookings.
    pub(crate) fn forget_bookings(&self) {
        let Parts { pool, clock, .. } = &self.0.parts;
        pool.workers.loads.clear(clock.now());
    }

    /// Ends bookings that no message names; to be called each second or so.
    pub(crate) fn expire(&self) {
        let Parts {
            pool,
            clock,
            metrics,
            ..
        } = &self.0.parts;
        metrics.expired(pool.workers.loads.expire(clock.now()));
    }

    /// These requests are still under way; an error: none of them is known.
    pub(crate) fn keepalive(&self, message: &Keepalive, now: Moment) -> Result<(), Fault> {
        let ids = &message.reservation_ids;
        let loads = &self.0.parts.pool.workers.loads;
        let kept = ids.iter().filter(|id| loads.keepalive(id.as_str(), now));
        known(kept.count() > 0 || ids.is_empty())
    }

    /// What may be worth a warning.
    fn note(&self, prompt: &Prompt<'_>, decision: &Decision, candidates: &[Candidate]) {
        if let Err(why) = decision.booked {
            self.metrics().not_booked(why);
        }
        let has_exact = |it: &Candidate| it.exact.blocks() > 0;
        self.0.warnings.decided(Seen {
            first: prompt.chain.first().copied(),
            exact: candidates.iter().any(has_exact),
            overlap: decision.overlap.blocks() > 0,
        });
    }
}

/// The slots of the workers that are asked for, of all where none are named.
fn candidates<'a>(
    table: &'a Table,
    request: &RouteRequest<'_>,
    named: &'a mut Vec<Slot>,
) -> &'a [Slot] {
    let Some(candidates) = &request.candidates else {
        return table.slots();
    };
    named.clear();
    let addresses = candidates.iter().filter_map(|it| it.parse().ok());
    for worker in addresses.filter_map(|it: SocketAddr| table.at(it)) {
        named.extend(worker.ranks.iter().map(|rank| rank.slot));
    }
    // one that is named twice would be twice as likely
    named.sort_unstable();
    named.dedup();
    named
}

fn reply(
    table: &Table,
    prompt: &Prompt<'_>,
    decision: &Decision,
    block_size: usize,
    id: ReservationId,
    most: usize,
) -> Result<RouteReply, Fault> {
    let worker = table.of(decision.worker).ok_or(Fault::Internal)?;
    let rank = worker.rank(decision.worker).ok_or(Fault::Internal)?;
    // Ranks behind one address are one endpoint.
    let mut named = HashSet::from([worker.address]);
    let others = decision.fallbacks.iter().filter_map(|it| table.of(*it));
    let fallbacks = others.filter(|it| named.insert(it.address));
    let fallbacks = fallbacks.map(|it| it.destination.to_string());
    let is_booked = matches!(decision.booked, Ok(()) | Err(NotBooked::Duplicate));
    Ok(RouteReply {
        worker_address: worker.destination.to_string(),
        worker_id: Some(worker.name.to_string()),
        // Target ports that are ranks have a server each, which knows of no others.
        dp_rank: (worker.ranks.len() > 1).then_some(rank.number.into()),
        overlap_blocks: decision.overlap.blocks() as usize,
        prompt_blocks: prompt.chain.len(),
        block_size,
        fallbacks: fallbacks.take(most - 1).collect(),
        reservation_id: is_booked.then_some(id),
        source: match decision.source {
            Source::Exact => RouteSource::Exact,
            Source::Predicted => RouteSource::Predicted,
            Source::None => RouteSource::None,
        },
    })
}

/// Another text than a name of ours was never booked.
fn check(id: &str) -> Result<(), Fault> {
    let name: Result<ReservationId, _> = id.parse();
    name.map(drop).map_err(|_| Fault::UnknownReservation)
}

fn known(is_known: bool) -> Result<(), Fault> {
    if is_known {
        Ok(())
    } else {
        Err(Fault::UnknownReservation)
    }
}

#[cfg(test)]
mod tests;
