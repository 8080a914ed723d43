//! What the LLM filter adds to decisions: rules, prompts, turns by cluster.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use metadata::{Cluster, RequestId};
use moment::Clock;
use parking_lot::RwLock;
use rand::Rng;
use scheduling::{
    Endpoint, Explanation, Moment, NoPick, Profile, Request, Table, Verdict, ttft::Prompt,
};
use tracing::{debug, trace};

use super::{Director, Resolved, chunks::capacity};
use crate::{
    body::Parsed,
    config::InForce,
    extproc::Query,
    llm::{
        AskedElsewhere, Headers, LlmError, LlmPick, LlmRequest, Match, Mode, Phases, RuleError,
        Table as Rules, read,
    },
    reject::Reject,
};

/// As many clusters as a file may have rules: files that are read anew may name others.
const MAX_CLUSTERS: usize = 10_000;

/// Candidates beyond the chosen ones whose scores are logged.
const TRACED: usize = 5;

/// Bytes of the name of a cluster.
const MAX_CLUSTER: usize = 256;

/// Counts picks where endpoints take turns. Those of different clusters are counted apart: where two alternate, a common
/// count would give each always the same half of its endpoints.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Of requests that have no cluster.
    others: AtomicU64,
    by_cluster: RwLock<HashMap<Cluster, AtomicU64>>,
}

// === impl Turns ===

impl Turns {
    pub(super) fn next(&self, cluster: Option<&Cluster>) -> u64 {
        let Some(cluster) = cluster else {
            return self.others.fetch_add(1, Ordering::Relaxed);
        };
        if let Some(turn) = self.by_cluster.read().get(cluster) {
            return turn.fetch_add(1, Ordering::Relaxed);
        }
        let mut turns = self.by_cluster.write();
        if turns.len() >= MAX_CLUSTERS {
            turns.clear();
        }
        let turn = turns.entry(cluster.clone()).or_default();
        turn.fetch_add(1, Ordering::Relaxed)
    }
}

// === impl Director ===

impl Director {
    /// Where a request goes under the LLM filter, or where it is weighed by `inference-lb-scorer`; none: it has nothing to
    /// do with either. A model without a rule is for others to refuse.
    pub(super) fn find_match<R: Rng + ?Sized>(
        &self,
        config: &InForce,
        query: &Query,
        rng: &mut R,
    ) -> Option<Result<Match, RuleError>> {
        let Query {
            head,
            parsed,
            is_inference,
            ..
        } = query;
        if !is_inference || head.end {
            return None;
        }
        let Some(filter) = config.llm_filter() else {
            let is_weighed = config.profile.uses_chunks();
            return is_weighed.then(|| Ok(Rules::default().default_match(&self.cluster)));
        };
        let rules = &filter.rules;
        let found = parsed.as_ref().map(|parsed| {
            let headers = Headers::new(&head.fields);
            rules.find(&parsed.model, &headers, rng)
        });
        Some(match found {
            None | Some(Err(RuleError::ModelNotFound(_))) => Ok(rules.default_match(&self.cluster)),
            Some(found) => found,
        })
    }
}

impl Director {
    /// Fills in what of the prompt each member has cached, where that is asked for. Where own requests do not count, all
    /// members become equal.
    pub(super) fn match_chunks(
        &self,
        config: &InForce,
        request: &mut Request,
        llm: Option<&LlmRequest>,
        table: &mut Table,
    ) {
        let profile = config.profile_of(llm.map(|llm| &llm.found));
        let Some(llm) = llm.filter(|_| profile.uses_chunks()) else {
            return;
        };
        if !self.options.own_view {
            table.in_flight.fill(0);
            table.prefill.fill(0);
            return;
        }
        if !config.uses_caches() {
            return;
        }
        let hashes = llm.hashes();
        request.chunks = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
        let addresses = &table.roster().addresses;
        request.cached_chunks = self.chunks.matches(&llm.found.cluster, hashes, addresses);
    }

    /// The endpoint will get the prompt.
    pub(super) fn expect_chunks(
        &self,
        config: &InForce,
        llm: &LlmRequest,
        endpoint: &Endpoint,
        now: Moment,
    ) {
        if uses_chunks(config, llm) {
            self.chunks
                .speculate(&llm.found.cluster, endpoint, llm.hashes(), now);
        }
    }

    /// Where no first event is to come, the prefill ends by time.
    pub(super) fn expect_prefill(&self, llm: &mut LlmRequest) {
        if !llm.is_streaming {
            let model = llm.target.as_deref().unwrap_or_default();
            llm.prefill = Some(self.prefills.limit(model, llm.tokens()));
        }
    }

    /// A streamed answer to the request began so long after it was passed on.
    pub(crate) fn learn_prefill(&self, llm: &LlmRequest, prompt: Prompt, took: Duration) {
        let model = llm.target.as_deref().unwrap_or_default();
        self.prefills.learn(model, prompt, took);
    }

