//! The choice: candidates, filters, scores, the best ones.

use rand::{Rng, RngExt};
use smallvec::SmallVec;

use crate::{
    candidates::Candidates,
    explanation::{Exclusion, Explanation},
    load::Quality,
    percent::{TIE, top_percent},
    profile::{PickerKind, Profile},
    request::{MAX_LIST, Request},
    scorer::{Scorer, inference_scores},
    table::Table,
};

/// The members to try in order, best first; at least one.
pub type Choice = SmallVec<[Chosen; 1]>;

/// A member and the sum of its weighted scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Its index in the table.
    pub member: usize,
    /// Its sum, 0 to the sum of all weights.
    pub score: f64,
    /// Its score by `inference-lb-scorer` before that is put between 0 and 1; 0 without that scorer.
    pub raw: f64,
}

/// Who a request may go to, and what all scorers but `inference-lb-scorer` give them, weighted: that one asks for load and
/// caches, which may be known better elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Narrowed {
    members: Vec<u32>,
    biases: Sums,
}

type Sums = SmallVec<[f64; 16]>;

/// Why no endpoint could be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPick {
    /// The pool has no ready endpoint.
    #[error("the pool has no ready endpoint: check that its selector matches ready pods")]
    EmptyPool,
    /// The pool has ready endpoints, but the proxy allows none of them.
    #[error("no ready endpoint of the pool is in the subset that the proxy allows")]
    EmptySubset,
    /// The proxy allows some, but none of the pool has the labels that the request asks for.
    #[error("no ready endpoint of the pool has the labels that the request asks for")]
    Unlabelled,
    /// None of the members that may get the request has the role that the profile requires.
    #[error(
        "no ready endpoint that the request may go to has the role that the scheduling profile asks for"
    )]
    NoRole,
    /// The filters of the profile took away all candidates.
    #[error("no ready endpoint of the pool passes the filters of the scheduling profile")]
    Filtered,
}

/// Chooses the members for one request. `matched` has, by member, the blocks of the prompt that it has cached; empty:
/// nobody looked.
///
/// # Errors
/// [`NoPick`] when no member is allowed. Stale or missing metrics never are a reason: a lone member
/// with dead metrics is chosen.
pub fn choose<R: Rng + ?Sized>(
    table: &Table,
    request: &Request,
    matched: &[u32],
    profile: &Profile,
    rng: &mut R,
) -> Result<Choice, NoPick> {
    choose_telling(table, request, matched, profile, rng, None)
}

/// As [`choose`], and writes down what became of each member.
///
/// # Errors
/// As [`choose`]; the explanation says why.
pub fn choose_explained<R: Rng + ?Sized>(
    table: &Table,
    request: &Request,
    matched: &[u32],
    profile: &Profile,
    rng: &mut R,
    explanation: &mut Explanation,
) -> Result<Choice, NoPick> {
    choose_telling(table, request, matched, profile, rng, Some(explanation))
}

fn choose_telling<R: Rng + ?Sized>(
    table: &Table,
    request: &Request,
    matched: &[u32],
    profile: &Profile,
    rng: &mut R,
    mut explanation: Option<&mut Explanation>,
) -> Result<Choice, NoPick> {
    if let Some(explanation) = explanation.as_deref_mut() {
        explanation.begin(table.len());
    }
    let candidates = candidates(table, request, matched, profile, explanation.as_deref_mut())?;
    let biases = bias(request, &candidates, profile, explanation.as_deref_mut());
    Ok(take(
        request,
        &candidates,
        biases,
        profile,
        rng,
        explanation,
    ))
}

/// The members for a request, by the filters and scores of this process: the first half of [`choose_explained`].
///
/// # Errors
/// As [`choose`]; the explanation says why.
pub fn narrow(
    table: &Table,
    request: &Request,
    matched: &[u32],
    profile: &Profile,
    mut explanation: Option<&mut Explanation>,
) -> Result<Narrowed, NoPick> {
    if let Some(explanation) = explanation.as_deref_mut() {
        explanation.begin(table.len());
    }
    let candidates = candidates(table, request, matched, profile, explanation.as_deref_mut())?;
    let biases = bias(request, &candidates, profile, explanation);
    Ok(Narrowed {
        members: candidates.into_members(),
        biases,
    })
}

/// The choice among them by load and caches as the table and the request have them: the second half. The `explanation` is
/// that of the first.
pub fn choose_among<R: Rng + ?Sized>(
    table: &Table,
    request: &Request,
    narrowed: Narrowed,
    profile: &Profile,
    rng: &mut R,
    explanation: Option<&mut Explanation>,
) -> Choice {
    let Narrowed { members, biases } = narrowed;
    let candidates = Candidates::new(table, members, &[]);
    take(request, &candidates, biases, profile, rng, explanation)
}

