//! A pick and its reservation.

use std::time::Duration;

use rand::Rng;
use scheduling::{
    inference_lb::{self, Growth, PrefillCharge, Row},
    top_percent,
};

use super::{
    Now,
    endpoints::Charge,
    freed::Cause,
    space::{Shared, Space},
};
use crate::{
    cache_index::CacheIndex,
    fault::{Bound, Fault},
    wire::pick::{self, DynamicWeight, Params, Pick, Picked, Picks},
};

/// For how long an endpoint is taken to get the prompt of a pick; the save that follows lasts longer.
const SPECULATIVE: Duration = Duration::from_mins(1);

/// The charge of a pick that was made.
struct Reserved {
    /// Among the candidates; none for one that is not offered any more.
    index: Option<usize>,
    picked: Picked,
    charge: i64,
}

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
            let totals = totals(pick, &rows);
            let reserved = self.reserved_before(pick, reserved, own, &rows, &totals)?;
            return Ok(answer(pick, reserved, &rows, &totals));
        }
        let totals = totals(pick, &rows);
        let index = top_percent(&totals, pick.params.candidate_percent, rng);
        let picked = picked(pick, index, &rows, &totals).ok_or(Fault::Internal)?;
        let chunks = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
        let length = u64::try_from(i64::from(pick.prompt_length)).unwrap_or(0);
        let kind = match pick.params.prefill_charge {
            pick::PrefillCharge::Uncached => PrefillCharge::Uncached,
            pick::PrefillCharge::Full => PrefillCharge::Full,
        };
        // Not more than the length, which fits.
        let prefill = u32::try_from(kind.of(length, picked.matched, chunks)).unwrap_or(u32::MAX);
        self.reserve(pick, picked, prefill, shared, now)?;
        cache.insert(&self.name, picked.ip, hashes, SPECULATIVE, now.at);
        drop(picking);
        let index = Some(index);
        let charge = prefill.into();
        let reserved = Reserved {
            index,
            picked,
            charge,
        };
        Ok(answer(pick, reserved, &rows, &totals))
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

    /// What a repeated pick gets.
    fn reserved_before(
        &self,
        pick: &Pick,
        reserved: Charge,
        own: Option<usize>,
        rows: &[Row],
        totals: &[f64],
    ) -> Result<Reserved, Fault> {
        let charge = reserved.prefill();
        if let Some(picked) = own.and_then(|own| picked(pick, own, rows, totals)) {
            let index = own;
            return Ok(Reserved {
                index,
                picked,
                charge,
            });
        }
        let endpoints = self.endpoints.read();
        let ip = endpoints.address(reserved.endpoint);
        let (requests, prefill) = endpoints.load(reserved.endpoint);
        let picked = Picked {
            ip: ip.ok_or(Fault::Internal)?,
            score: 0.0,
            matched: 0,
            queued_req_num: requests - 1,
            prompt_length: prefill - charge,
        };
        let index = None;
        Ok(Reserved {
            index,
            picked,
            charge,
        })
    }
}

/// The weighted score of each candidate, with its bias.
fn totals(pick: &Pick, rows: &[Row]) -> Vec<f64> {
    let params = &pick.params;
    let chunks = u32::try_from(pick.prompt_hash.hashes().len()).unwrap_or(u32::MAX);
    let scores = inference_lb::score(&weights(params), rows, chunks);
    let total =
        |(score, candidate): (&f64, &pick::Candidate)| params.weight * score + candidate.bias;
    scores
        .normal
        .iter()
        .zip(&pick.candidates)
        .map(total)
        .collect()
}

fn weights(params: &Params) -> inference_lb::Params {
    let if_on = |on: bool, weight: f64| if on { weight } else { 0.0 };
    inference_lb::Params {
        cache_weight: if_on(params.cache_aware_enable, params.cache_radio_weight),
        request_weight: if_on(params.load_aware_enable, params.request_load_weight),
        prefill_weight: if_on(params.load_aware_enable, params.prefill_load_weight),
        growth: match params.dynamic_weight {
            DynamicWeight::Linear => Growth::Linear,
            DynamicWeight::Ceil => Growth::Ceil,
        },
        prompt_floor: params.prompt_floor.into(),
    }
}

fn picked(pick: &Pick, at: usize, rows: &[Row], totals: &[f64]) -> Option<Picked> {
    let (row, score) = (rows.get(at)?, *totals.get(at)?);
    Some(Picked {
        ip: pick.candidates.get(at)?.ip,
        score,
        matched: row.matched,
        queued_req_num: row.reqs,
        prompt_length: row.prompt,
    })
}

/// The picked endpoint, then the others by score.
fn answer(pick: &Pick, reserved: Reserved, rows: &[Row], totals: &[f64]) -> Picks {
    let count = usize::try_from(pick.count).unwrap_or(usize::MAX);
    let mut picks = vec![reserved.picked];
    if count > 1 {
        let mut others: Vec<_> = (0..rows.len())
            .filter(|it| Some(*it) != reserved.index)
            .collect();
        others.sort_by(|a, b| totals[*b].total_cmp(&totals[*a]));
        let others = others.into_iter().take(count - 1);
        picks.extend(others.filter_map(|it| picked(pick, it, rows, totals)));
    }
    Picks {
        picks,
        charge: reserved.charge,
        candidates: u32::try_from(rows.len()).unwrap_or(u32::MAX),
    }
}
