//! The last picks and refusals, with what led to them: for who asks why a request went where it did.
//!
//! A pick writes its record beside all others, without a lock; the page reads them when somebody asks for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use scheduling::{EndpointId, Exclusion, Explanation, Profile, Request, Snapshot, Table, Verdict};
use serde::{Serialize, Serializer};

use super::models::Resolved;
use crate::{
    edit::Edit,
    extproc::{Query, REQUEST_ID},
    reject::Reject,
};

/// Picks that are kept: at 100 a second the last two seconds, some 5 MB with the most members each.
const KEPT: usize = 256;

/// Members of one pick that are kept, the best first: who asks looks at few, and pools have hundreds.
const MAX_MEMBERS: usize = 64;

/// The scorer whose scores are made elsewhere.
const INFERENCE_LB: &str = "inference-lb-scorer";

/// Bytes of a text that a client chose.
const MAX_TEXT: usize = 256;

/// The last [`KEPT`] records.
#[derive(Debug)]
pub(crate) struct Picks {
    /// Where the next one goes, counted on and on.
    next: AtomicUsize,
    ring: Box<[ArcSwapOption<Record>]>,
}

/// One pick or refusal.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    #[serde(serialize_with = "display")]
    time: Timestamp,
    #[serde(flatten)]
    asked: Asked,
    /// The endpoints of the answer, best first; empty: refused.
    picked: Vec<SocketAddr>,
    refused: Option<Refused>,
    members: Vec<Considered>,
    /// Members that are not shown.
    left_out: usize,
    /// What the external stage told; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<&'static str>,
}

/// The request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Asked {
    request_id: String,
    model: Option<String>,
    target_model: Option<String>,
    fairness_id: Option<String>,
    priority: i32,
    body_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Refused {
    status: u16,
    reason: &'static str,
    message: String,
    /// Of the pool, where that was looked at.
    saturation: Option<f64>,
}

/// A member as the pick saw it.
#[derive(Debug, Serialize)]
pub(crate) struct Considered {
    #[serde(serialize_with = "display")]
    endpoint: EndpointId,
    address: SocketAddr,
    quality: &'static str,
    waiting: f64,
    running: f64,
    kv_cache_utilization: f64,
    in_flight: u32,
    prompt_tokens_in_flight: u64,
    /// Blocks of the prompt that it is believed to have cached, of all.
    prefix_blocks: [usize; 2],
    /// The sum of the weighted scores; absent: it was no candidate, or it was scored elsewhere and not named.
    score: Option<f64>,
    scores: Vec<Score>,
    excluded_by: Option<String>,
    /// Where it was scored elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Shared>,
}

/// What all endpoint pickers together know of a member.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Shared {
    pub(super) requests: i64,
    pub(super) prefill: i64,
    pub(super) cached_chunks: u32,
}

#[derive(Debug, Serialize)]
struct Score {
    scorer: &'static str,
    weight: f64,
    score: f64,
}

// === impl Picks ===

impl Picks {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicUsize::new(0),
            ring: (0..KEPT).map(|_| ArcSwapOption::empty()).collect(),
        }
    }

    pub(crate) fn push(&self, record: Record) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % KEPT;
        if let Some(place) = self.ring.get(at) {
            place.store(Some(Arc::new(record)));
        }
    }

    /// The newest first.
    pub(crate) fn latest(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = self
            .ring
            .iter()
            .filter_map(ArcSwapOption::load_full)
            .collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.time));
        records
    }
}

// === impl Record ===

impl Record {
    pub(crate) fn picked(asked: Asked, picked: Vec<SocketAddr>, members: Vec<Considered>) -> Self {
        Self::new(asked, picked, None, members)
    }

    /// `saturation`: of the pool, where that was the reason.
    pub(crate) fn refused(
        asked: Asked,
        reject: &Reject,
        saturation: Option<f64>,
        members: Vec<Considered>,
    ) -> Self {
        let refused = Refused {
            status: reject.status(),
            reason: reject.reason(),
            message: reject.to_string(),
            saturation,
        };
        Self::new(asked, Vec::new(), Some(refused), members)
    }

    fn new(
        asked: Asked,
        picked: Vec<SocketAddr>,
        refused: Option<Refused>,
        mut members: Vec<Considered>,
    ) -> Self {
        // Those that were no candidates last.
        let key = |one: &Considered| one.score.unwrap_or(-1.0);
        members.sort_by(|one, other| key(other).total_cmp(&key(one)));
        let left_out = members.len().saturating_sub(MAX_MEMBERS);
        members.truncate(MAX_MEMBERS);
        Self {
            time: Timestamp::now(),
            asked,
            picked,
            refused,
            members,
            left_out,
            external: None,
        }
    }

    /// The same, after this stage.
    pub(super) fn after(mut self, stage: Option<&'static str>) -> Self {
        self.external = stage;
        self
    }
}

// === impl Asked ===