fn candidates<'a>(
    table: &'a Table,
    request: &Request,
    matched: &'a [u32],
    profile: &Profile,
    mut explanation: Option<&mut Explanation>,
) -> Result<Candidates<'a>, NoPick> {
    if table.is_empty() {
        return Err(NoPick::EmptyPool);
    }
    let allowed = table.allowed(request.subset.as_ref());
    let mut allowed = Candidates::new(table, allowed, matched);
    if allowed.is_empty() {
        return Err(NoPick::EmptySubset);
    }
    if !request.labels.is_empty() {
        if let Some(explanation) = explanation.as_deref_mut() {
            explanation.reached(&allowed, Exclusion::Labels);
        }
        let labels = &table.roster().labels;
        allowed.retain(|member| labels.get(member).is_some_and(|one| request.admits(one)));
        if allowed.is_empty() {
            let elsewhere = labels.iter().any(|one| request.admits(one));
            return Err(if elsewhere {
                NoPick::EmptySubset
            } else {
                NoPick::Unlabelled
            });
        }
    }
    if let Some(explanation) = explanation.as_deref_mut() {
        explanation.reached(&allowed, Exclusion::Suspect);
    }
    let mut candidates = allowed.clone();
    candidates.prefer(|member| table.quality.get(member) != Some(&Quality::Suspect));
    filter(
        profile,
        request,
        &mut candidates,
        explanation.as_deref_mut(),
    );
    if candidates.is_empty() {
        // Those that pass the filters may all be suspects: metrics alone exclude nobody.
        candidates = allowed.clone();
        filter(profile, request, &mut candidates, explanation);
    }
    if candidates.is_empty() {
        let labels = &table.roster().labels;
        let mut labels = allowed.members().filter_map(|member| labels.get(member));
        return Err(if labels.any(|labels| profile.admits_role(labels)) {
            NoPick::Filtered
        } else {
            NoPick::NoRole
        });
    }
    Ok(candidates)
}

/// Takes the best ones by the sums of all scores.
fn take<R: Rng + ?Sized>(
    request: &Request,
    candidates: &Candidates<'_>,
    biases: Sums,
    profile: &Profile,
    rng: &mut R,
    explanation: Option<&mut Explanation>,
) -> Choice {
    let list = request.list.max(profile.picker.max_endpoints);
    let list = usize::from(list.clamp(1, MAX_LIST));
    let mut ranked = rank(request, candidates, biases, profile, rng, explanation);
    let mut choice = Choice::new();
    if let PickerKind::TopPercent { percent } = profile.picker.kind {
        let keys: SmallVec<[f64; 16]> = ranked.iter().map(|one| one.key).collect();
        let first = top_percent(&keys, percent, rng);
        choice.push(ranked.swap_remove(first).chosen);
    }
    while choice.len() < list
        && let Some(best) = take_best(&mut ranked, rng)
    {
        choice.push(best);
    }
    choice
}

fn filter(
    profile: &Profile,
    request: &Request,
    candidates: &mut Candidates<'_>,
    mut explanation: Option<&mut Explanation>,
) {
    for (place, filter) in profile.filters.iter().enumerate() {
        if let Some(explanation) = explanation.as_deref_mut() {
            explanation.reached(candidates, Exclusion::Filter(place));
        }
        filter.apply(request, candidates);
    }
}

/// A candidate on its way through the picker.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    chosen: Chosen,
    /// The greatest is taken first.
    key: f64,
    /// Of equal keys the one with the fewest is.
    in_flight: u32,
}

type Ranking = SmallVec<[Ranked; 16]>;

fn rank<R: Rng + ?Sized>(
    request: &Request,
    candidates: &Candidates<'_>,
    biases: Sums,
    profile: &Profile,
    rng: &mut R,
    explanation: Option<&mut Explanation>,
) -> Ranking {
    let (sums, raw) = sum(request, candidates, biases, profile, explanation);
    let in_flight = candidates.of(&candidates.table().in_flight);
    let turns = match profile.picker.kind {
        PickerKind::RoundRobin => turns(candidates, request.turn),
        _ => SmallVec::new(),
    };
    let members = candidates.members().zip(in_flight).zip(sums).enumerate();
    members
        .map(|(at, ((member, in_flight), score))| Ranked {
            chosen: Chosen {
                member,
                score,
                raw: raw.get(at).copied().unwrap_or_default(),
            },
            key: match profile.picker.kind {
                PickerKind::MaxScore | PickerKind::TopPercent { .. } => score,
                PickerKind::RoundRobin => turns.get(at).copied().unwrap_or_default(),
                // The greatest of U^(1/score) falls on each candidate in proportion to its score, and so does that of the
                // logarithms, which small scores do not round to 0. Score 0 is last.
                PickerKind::WeightedRandom => rng.random::<f64>().ln() / score,
                PickerKind::Random => rng.random(),
            },
            in_flight,
        })
        .collect()
}

