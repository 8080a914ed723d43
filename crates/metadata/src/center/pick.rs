//! A pick and its reservation.

use std::time::Duration;

use rand::Rng;
use scheduling::inference_lb::Row;

use super::{
    Now,
    endpoints::Charge,
    freed::Cause,
    space::{Shared, Space},
};
use crate::{
    cache_index::CacheIndex,
    choice::{Scored, charge},
    fault::{Bound, Fault},
    wire::pick::{self, Pick, Picked, Picks},
};

/// For how long an endpoint is taken to get the prompt of a pick; the save that follows lasts longer.
const SPECULATIVE: Duration = Duration::from_mins(1);

// === impl Space ===

impl Space {
    /// Picks for a call that was validated.
    pub(super) fn pick<R: Rng + ?Sized>(
        &self,
        pick: &Pick,
        cache: &CacheIndex,
        shared: &Shared,
        rng: &mut R,
        now: Now,
    ) -> Result<Picks, Fault> {
        let hashes = pick.prompt_hash.hashes();
        let ips = pick.candidates.iter().map(|it| it.ip);
        // The cache index is read and written under it too: equal prompts at the same time go to one endpoint.
        let picking = self.picking.lock();
        let matched = cache.matches(&self.name, hashes, ips);
        let (reserved, over) = self.reservations.find(&pick.request_id, now.at);
        let mut rows = self.rows(pick, &matched);
        if let Some(over) = over {
            self.subtract([over].into_iter(), shared, now);
            shared.freed.add(Cause::Unconfirmed, 1);
            rows = self.rows(pick, &matched);
        }
        if let Some(reserved) = reserved {
            let address = self.endpoints.read().address(reserved.endpoint);
            let own = pick.candidates.iter().position(|it| Some(it.ip) == address);
            if let Some(row) = own.and_then(|it| rows.get_mut(it)) {
                row.reqs -= 1;
                row.prompt -= reserved.prefill();
            }
            let scored = Scored::of(pick, &rows);
            let picked = self.reserved_before(reserved, own, &scored)?;
            return Ok(scored.answer(own, picked, reserved.prefill()));
        }
        let scored = Scored::of(pick, &rows);
        let index = scored.best(rng);
        let picked = scored.picked(index).ok_or(Fault::Internal)?;
        let prefill = charge(pick, picked.matched);
        self.reserve(pick, picked, prefill, shared, now)?;
        cache.insert(&self.name, picked.ip, hashes, SPECULATIVE, now.at);
        drop(picking);
        Ok(scored.answer(Some(index), picked, prefill.into()))
    }

    fn rows(&self, pick: &Pick, matched: &[u32]) -> Vec<Row> {
        let endpoints = self.endpoints.read();
        let row = |(candidate, matched): (&pick::Candidate, &u32)| {
            let at = endpoints.find(&candidate.ip);
            let (reqs, prompt) = at.map_or((0, 0), |at| endpoints.load(at));
            Row {
                reqs,
                prompt,
                matched: *matched,
            }
        };
        pick.candidates.iter().zip(matched).map(row).collect()
    }

    fn reserve(
        &self,
        pick: &Pick,
        picked: Picked,
        prefill: u32,
        shared: &Shared,
        now: Now,
    ) -> Result<(), Fault> {
        let ip = [&picked.ip].into_iter();
        let endpoints = self.endpoints.with(ip, shared.max_endpoints, now)?;
        let endpoint = endpoints.find(&picked.ip).ok_or(Fault::Internal)?;
        if !shared.requests.try_take(1) {
            return Err(Fault::Limit(Bound::Requests));
        }
        let charge = Charge { endpoint, prefill };
        endpoints.add(charge, now);
        let until = now.at + Duration::from_millis(pick.reserve_ms.into());
        let id = pick.request_id.clone();
        self.reservations.insert(id, until, charge);
        Ok(())
    }

    /// What a repeated pick gets: its endpoint, which is the candidate `own` unless it is not offered any more.
    fn reserved_before(
        &self,
        reserved: Charge,
        own: Option<usize>,
        scored: &Scored<'_>,
    ) -> Result<Picked, Fault> {
        if let Some(picked) = own.and_then(|own| scored.picked(own)) {
            return Ok(picked);
        }
        let endpoints = self.endpoints.read();
        let ip = endpoints.address(reserved.endpoint);
        let (requests, prefill) = endpoints.load(reserved.endpoint);
        Ok(Picked {
            ip: ip.ok_or(Fault::Internal)?,
            score: 0.0,
            raw: 0.0,
            matched: 0,
            queued_req_num: requests - 1,
            prompt_length: prefill - reserved.prefill(),
        })
    }
}