impl Asked {
    pub(super) fn new(query: &Query, resolved: &Resolved) -> Self {
        let text = |text: &Option<Arc<str>>| text.as_deref().map(shortened);
        Self {
            request_id: query
                .head
                .field(&[REQUEST_ID])
                .map(shortened)
                .unwrap_or_default(),
            model: text(&resolved.model),
            target_model: text(&resolved.target),
            fairness_id: text(&resolved.fairness_id),
            priority: resolved.priority,
            body_bytes: query.body.len(),
        }
    }
}

impl Asked {
    /// With the id that the request gets if it has none.
    pub(super) fn with_id(mut self, edit: &Edit) -> Self {
        if self.request_id.is_empty() {
            let made = edit.value(REQUEST_ID);
            self.request_id = made.map(shortened).unwrap_or_default();
        }
        self
    }
}

/// At most [`MAX_TEXT`] bytes of a text.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

// === impl Considered ===

impl Considered {
    /// All members of the table, as the choice saw them.
    pub(super) fn all(
        snapshot: &Snapshot,
        table: &Table,
        matched: &[u32],
        request: &Request,
        profile: &Profile,
        explanation: &Explanation,
    ) -> Vec<Self> {
        let verdicts = explanation.verdicts().iter();
        let members = snapshot.endpoints().zip(verdicts).enumerate();
        let of = |column: &[f64], member: usize| column.get(member).copied().unwrap_or_default();
        let considered = members.map(|(member, (endpoint, verdict))| {
            let (score, scores, excluded_by) = match verdict {
                Verdict::Excluded(why) => (None, Vec::new(), Some(exclusion(*why, profile))),
                Verdict::Scored(scores) => {
                    let each = profile.scorers.iter().zip(&scores.each);
                    let each = each.map(|(weighted, score)| Score {
                        scorer: weighted.scorer.name(),
                        weight: weighted.weight,
                        score: *score,
                    });
                    (Some(scores.sum), each.collect(), None)
                }
            };
            let blocks = matched.get(member).copied().unwrap_or_default();
            Self {
                endpoint: endpoint.id().clone(),
                address: endpoint.address(),
                quality: table
                    .quality
                    .get(member)
                    .copied()
                    .unwrap_or_default()
                    .name(),
                waiting: of(&table.waiting, member),
                running: of(&table.running, member),
                kv_cache_utilization: of(&table.kv, member),
                in_flight: table.in_flight.get(member).copied().unwrap_or_default(),
                prompt_tokens_in_flight: table.tokens.get(member).copied().unwrap_or_default(),
                prefix_blocks: [
                    usize::try_from(blocks).unwrap_or(usize::MAX),
                    request.prefix.len(),
                ],
                score,
                scores,
                excluded_by,
                shared: None,
            }
        });
        considered.collect()
    }

    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// Its score is not known here.
    pub(super) fn is_scored_elsewhere(&mut self) {
        self.score = None;
        self.scores.retain(|one| one.scorer != INFERENCE_LB);
    }

    /// Its score as it is known now.
    pub(super) fn scored_elsewhere(&mut self, score: f64, shared: Shared) {
        self.score = Some(score);
        self.shared = Some(shared);
    }
}

fn exclusion(why: Exclusion, profile: &Profile) -> String {
    match why {
        Exclusion::Subset => "the subset that the proxy allows".to_owned(),
        Exclusion::Labels => "the labels that the rule asks for".to_owned(),
        Exclusion::Suspect => "3 scrapes without an answer".to_owned(),
        Exclusion::Filter(place) => {
            let filter = profile.filters.get(place);
            filter.map_or("a filter", |filter| filter.name()).to_owned()
        }
    }
}

fn display<T: std::fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_record(id: &str) -> Record {
        let asked = Asked {
            request_id: id.to_owned(),
            model: None,
            target_model: None,
            fairness_id: None,
            priority: 0,
            body_bytes: 0,
        };
        Record::refused(asked, &Reject::Shed, Some(1.5), Vec::new())
    }

    #[test]
    fn the_last_ones_stay_and_the_newest_is_first() {
        let picks = Picks::new();
        for id in 0..KEPT + 10 {
            picks.push(mk_record(&id.to_string()));
        }
        let latest = picks.latest();
        let ids: Vec<_> = latest
            .iter()
            .map(|one| one.asked.request_id.clone())
            .collect();
        assert_eq!(ids.len(), KEPT);
        for gone in 0..10 {
            assert!(!ids.contains(&gone.to_string()), "{gone}");
        }
        assert!(latest.is_sorted_by_key(|one| std::cmp::Reverse(one.time)));
    }

    #[test]
    fn texts_of_clients_are_cut_between_characters() {
        assert_eq!(shortened("a"), "a");
        let long = format!("{}é", "x".repeat(MAX_TEXT - 1));
        assert_eq!(shortened(&long), "x".repeat(MAX_TEXT - 1));
    }
}