/// Keys of the candidates: the greatest for the one whose turn it is, then down in the order of the addresses.
fn turns(candidates: &Candidates<'_>, turn: u64) -> SmallVec<[f64; 16]> {
    let addresses = &candidates.table().roster().addresses;
    let addresses = candidates.members().map(|member| addresses.get(member));
    let mut order: SmallVec<[_; 16]> = addresses.enumerate().collect();
    order.sort_unstable_by_key(|(_, address)| *address);
    let count = order.len();
    let turn = turn.checked_rem(count as u64).unwrap_or(0);
    let first = usize::try_from(turn).unwrap_or(0);
    let mut keys = SmallVec::from_elem(0.0, count);
    for (after, (at, _)) in order.iter().cycle().skip(first).take(count).enumerate() {
        if let Some(key) = keys.get_mut(*at) {
            *key = (count - after) as f64;
        }
    }
    keys
}

/// The sums of the weighted scores of all scorers but `inference-lb-scorer`.
fn bias(
    request: &Request,
    candidates: &Candidates<'_>,
    profile: &Profile,
    mut explanation: Option<&mut Explanation>,
) -> Sums {
    if let Some(explanation) = explanation.as_deref_mut() {
        explanation.passed(candidates, profile.scorers.len());
    }
    let mut sums: Sums = SmallVec::from_elem(0.0, candidates.len());
    let mut scores = sums.clone();
    for (place, weighted) in profile.scorers.iter().enumerate() {
        if let Scorer::InferenceLb { .. } = weighted.scorer {
            continue;
        }
        weighted.scorer.score(request, candidates, &mut scores);
        add(&mut sums, &mut scores, weighted.weight);
        if let Some(explanation) = explanation.as_deref_mut() {
            explanation.scored(place, candidates, &scores);
        }
    }
    sums
}

/// The sums of all weighted scores, of the `biases` those of the other scorers; and the raw scores by load and caches,
/// none without `inference-lb-scorer`.
fn sum(
    request: &Request,
    candidates: &Candidates<'_>,
    biases: Sums,
    profile: &Profile,
    mut explanation: Option<&mut Explanation>,
) -> (Sums, Sums) {
    let (mut sums, mut raw) = (biases, Sums::new());
    for (place, weighted) in profile.scorers.iter().enumerate() {
        let Scorer::InferenceLb { params, .. } = &weighted.scorer else {
            continue;
        };
        let scored = inference_scores(params, request, candidates);
        let mut scores = scored.normal;
        add(&mut sums, &mut scores, weighted.weight);
        raw = scored.raw;
        if let Some(explanation) = explanation.as_deref_mut() {
            explanation.scored(place, candidates, &scores);
        }
    }
    if let Some(explanation) = explanation {
        explanation.summed(candidates, &sums);
    }
    (sums, raw)
}

/// Adds scores, which are put between 0 and 1, to the sums.
fn add(sums: &mut [f64], scores: &mut [f64], weight: f64) {
    for (sum, score) in sums.iter_mut().zip(scores) {
        *score = if score.is_nan() {
            0.0
        } else {
            score.clamp(0.0, 1.0)
        };
        *sum += weight * *score;
    }
}

/// Removes and returns the best: greatest key, then fewest own in flight, then chance.
fn take_best<R: Rng + ?Sized>(ranking: &mut Ranking, rng: &mut R) -> Option<Chosen> {
    let keys = ranking.iter().map(|one| one.key);
    let top = keys.fold(f64::NEG_INFINITY, f64::max);
    let tied = |one: &&Ranked| one.key >= top - TIE;
    let fewest = ranking.iter().filter(tied).map(|one| one.in_flight).min()?;
    let equal = |one: &Ranked| one.key >= top - TIE && one.in_flight == fewest;
    let count = ranking.iter().filter(|one| equal(one)).count();
    let lucky = if count > 1 {
        rng.random_range(0..count)
    } else {
        0
    };
    let (index, _) = ranking
        .iter()
        .enumerate()
        .filter(|(_, one)| equal(one))
        .nth(lucky)?;
    Some(ranking.swap_remove(index).chosen)
}

// === impl Narrowed ===

impl Narrowed {
    /// Index into the table and bias of each.
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = (usize, f64)> + '_ {
        let members = self.members.iter().zip(&self.biases);
        members.map(|(member, bias)| (usize::try_from(*member).unwrap_or(usize::MAX), *bias))
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

// === impl NoPick ===

impl NoPick {
    /// Stable: metric label and dropped-reason header alike.
    pub fn reason(self) -> &'static str {
        match self {
            Self::EmptyPool | Self::EmptySubset | Self::NoRole => "no-endpoints",
            Self::Unlabelled => "labels-match-none",
            Self::Filtered => "saturated",
        }
    }
}

#[cfg(test)]
mod tests;
