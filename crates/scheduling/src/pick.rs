//! The pick: candidates, scores, the best ones.

use std::sync::Arc;

use rand::{Rng, RngExt};
use smallvec::SmallVec;

use crate::{
    endpoint::Endpoint,
    facts::{Facts, MAX_LIST},
    load::{InFlight, LoadView, Quality, Reading},
    profile::{Picker, Profile},
    snapshot::{Snapshot, mean},
};
use moment::Moment;

/// Scores closer than this are equal: rounding must not decide.
const TIE: f64 = 1e-9;

/// A decision. The request counts as in flight at the first endpoint from here on.
#[derive(Debug)]
pub struct Pick {
    /// The endpoints to try in order, best first; at least one, at most [`Facts::list`].
    pub ranked: SmallVec<[Ranked; 1]>,
    /// Holds the request's place at the first of them.
    pub guard: InFlight,
}

/// An endpoint and the sum of its weighted scores.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Its sum, 0 to the sum of all weights.
    pub score: f64,
}

/// Why no endpoint could be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPick {
    /// The pool has no ready endpoint.
    #[error("the pool has no ready endpoint: check that its selector matches ready pods")]
    EmptyPool,
    /// The pool has ready endpoints, but the proxy allows none of them.
    #[error("no ready endpoint of the pool is in the subset that the proxy allows")]
    EmptySubset,
}

/// One endpoint under consideration.
struct Candidate<'a> {
    endpoint: &'a Arc<Endpoint>,
    reading: Reading,
    view: LoadView,
    score: f64,
}

/// Chooses the endpoints for one request and counts it at the best of them, so that the very next
/// pick already sees it.
///
/// # Errors
/// [`NoPick`] when no member is allowed. Stale or missing metrics never are a reason: a lone member
/// with dead metrics is picked.
pub fn pick<R: Rng + ?Sized>(
    snapshot: &Snapshot,
    facts: &Facts,
    profile: &Profile,
    now: Moment,
    rng: &mut R,
) -> Result<Pick, NoPick> {
    let mut candidates = candidates(snapshot, facts, profile, now)?;
    let mean = mean(candidates.iter().map(|candidate| &candidate.reading));
    for candidate in &mut candidates {
        candidate.view = LoadView::new(candidate.reading, mean);
    }
    score(&mut candidates, profile);
    let wanted = usize::from(facts.list.clamp(1, MAX_LIST));
    let Picker::MaxScore = profile.picker;
    let mut ranked = SmallVec::new();
    while ranked.len() < wanted
        && let Some(best) = take_best(&mut candidates, rng)
    {
        ranked.push(best);
    }
    let first: &Ranked = ranked.first().ok_or(NoPick::EmptyPool)?;
    let guard = InFlight::at(Arc::clone(&first.endpoint));
    Ok(Pick { ranked, guard })
}

/// Members in the subset, without suspects unless all are. 16 fit on the stack, about 2 KiB.
fn candidates<'a>(
    snapshot: &'a Snapshot,
    facts: &Facts,
    profile: &Profile,
    now: Moment,
) -> Result<SmallVec<[Candidate<'a>; 16]>, NoPick> {
    if snapshot.endpoints().is_empty() {
        return Err(NoPick::EmptyPool);
    }
    let mut candidates: SmallVec<[Candidate<'a>; 16]> = snapshot
        .endpoints()
        .iter()
        .filter(|endpoint| {
            facts
                .subset
                .as_ref()
                .is_none_or(|subset| subset.allows(endpoint.address()))
        })
        .map(|endpoint| {
            let reading = endpoint.load().read(now, profile.freshness);
            Candidate {
                endpoint,
                reading,
                view: LoadView::new(reading, (0.0, 0.0, 0.0)),
                score: 0.0,
            }
        })
        .collect();
    if candidates.is_empty() {
        return Err(NoPick::EmptySubset);
    }
    if candidates
        .iter()
        .any(|candidate| candidate.reading.quality != Quality::Suspect)
    {
        candidates.retain(|candidate| candidate.reading.quality != Quality::Suspect);
    }
    Ok(candidates)
}

fn score(candidates: &mut [Candidate<'_>], profile: &Profile) {
    let mut sums: SmallVec<[f64; 16]> = SmallVec::from_elem(0.0, candidates.len());
    for weighted in &profile.scorers {
        weighted.scorer.score(
            candidates.iter().map(|candidate| &candidate.view),
            |index, score| {
                if let Some(sum) = sums.get_mut(index) {
                    *sum += weighted.weight
                        * if score.is_nan() {
                            0.0
                        } else {
                            score.clamp(0.0, 1.0)
                        };
                }
            },
        );
    }
    for (candidate, sum) in candidates.iter_mut().zip(sums) {
        candidate.score = sum;
    }
}

/// Removes and returns the best candidate: highest score, then fewest own in flight, then chance.
fn take_best<R: Rng + ?Sized>(
    candidates: &mut SmallVec<[Candidate<'_>; 16]>,
    rng: &mut R,
) -> Option<Ranked> {
    let top = candidates
        .iter()
        .map(|candidate| candidate.score)
        .fold(f64::NEG_INFINITY, f64::max);
    let tied = |candidate: &Candidate<'_>| candidate.score >= top - TIE;
    let fewest = candidates
        .iter()
        .filter(|candidate| tied(candidate))
        .map(|c| c.view.in_flight)
        .min()?;
    let equal = |candidate: &Candidate<'_>| tied(candidate) && candidate.view.in_flight == fewest;
    let count = candidates
        .iter()
        .filter(|candidate| equal(candidate))
        .count();
    let lucky = if count > 1 {
        rng.random_range(0..count)
    } else {
        0
    };
    let index = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| equal(candidate))
        .nth(lucky)?
        .0;
    let Candidate {
        endpoint, score, ..
    } = candidates.swap_remove(index);
    Some(Ranked {
        endpoint: Arc::clone(endpoint),
        score,
    })
}

// === impl NoPick ===

impl NoPick {
    /// Stable: metric label and dropped-reason header alike.
    pub fn reason(self) -> &'static str {
        match self {
            Self::EmptyPool | Self::EmptySubset => "no-endpoints",
        }
    }
}

#[cfg(test)]
mod tests;
