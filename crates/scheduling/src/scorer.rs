//! Scorers: how well each candidate suits a request, 0 (worst) to 1.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    candidates::Candidates,
    inference_lb::{self, Params, PrefillCharge, Row},
    request::{Request, SessionAt},
    table::{Adapters, Table},
};

/// A scorer with its parameters, named as in the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub enum Scorer {
    /// `queue-scorer`: (max - waiting) / (max - min) over the candidates; all equal: 1.
    Queue {
        /// Our own requests count as waiting until a scrape has seen them; false: scraped values alone.
        count_unscraped: bool,
    },
    /// `running-requests-size-scorer`: the same on running requests.
    RunningRequests,
    /// `kv-cache-utilization-scorer`: 1 - used share of the KV cache.
    KvCacheUtilization,
    /// `prefix-cache-scorer`: the share of the prompt's blocks that are cached.
    PrefixCache {
        /// Weight of the match's absolute length beside its share.
        match_length_weight: f64,
        /// The length that counts in full, in tokens.
        match_length_scale_tokens: f64,
    },
    /// `lora-affinity-scorer`: the adapter is loaded 1, can be loaded 0.8, is waited for 0.6.
    LoraAffinity,
    /// `load-aware-scorer`: 0.5 with an empty queue, down to 0 at `threshold` waiting requests.
    LoadAware {
        /// Queue length that scores 0.
        threshold: f64,
    },
    /// `active-request-scorer`: 1 for idle endpoints, the others by their own requests in flight.
    ActiveRequest {
        /// Up to so many requests in flight an endpoint is idle.
        idle_threshold: u32,
        /// Highest score of one that is not idle.
        max_busy_score: f64,
    },
    /// `token-load-scorer`: 1 - prompt tokens in flight / threshold.
    TokenLoad {
        /// Tokens that score 0.
        queue_threshold_tokens: f64,
    },
    /// `session-affinity-scorer`: 1 where the session is served.
    SessionAffinity(SessionStrategy),
    /// `inference-lb-scorer`: prompt cache against load; see [`inference_lb`].
    InferenceLb {
        /// What counts how much.
        params: Params,
        /// What a request that it weighed adds to its endpoint.
        charge: PrefillCharge,
    },
}

/// How a session names its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStrategy {
    /// `x-session-token` holds the pod, and is set on responses.
    EncodedEndpointHeader,
    /// `x-session-id` is remembered with the endpoint that served it.
    SessionId {
        /// How long after its last request.
        ttl: Duration,
    },
}

/// The adapter is loaded.
const LORA_LOADED: f64 = 1.0;
/// It can be loaded at once.
const LORA_FREE: f64 = 0.8;
/// Requests wait for it already.
const LORA_WAITING: f64 = 0.6;

/// The models of unseen requests that take the place of an adapter: those that a page of any member reports as an
/// adapter. The others may be base models, which take no such place.
struct Places<'a> {
    adapters: SmallVec<[&'a str; 8]>,
}

// === impl Scorer ===

impl Scorer {
    /// `queue-scorer` as it is without parameters.
    pub const QUEUE: Self = Self::Queue {
        count_unscraped: true,
    };

    /// `prefix-cache-scorer` as it is without parameters.
    pub const PREFIX_CACHE: Self = Self::PrefixCache {
        match_length_weight: 0.0,
        match_length_scale_tokens: 8192.0,
    };

    /// Its type in the configuration file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queue { .. } => "queue-scorer",
            Self::RunningRequests => "running-requests-size-scorer",
            Self::KvCacheUtilization => "kv-cache-utilization-scorer",
            Self::PrefixCache { .. } => "prefix-cache-scorer",
            Self::LoraAffinity => "lora-affinity-scorer",
            Self::LoadAware { .. } => "load-aware-scorer",
            Self::ActiveRequest { .. } => "active-request-scorer",
            Self::TokenLoad { .. } => "token-load-scorer",
            Self::SessionAffinity(_) => "session-affinity-scorer",
            Self::InferenceLb { .. } => "inference-lb-scorer",
        }
    }

    /// Scores each candidate, in their order, into `scores`, which has as many places. A score may lie outside 0 to 1 or be
    /// NaN: the caller clamps.
    pub fn score(&self, request: &Request, candidates: &Candidates<'_>, scores: &mut [f64]) {
        let table = candidates.table();
        match self {
            Self::Queue {
                count_unscraped: true,
            } => spread(candidates.of(&table.waiting), scores),
            Self::Queue {
                count_unscraped: false,
            } => spread(candidates.of(&table.scraped_waiting), scores),
            Self::RunningRequests => spread(candidates.of(&table.running), scores),
            Self::KvCacheUtilization => set(scores, candidates.of(&table.kv).map(|kv| 1.0 - kv)),
            Self::PrefixCache {
                match_length_weight,
                match_length_scale_tokens,
            } => {
                let total = request.prefix.len() as f64;
                let block = f64::from(request.block_tokens);
                set(
                    scores,
                    candidates.matched().map(|matched| {
                        let matched = f64::from(matched);
                        if total == 0.0 {
                            return 0.0;
                        }
                        let length = (matched * block / match_length_scale_tokens).min(1.0);
                        matched / total + match_length_weight * length * length
                    }),
                );
            }
            Self::LoraAffinity => {
                let Some(model) = request.model.as_deref() else {
                    return scores.fill(0.0);
                };
                let adapters = candidates
                    .members()
                    .map(|member| table.adapters.get(member));
                let places = Places::new(table);
                set(
                    scores,
                    adapters.map(|one| one.map_or(0.0, |one| lora(one, model, &places))),
                );
            }
            Self::LoadAware { threshold } => set(
                scores,
                candidates
                    .of(&table.waiting)
                    .map(|waiting| 0.5 * (1.0 - (waiting / threshold).min(1.0))),
            ),
            Self::ActiveRequest {
                idle_threshold,
                max_busy_score,
            } => {
                let in_flight = candidates.of(&table.in_flight);
                let most = f64::from(in_flight.clone().max().unwrap_or(0));
                set(
                    scores,
                    in_flight.map(|in_flight| {
                        if in_flight <= *idle_threshold {
                            1.0
                        } else {
                            (most - f64::from(in_flight)) / most * max_busy_score
                        }
                    }),
                );
            }
            Self::TokenLoad {
                queue_threshold_tokens,
            } => {
                let block = u64::from(request.block_tokens);
                let prompt = u64::from(request.prompt_tokens);
                let loads = candidates.of(&table.tokens).zip(candidates.matched()).map(
                    |(tokens, matched)| {
                        let own = prompt.saturating_sub(u64::from(matched) * block);
                        tokens.saturating_add(own) as f64
                    },
                );
                set(
                    scores,
                    loads.map(|load| {
                        1.0 - load.min(*queue_threshold_tokens) / queue_threshold_tokens
                    }),
                );
            }
            Self::SessionAffinity(_) => set(
                scores,
                candidates
                    .members()
                    .map(|member| f64::from(u8::from(serves_session(request, candidates, member)))),
            ),
            Self::InferenceLb { params, .. } => {
                let normal = inference_scores(params, request, candidates).normal;
                set(scores, normal.into_iter());
            }
        }
    }
}

