//! What the LLM filter adds to decisions: rules, prompts, turns by cluster.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use metadata::Cluster;
use parking_lot::RwLock;
use rand::Rng;
use scheduling::NoPick;
use tracing::debug;

use super::{Director, Resolved};
use crate::{
    body::Parsed,
    config::InForce,
    extproc::Query,
    llm::{Headers, LlmError, LlmRequest, Match, Mode, RuleError, Table, read},
    reject::Reject,
};

/// As many clusters as a file may have rules: files that are read anew may name others.
const MAX_CLUSTERS: usize = 10_000;

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
            return is_weighed.then(|| Ok(Table::default().default_match(&self.cluster)));
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
) -> Result<Option<Box<LlmRequest>>, Reject> {
    let Some(found) = &resolved.found else {
        return Ok(None);
    };
    let mode = config
        .llm_filter()
        .map_or(Mode::Full, |filter| filter.prompt_mode);
    let prompt = match (parsed, resolved.target.as_deref()) {
        (Some(parsed), Some(target)) => {
            Some(read(parsed, body, mode, target).map_err(LlmError::from)?)
        }
        _ => None,
    };
    let llm = LlmRequest {
        found: Match::clone(found),
        trace_id: resolved.trace_id.clone(),
        prompt,
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

/// What keys load and caches of a pool where no rule says it: `<namespace>/<pool>`.
pub(super) fn cluster(namespace: &str, pool: &str) -> Cluster {
    let mut name = format!("{namespace}/{pool}");
    name.retain(|one| !one.is_control());
    // Two of the longest names are too long together.
    name.truncate(name.floor_char_boundary(MAX_CLUSTER));
    name.parse()
        .expect("it has a slash, no control characters, and is cut")
}
