//! Flags of LoRA adapters.

use std::num::NonZeroUsize;

use clap::Args;

use crate::models::LoraModule;

/// LoRA adapters.
#[derive(Clone, Debug, Args)]
pub(super) struct LoraArgs {
    /// Adapters to load at the start, written NAME, NAME=PATH or as JSON {"name": .., "path": ..}; repeated or
    /// one after the other
    #[arg(long, env = "LORA_MODULES", value_name = "ADAPTER", num_args = 1..)]
    pub(super) lora_modules: Vec<LoraModule>,

    /// Adapters that running requests can use at the same time; others wait [default: 1]
    #[arg(long, env = "MAX_LORAS", value_name = "ADAPTERS")]
    pub(super) max_loras: Option<NonZeroUsize>,
}
