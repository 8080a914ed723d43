//! What a prompt costs at a worker.

use crate::{index::Overlap, loads::Load};

/// How parts of the cost count, in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// A block that is cached, against one that is computed.
    pub overlap_credit: f64,
    /// A block that is to be computed, of this prompt and of those before it.
    pub prefill: f64,
    /// A block that is held while answers are made.
    pub decode: f64,
    /// A request, in ids.
    pub request_tokens: f64,
    /// How fast cached blocks lose their credit where more is to be computed than elsewhere.
    pub overlap_decay: f64,
    /// What is computed never counts as less than nothing.
    pub is_clamped: bool,
}

/// The parts of a cost, in blocks, weighted. Their sum is the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// What is to be computed, less what is cached.
    pub prefill: f64,
    /// What is held while answers are made.
    pub decode: f64,
    /// The requests there.
    pub requests: f64,
}

/// Known weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Recomputing delays those behind too, and a resident block costs less than a computed one.
    #[default]
    Isthmus,
    /// As Dynamo's router.
    Reference,
}

/// A prompt and a worker, as far as the cost goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Ids of the prompt.
    pub ids: u32,
    /// Ids of a block.
    pub block_size: usize,
    /// What the worker has of the prompt.
    pub overlap: Overlap,
    /// What it has to do.
    pub load: Load,
    /// Blocks of the prompt that none of its requests has.
    pub new_blocks: u32,
    /// Ids that are to be computed at the candidate where these are least.
    pub least_prefill_tokens: u64,
}

/// The name is none of the presets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no preset: use isthmus or reference")]
pub struct UnknownPreset(String);

/// What the host's memory and a disk are worth against the accelerator's memory.
const HOST: f64 = 0.75;
const DISK: f64 = 0.25;

// === impl Preset ===

impl Preset {
    /// Its weights.
    pub const fn weights(self) -> Weights {
        match self {
            Self::Isthmus => Weights {
                overlap_credit: 2.0,
                prefill: 1.0,
                decode: 0.25,
                request_tokens: 1024.0,
                overlap_decay: 0.0,
                is_clamped: false,
            },
            Self::Reference => Weights {
                overlap_credit: 1.0,
                prefill: 1.0,
                decode: 1.0,
                request_tokens: 0.0,
                overlap_decay: 0.0,
                is_clamped: true,
            },
        }
    }
}

impl std::str::FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "isthmus" => Ok(Self::Isthmus),
            "reference" => Ok(Self::Reference),
            _ => Err(UnknownPreset(name.to_owned())),
        }
    }
}

// === impl Weights ===

impl Weights {
    /// In blocks; the lower the better.
    pub fn cost(&self, facts: &Facts) -> f64 {
        self.terms(facts).sum()
    }

    /// What the cost is made of.
    pub fn terms(&self, facts: &Facts) -> Terms {
        let Facts {
            ids,
            block_size,
            overlap,
            load,
            new_blocks,
            least_prefill_tokens,
        } = *facts;
        let block = block_size.max(1) as f64;
        let blocks = (f64::from(ids) / block).max(1.0);
        let excess = load.prefill_tokens.saturating_sub(least_prefill_tokens) as f64 / block;
        let decay = 1.0 / (1.0 + self.overlap_decay * excess / blocks);
        let cached = decay * f64::from(overlap.gpu)
            + HOST * f64::from(overlap.host)
            + DISK * f64::from(overlap.disk);
        let all = (load.prefill_tokens as f64 + f64::from(ids)) / block;
        let mut prefill = all - self.overlap_credit * cached;
        if self.is_clamped {
            prefill = prefill.max(0.0);
        }
        let resident = load.decode_blocks as f64 + f64::from(new_blocks);
        Terms {
            prefill: self.prefill * prefill,
            decode: self.decode * resident,
            requests: self.request_tokens / block * f64::from(load.requests),
        }
    }
}

// === impl Terms ===

impl Terms {
    /// The cost.
    pub fn sum(self) -> f64 {
        self.prefill + self.decode + self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten blocks at workers with these overlaps, and these blocks with the prompt's.
    fn costs(preset: Preset) -> [f64; 3] {
        [(2, 10), (5, 5), (8, 9)].map(|(gpu, resident)| {
            preset.weights().cost(&Facts {
                ids: 640,
                block_size: 64,
                overlap: Overlap {
                    gpu,
                    ..Overlap::default()
                },
                new_blocks: resident,
                ..Facts::default()
            })
        })
    }

    fn same(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn the_presets_give_what_the_specification_works_out() {
        for (preset, expected) in [
            (Preset::Reference, [18.0, 10.0, 11.0]),
            (Preset::Isthmus, [8.5, 1.25, -3.75]),
        ] {
            let costs = costs(preset);
            let all = costs.iter().zip(expected).all(|(one, two)| same(*one, two));
            assert!(all, "{preset:?}: {costs:?}");
        }
    }

    #[test]
    fn requests_tiers_and_excess_count() {
        let mut facts = Facts {
            ids: 640,
            block_size: 64,
            overlap: Overlap {
                gpu: 4,
                host: 2,
                disk: 4,
            },
            load: Load {
                prefill_tokens: 1280,
                decode_blocks: 8,
                requests: 3,
            },
            new_blocks: 2,
            least_prefill_tokens: 640,
        };
        let weights = Preset::Isthmus.weights();
        // 20 + 10 - 2 (4 + 1.5 + 1) + 0.25 x 10 + 16 x 3
        assert!(same(weights.cost(&facts), 67.5));
        // ten blocks more than elsewhere, for a prompt of ten: half of the credit in the accelerator's memory
        let weights = Weights {
            overlap_decay: 1.0,
            ..weights
        };
        assert!(same(weights.cost(&facts), 71.5));
        facts.load = Load::default();
        facts.overlap.gpu = 100;
        let weights = Weights {
            decode: 0.0,
            ..Preset::Reference.weights()
        };
        assert!(same(weights.cost(&facts), 0.0));
    }

    #[test]
    fn presets_are_known_by_name() {
        assert_eq!("isthmus".parse(), Ok(Preset::default()));
        assert_eq!("reference".parse(), Ok(Preset::Reference));
        let unknown = UnknownPreset("dynamo".to_owned());
        assert_eq!("dynamo".parse::<Preset>(), Err(unknown));
    }
}
