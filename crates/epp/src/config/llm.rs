//! The profile `llm-filter`: the algorithm of an LLM filter in the terms of scheduling.

use std::collections::HashMap;

use scheduling::{Picker, PickerKind, Profile, Scorer, WeightedScorer};

use crate::llm::{Algorithm, Balance, LlmFilter};

/// The profiles of requests under an LLM filter.
#[derive(Debug)]
pub(super) struct LlmProfiles {
    /// Of models that `lb_mapping_rule` has.
    by_model: HashMap<Box<str>, Profile>,
    others: Profile,
}

// === impl LlmProfiles ===

impl LlmProfiles {
    /// With the filters of `default`.
    pub(super) fn new(filter: &LlmFilter, default: &Profile) -> Self {
        let make = |balance: &Balance| make_profile(filter.algorithm, balance, default);
        let by_model = filter.balances();
        Self {
            by_model: by_model
                .map(|(model, balance)| (model.into(), make(balance)))
                .collect(),
            others: make(filter.default_balance()),
        }
    }

    /// Of the model whose rules matched; absent: no rule is for the request.
    pub(super) fn of(&self, model: Option<&str>) -> &Profile {
        let own = model.and_then(|model| self.by_model.get(model));
        own.unwrap_or(&self.others)
    }
}

fn make_profile(algorithm: Algorithm, balance: &Balance, default: &Profile) -> Profile {
    let (scorer, kind) = match algorithm {
        Algorithm::InferenceLb => (
            Some(Scorer::InferenceLb {
                params: balance.params(),
                charge: balance.prefill_charge,
            }),
            PickerKind::TopPercent {
                percent: balance.candidate_percent,
            },
        ),
        Algorithm::Random => (None, PickerKind::Random),
        Algorithm::RoundRobin => (None, PickerKind::RoundRobin),
    };
    let scorer = scorer.map(|scorer| WeightedScorer {
        scorer,
        weight: 1.0,
    });
    Profile {
        filters: default.filters.clone(),
        scorers: scorer.into_iter().collect(),
        picker: Picker {
            kind,
            max_endpoints: default.picker.max_endpoints,
        },
        freshness: default.freshness,
    }
}
