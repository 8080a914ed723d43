//! How endpoints are filtered and scored, and which is taken.

use crate::{
    endpoint::Labels, filter::Filter, inference_lb::PrefillCharge, load::Freshness, scorer::Scorer,
};

/// A scheduling profile: plain data, made from the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Applied in this order.
    pub filters: Vec<Filter>,
    /// Each score is clamped to 0..1, multiplied by its weight, and summed.
    pub scorers: Vec<WeightedScorer>,
    /// Chooses by the sums.
    pub picker: Picker,
    /// How long scraped values count.
    pub freshness: Freshness,
}

/// A scorer and what its score counts for.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedScorer {
    /// The scorer.
    pub scorer: Scorer,
    /// Its factor.
    pub weight: f64,
}

/// Chooses among scored candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picker {
    /// How.
    pub kind: PickerKind,
    /// `maxNumOfEndpoints`: length of the list for proxies that do not say how many they can try.
    pub max_endpoints: u8,
}

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickerKind {
    /// `max-score-picker`: the best; ties go to the fewest own requests in flight, then to chance.
    MaxScore,
    /// `weighted-random-picker`: by chance, in proportion to the scores; those with score 0 last.
    WeightedRandom,
    /// `random-picker`: by chance alone.
    Random,
    /// `top-percent-picker`: by chance among the best, as [`crate::top_percent`] has it; a list goes on by score.
    TopPercent {
        /// Share of the candidates that are the best, 0 to 100; at least one is.
        percent: u32,
    },
    /// `round-robin-picker`: one after the other in the order of their addresses, by [`crate::Request::turn`].
    RoundRobin,
}

// === impl Profile ===

impl Profile {
    /// Whether a scorer asks for the blocks that endpoints have cached.
    pub fn uses_prefix(&self) -> bool {
        self.any(|scorer| {
            matches!(
                scorer,
                Scorer::PrefixCache { .. } | Scorer::TokenLoad { .. }
            )
        })
    }

    /// Whether pods with these labels have the roles that its filters require.
    pub(crate) fn admits_role(&self, labels: &Labels) -> bool {
        self.filters.iter().all(|filter| filter.admits_role(labels))
    }

    /// Whether a filter requires a role.
    pub fn has_roles(&self) -> bool {
        let mut filters = self.filters.iter();
        filters.any(|filter| matches!(filter, Filter::Role(_)))
    }

    /// Whether a scorer asks for the chunks of prompts.
    pub fn uses_chunks(&self) -> bool {
        self.any(|scorer| matches!(scorer, Scorer::InferenceLb { .. }))
    }

    /// The prompt cache counts for nothing to `inference-lb-scorer`.
    pub fn ignore_caches(&mut self) {
        for weighted in &mut self.scorers {
            if let Scorer::InferenceLb { params, .. } = &mut weighted.scorer {
                params.cache_weight = 0.0;
            }
        }
    }

    /// What a request adds to its endpoint's prefill, as `inference-lb-scorer` has it.
    pub fn prefill_charge(&self) -> PrefillCharge {
        let mut scorers = self.scorers.iter();
        let charge = scorers.find_map(|weighted| match weighted.scorer {
            Scorer::InferenceLb { charge, .. } => Some(charge),
            _ => None,
        });
        charge.unwrap_or_default()
    }

    /// Whether a scorer asks for LoRA adapters.
    pub fn uses_adapters(&self) -> bool {
        self.any(|scorer| matches!(scorer, Scorer::LoraAffinity))
    }

    fn any(&self, is: impl Fn(&Scorer) -> bool) -> bool {
        self.scorers.iter().any(|weighted| is(&weighted.scorer))
    }
}

impl Default for Profile {
    /// The ecosystem's default: queue 2, KV cache 2, prefix 3.
    fn default() -> Self {
        let weigh = |scorer, weight| WeightedScorer { scorer, weight };
        Self {
            filters: Vec::new(),
            scorers: vec![
                weigh(Scorer::QUEUE, 2.0),
                weigh(Scorer::KvCacheUtilization, 2.0),
                weigh(Scorer::PREFIX_CACHE, 3.0),
            ],
            picker: Picker::default(),
            freshness: Freshness::default(),
        }
    }
}

// === impl PickerKind ===

impl PickerKind {
    /// Its type in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxScore => "max-score-picker",
            Self::WeightedRandom => "weighted-random-picker",
            Self::Random => "random-picker",
            Self::TopPercent { .. } => "top-percent-picker",
            Self::RoundRobin => "round-robin-picker",
        }
    }
}

// === impl Picker ===

impl Default for Picker {
    /// The best one.
    fn default() -> Self {
        Self {
            kind: PickerKind::MaxScore,
            max_endpoints: 1,
        }
    }
}