    /// The endpoint answered the prompt.
    pub(crate) fn save_chunks(&self, llm: &LlmRequest, endpoint: &Endpoint) {
        if uses_chunks(&self.config.load(), llm) {
            let now = self.clock.now();
            self.chunks
                .save(&llm.found.cluster, endpoint, llm.hashes(), now);
            if let Some(elsewhere) = &self.elsewhere {
                let (cluster, address) = (&llm.found.cluster, endpoint.address());
                elsewhere.save(cluster, address, llm.hashes(), capacity(endpoint));
            }
        }
    }
}

/// Whether it matters which endpoints have the prompt of the request.
fn uses_chunks(config: &InForce, llm: &LlmRequest) -> bool {
    let profile = config.profile_of(Some(&llm.found));
    profile.uses_chunks() && config.uses_caches() && !llm.hashes().is_empty()
}

/// Under an LLM filter a request to compute something has a body.
pub(super) fn check_body(config: &InForce, query: &Query) -> Result<(), Reject> {
    let head = &query.head;
    if config.llm_filter().is_some() && query.is_inference && head.end && head.is_post() {
        return Err(LlmError::NoBody.into());
    }
    Ok(())
}

/// What is known of a request that has a match before it is picked for.
pub(super) fn prepare(
    config: &InForce,
    resolved: &Resolved,
    parsed: Option<&Parsed>,
    body: &Bytes,
    clock: Clock,
) -> Result<Option<Box<LlmRequest>>, Reject> {
    let Some(found) = &resolved.found else {
        return Ok(None);
    };
    let start = clock.now();
    let filter = config.llm_filter();
    let mode = filter.map_or(Mode::Full, |filter| filter.prompt_mode);
    let prompt = match (parsed, resolved.target.as_deref()) {
        (Some(parsed), Some(target)) => {
            Some(read(parsed, body, mode, target).map_err(LlmError::from)?)
        }
        _ => None,
    };
    let hashed = prompt.is_some().then(|| [start, clock.now()]);
    let llm = LlmRequest {
        found: Match::clone(found),
        trace_id: resolved.trace_id.clone(),
        target: resolved.target.clone(),
        prompt,
        unit: filter.map(|filter| filter.length_unit).unwrap_or_default(),
        counted: None,
        id: make_id(),
        is_streaming: parsed.is_some_and(|parsed| parsed.stream),
        prefill: None,
        pick: LlmPick::default(),
        asked: AskedElsewhere::default(),
        phases: Phases {
            rule: resolved.ruled,
            hash: hashed,
            asked: None,
        },
        trace_parent: None,
    };
    debug!(
        trace_id = llm.trace_id(),
        model = resolved.model.as_deref(),
        prompt_len = llm.prompt_length(),
        rule = &*llm.found.rule.place,
        "DecodeRequest"
    );
    Ok(Some(Box::new(llm)))
}

/// The refusal of a request that nobody could be picked for.
pub(super) fn refusal(no_pick: NoPick, llm: Option<&LlmRequest>) -> Reject {
    match (no_pick, llm) {
        (NoPick::Unlabelled, Some(llm)) => {
            let model = llm.found.model.as_deref().unwrap_or_default();
            LlmError::from(llm.found.labels_match_none(model)).into()
        }
        (no_pick, _) => no_pick.into(),
    }
}

/// Logs how the best candidates were scored, a few beyond those that were chosen.
pub(super) fn trace_scores(
    llm: &LlmRequest,
    table: &Table,
    request: &Request,
    profile: &Profile,
    explanation: &Explanation,
) {
    let scored = explanation.verdicts().iter().enumerate();
    let mut scored: Vec<_> = scored
        .filter_map(|(member, verdict)| match verdict {
            Verdict::Scored(scores) => Some((member, scores)),
            Verdict::Excluded(_) => None,
        })
        .collect();
    scored.sort_by(|(_, one), (_, other)| other.sum.total_cmp(&one.sum));
    let most = usize::from(request.list.max(profile.picker.max_endpoints)) + TRACED;
    for (member, scores) in scored.into_iter().take(most) {
        trace!(
            trace_id = llm.trace_id(),
            address = table.roster().addresses.get(member).map(tracing::field::display),
            requests = table.in_flight.get(member),
            prefill = table.prefill.get(member),
            cached_chunks = request.cached_chunks.get(member),
            chunks = request.chunks,
            score = scores.sum,
            scores = ?scores.each,
            "candidate"
        );
    }
}

/// The id of a charge.
fn make_id() -> RequestId {
    let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text = id.hyphenated().encode_lower(&mut text);
    text.parse().expect("a UUID is 36 visible characters")
}

/// What keys load and caches of a pool where no rule says it: `<namespace>/<pool>`.
pub(super) fn cluster(namespace: &str, pool: &str) -> Cluster {
    let mut name = format!("{namespace}/{pool}");
    name.retain(|one| !one.is_control());
    // Two of the longest names are too long together.
    name.truncate(name.floor_char_boundary(MAX_CLUSTER));
    name.parse()
        .expect("it has a slash, no control characters, and is cut")
}
