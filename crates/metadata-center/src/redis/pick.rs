//! A pick and its reservation.

use metadata::{
    Fault,
    wire::pick::{DynamicWeight, Params, Pick, Picked, Picks, PrefillCharge},
};
use rand::RngExt;

use super::{
    Shared,
    load::{refusal, words},
    log::bytes_of,
};

/// For how many seconds an endpoint is taken to get the prompt of a pick; the save that follows lasts longer.
const SPECULATIVE_S: u32 = 60;

// === impl Shared ===

impl Shared {
    pub(super) async fn pick(&self, pick: &Pick) -> Result<Picks, Fault> {
        pick.validate()?;
        let known = self.open(&pick.cluster).await?;
        let hashes = pick.prompt_hash.hashes();
        let ips = pick.candidates.iter().map(|it| it.ip);
        let matched = self.cache.matches(&pick.cluster, hashes, ips);
        let Params {
            cache_radio_weight,
            request_load_weight,
            prefill_load_weight,
            candidate_percent,
            load_aware_enable,
            cache_aware_enable,
            dynamic_weight,
            prompt_floor,
            prefill_charge,
            least_charge,
            weight,
        } = pick.params;
        let if_on = |on: bool, weight: f64| if on { weight } else { 0.0 };
        let mut script = self.scripts.pick.key(&known.prefix);
        script.arg(pick.request_id.as_str()).arg(pick.reserve_ms);
        script.arg(rand::rng().random::<f64>());
        script.arg(hashes.len()).arg(i64::from(pick.prompt_length));
        script.arg(pick.count);
        script.arg(if_on(cache_aware_enable, cache_radio_weight));
        script.arg(if_on(load_aware_enable, request_load_weight));
        script.arg(if_on(load_aware_enable, prefill_load_weight));
        script.arg(match dynamic_weight {
            DynamicWeight::Linear => "linear",
            DynamicWeight::Ceil => "ceil",
        });
        script.arg(prompt_floor).arg(weight).arg(candidate_percent);
        script.arg(match prefill_charge {
            PrefillCharge::Uncached => "uncached",
            PrefillCharge::Full => "full",
        });
        script.arg(least_charge);
        script.arg(self.room(&known)).arg(self.limits.endpoints);
        script.arg(self.log_length(&known)).arg(SPECULATIVE_S);
        script.arg(bytes_of(hashes)).arg(&self.log.origin);
        for (candidate, matched) in pick.candidates.iter().zip(&matched) {
            script.arg(candidate.ip.to_string());
            script.arg(*matched).arg(candidate.bias);
        }
        let answer: Vec<String> = self.link.invoke(&script).await?;
        let (picks, was_reserved) = read(&answer, pick, &matched)?;
        if !was_reserved && let Some(picked) = picks.picks.first() {
            self.expect_prompt(&known, pick, picked.ip, SPECULATIVE_S);
        }
        Ok(picks)
    }
}

/// The answer of the script; and whether the request had its reservation before.
fn read(answer: &[String], pick: &Pick, matched: &[u32]) -> Result<(Picks, bool), Fault> {
    let answer = words(answer);
    let (kind, charge, rest) = match answer.as_slice() {
        [kind @ ("picked" | "reserved"), charge, rest @ ..] => (*kind, *charge, rest),
        answer => return Err(refusal(answer)),
    };
    let picks = rest.chunks(6).map(|it| read_picked(it, matched));
    let picks = Picks {
        picks: picks.collect::<Option<_>>().ok_or(Fault::Internal)?,
        charge: charge.parse().map_err(|_| Fault::Internal)?,
        candidates: u32::try_from(pick.candidates.len()).unwrap_or(u32::MAX),
    };
    Ok((picks, kind == "reserved"))
}

fn read_picked(words: &[&str], matched: &[u32]) -> Option<Picked> {
    let [index, ip, score, raw, requests, prefill] = words else {
        return None;
    };
    // 0 of an endpoint that is no candidate any more.
    let index = index.parse::<usize>().ok()?.checked_sub(1);
    Some(Picked {
        ip: ip.parse().ok()?,
        score: score.parse().ok()?,
        raw: raw.parse().ok()?,
        matched: index.and_then(|it| matched.get(it)).copied().unwrap_or(0),
        queued_req_num: requests.parse().ok()?,
        prompt_length: prefill.parse().ok()?,
    })
}
