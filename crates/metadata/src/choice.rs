//! The choice among the candidates of a pick, by what is known of them.

use rand::Rng;
use scheduling::{
    inference_lb::{self, Growth, Row},
    top_percent,
};

use crate::wire::pick::{Candidate, DynamicWeight, Params, Pick, Picked, Picks, PrefillCharge};

/// How the candidates of a pick do, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Scored<'a> {
    pick: &'a Pick,
    rows: &'a [Row],
    /// By load and caches alone.
    raw: Vec<f64>,
    /// Weighted, with the biases.
    totals: Vec<f64>,
}

/// Picks as a [`Center`](crate::Center) does, where a row is known of each candidate, in their order; but nothing is
/// reserved. None: there is no candidate, or not a row of each.
pub fn choose<R: Rng + ?Sized>(pick: &Pick, rows: &[Row], rng: &mut R) -> Option<Picks> {
    if rows.is_empty() || rows.len() != pick.candidates.len() {
        return None;
    }
    let scored = Scored::of(pick, rows);
    let index = scored.best(rng);
    let picked = scored.picked(index)?;
    let charge = charge(pick, picked.matched);
    Some(scored.answer(Some(index), picked, charge.into()))
}

/// What the picked endpoint is charged, where it has so many chunks of the prompt.
pub(crate) fn charge(pick: &Pick, matched: u32) -> u32 {
    let chunks = chunks(pick);
    let length = u64::try_from(i64::from(pick.prompt_length)).unwrap_or(0);
    let kind = match pick.params.prefill_charge {
        PrefillCharge::Uncached => inference_lb::PrefillCharge::Uncached,
        PrefillCharge::Full => inference_lb::PrefillCharge::Full,
    };
    // Not more than the length, which fits.
    u32::try_from(kind.of(length, pick.params.least_charge, matched, chunks)).unwrap_or(u32::MAX)
}

fn chunks(pick: &Pick) -> u32 {
    u32::try_from(pick.prompt_hash.hashes().len()).unwrap_or(u32::MAX)
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

// === impl Scored ===

impl<'a> Scored<'a> {
    pub(crate) fn of(pick: &'a Pick, rows: &'a [Row]) -> Self {
        let params = &pick.params;
        let scores = inference_lb::score(&weights(params), rows, chunks(pick));
        let total = |(score, candidate): (&f64, &Candidate)| params.weight * score + candidate.bias;
        let totals = scores.normal.iter().zip(&pick.candidates).map(total);
        Self {
            pick,
            rows,
            totals: totals.collect(),
            raw: scores.raw.into_vec(),
        }
    }

    /// One of the best by chance, as the pick's percentage says.
    pub(crate) fn best<R: Rng + ?Sized>(&self, rng: &mut R) -> usize {
        top_percent(&self.totals, self.pick.params.candidate_percent, rng)
    }

    /// What is named of this candidate.
    pub(crate) fn picked(&self, at: usize) -> Option<Picked> {
        let row = self.rows.get(at)?;
        Some(Picked {
            ip: self.pick.candidates.get(at)?.ip,
            score: *self.totals.get(at)?,
            raw: self.raw.get(at).copied().unwrap_or_default(),
            matched: row.matched,
            queued_req_num: row.reqs,
            prompt_length: row.prompt,
        })
    }

    /// The picked endpoint, which is the candidate `index` if it is one, then the others by score.
    pub(crate) fn answer(&self, index: Option<usize>, first: Picked, charge: i64) -> Picks {
        let count = usize::try_from(self.pick.count).unwrap_or(usize::MAX);
        let mut picks = vec![first];
        if count > 1 {
            let mut others: Vec<_> = (0..self.rows.len())
                .filter(|it| Some(*it) != index)
                .collect();
            let total = |at: &usize| self.totals.get(*at).copied().unwrap_or_default();
            others.sort_by(|a, b| total(b).total_cmp(&total(a)));
            let others = others.into_iter().take(count - 1);
            picks.extend(others.filter_map(|it| self.picked(it)));
        }
        Picks {
            picks,
            charge,
            candidates: u32::try_from(self.rows.len()).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn mk_pick(candidates: u8, count: u32) -> Pick {
        let candidate = |last: u8| Candidate {
            ip: format!("10.0.0.{last}").parse().unwrap(),
            bias: 0.0,
        };
        Pick {
            cluster: "c".parse().unwrap(),
            request_id: "r".parse().unwrap(),
            prompt_hash: vec![1, 2, 3].into(),
            prompt_length: 3000.try_into().unwrap(),
            count,
            reserve_ms: 1000,
            candidates: (1..=candidates).map(candidate).collect(),
            params: Params::default(),
        }
    }

    /// The worked example of the score.
    const ROWS: [Row; 3] = [
        Row {
            reqs: 8,
            prompt: 4096,
            matched: 0,
        },
        Row {
            reqs: 2,
            prompt: 1024,
            matched: 2,
        },
        Row {
            reqs: 5,
            prompt: 2048,
            matched: 1,
        },
    ];

    #[test]
    fn the_best_is_charged_what_it_lacks_and_others_follow_by_score() {
        let picks = choose(&mk_pick(3, 2), &ROWS, &mut StdRng::seed_from_u64(1)).unwrap();
        let ips: Vec<_> = picks.picks.iter().map(|it| it.ip.to_string()).collect();
        assert_eq!(ips, ["10.0.0.2", "10.0.0.3"]);
        let raw: Vec<_> = picks.picks.iter().map(|it| it.raw).collect();
        assert!((raw[0] - 0.58333).abs() < 1e-4, "{raw:?}");
        assert!((raw[1] - -1.43333).abs() < 1e-4, "{raw:?}");
        assert_eq!((picks.charge, picks.candidates), (1000, 3));
    }

    #[test]
    fn what_is_cached_is_charged_as_the_pick_says() {
        let mut pick = mk_pick(1, 1);
        assert_eq!(charge(&pick, 3), 512, "in bytes, unless it says otherwise");
        pick.params.least_charge = 128;
        assert_eq!((charge(&pick, 3), charge(&pick, 2)), (128, 1000));
    }

    #[test]
    fn without_a_row_of_each_candidate_there_is_no_choice() {
        let rng = &mut StdRng::seed_from_u64(1);
        assert_eq!(choose(&mk_pick(2, 1), &ROWS, rng), None);
        assert_eq!(choose(&mk_pick(0, 1), &[], rng), None);
    }
}