/// The scores of `inference-lb-scorer`.
pub(crate) fn inference_scores(
    params: &Params,
    request: &Request,
    candidates: &Candidates<'_>,
) -> inference_lb::Scores {
    let table = candidates.table();
    let loads = candidates
        .of(&table.in_flight)
        .zip(candidates.of(&table.prefill));
    let cached = &request.cached_chunks;
    let rows = candidates
        .members()
        .zip(loads)
        .map(|(member, (reqs, prompt))| Row {
            reqs: reqs.into(),
            prompt: i64::try_from(prompt).unwrap_or(i64::MAX),
            matched: cached.get(member).copied().unwrap_or_default(),
        });
    let rows: SmallVec<[Row; 16]> = rows.collect();
    inference_lb::score(params, &rows, request.chunks)
}

/// Whether this member of the table serves the request's session.
pub(crate) fn serves_session(
    request: &Request,
    candidates: &Candidates<'_>,
    member: usize,
) -> bool {
    let roster = candidates.table().roster();
    match &request.session {
        None => false,
        Some(SessionAt::Slot(slot)) => roster.slots.get(member) == Some(slot),
        Some(SessionAt::Pod { namespace, pod }) => roster
            .pods
            .get(member)
            .is_some_and(|(ns, name)| ns == namespace && name == pod),
    }
}

fn lora(Adapters { scraped, unseen }: &Adapters, model: &str, places: &Places<'_>) -> f64 {
    let Some(lora) = scraped else { return 0.0 };
    if has(&lora.running, model) {
        return LORA_LOADED;
    }
    // Our own requests wait there too, though no scrape has seen them.
    let own = unseen.iter().filter(|name| {
        !has(&lora.running, name) && !has(&lora.waiting, name) && places.takes_one(name)
    });
    let taken = lora.running.len() + lora.waiting.len() + own.count();
    if taken < usize::try_from(lora.max).unwrap_or(usize::MAX) {
        LORA_FREE
    } else if has(&lora.waiting, model) || unseen.iter().any(|name| &**name == model) {
        LORA_WAITING
    } else {
        0.0
    }
}

fn has(list: &[Box<str>], name: &str) -> bool {
    list.iter().any(|one| &**one == name)
}

// === impl Places ===

impl<'a> Places<'a> {
    fn new(table: &'a Table) -> Self {
        let unseen = table.adapters.iter().flat_map(|one| &one.unseen);
        Self::of(unseen.map(|name| &**name), |name| {
            table.adapters.iter().any(|one| {
                let scraped = one.scraped.as_ref();
                scraped.is_some_and(|lora| has(&lora.running, name) || has(&lora.waiting, name))
            })
        })
    }

    /// Most members have the same few names, and a search for one goes through the lists of all members: it is made once.
    fn of(unseen: impl Iterator<Item = &'a str>, mut is_shown: impl FnMut(&str) -> bool) -> Self {
        let mut adapters: SmallVec<[&str; 8]> = SmallVec::new();
        for name in unseen {
            if !adapters.contains(&name) {
                adapters.push(name);
            }
        }
        adapters.retain(|name| is_shown(name));
        Self { adapters }
    }

    fn takes_one(&self, name: &str) -> bool {
        self.adapters.contains(&name)
    }
}

/// The least gets 1, the most 0; all equal: 1.
fn spread(values: impl Iterator<Item = f64> + Clone, scores: &mut [f64]) {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    let (min, max) = values
        .clone()
        .fold(ends, |(min, max), value| (min.min(value), max.max(value)));
    let spread = max - min;
    set(
        scores,
        values.map(|value| {
            if spread > 0.0 {
                (max - value) / spread
            } else {
                1.0
            }
        }),
    );
}

fn set(scores: &mut [f64], values: impl Iterator<Item = f64>) {
    for (score, value) in scores.iter_mut().zip(values) {
        *score = value;
    }
}

#[cfg(test)]
mod tests;
