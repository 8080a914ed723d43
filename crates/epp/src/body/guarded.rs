//! Members of a request that are not its client's to give, although engines read them.
//!
//! [`Raw::guarded`] is the one table of them. The tests hold it against the members that engines' own protocol classes
//! have, so that a new one is not overlooked.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use super::{Api, Raw, place};

/// The places of members that may not be passed on, and the kind of each.
pub(crate) type GuardedPlaces = SmallVec<[(Guarded, Range<usize>); 1]>;

/// What a guarded member would allow a client to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// Have an engine fetch a KV cache from, or keep it for, a server of the client's choice: these members are set by
    /// what routes disaggregated prefill and decode.
    Transfer,
    /// Give the prompt as token ids or embeddings, beside the text that the external stage reads.
    Prompt,
}

/// The path whose sampling parameters may have arguments of the engine.
pub(crate) const GENERATE: &str = "inference/v1/generate";

// === impl Raw ===

impl Raw<'_> {
    /// The places of all members that are set and not `null`, which engines read as "not set".
    pub(super) fn guarded(&self, api: Api, text: &str) -> GuardedPlaces {
        use Guarded::{Prompt, Transfer};
        let nested = self.sampling_params.filter(|_| api.suffix == GENERATE);
        let table = [
            // vLLM
            (Transfer, self.kv_transfer_params),
            (Transfer, self.ec_transfer_params),
            (Transfer, nested.and_then(in_sampling_params)),
            (Transfer, self.vllm_xargs.and_then(in_engine_arguments)),
            (Prompt, self.kv_transfer_params.and_then(in_transfer_params)),
            (Prompt, self.prompt_embeds),
            // SGLang
            (Transfer, self.bootstrap_host),
            (Transfer, self.bootstrap_port),
            (Transfer, self.bootstrap_room),
            (Transfer, self.disagg_prefill_dp_rank),
            (Prompt, self.input_ids),
            (Prompt, self.input_embeds),
            (Prompt, self.embed_overrides),
            // TensorRT-LLM
            (Transfer, self.disaggregated_params),
            (Prompt, self.prompt_token_ids),
        ];
        let given = table
            .into_iter()
            .filter_map(|(guarded, json)| Some((guarded, place(json?, text))));
        given.collect()
    }
}

/// The part of vLLM's `sampling_params` that has transfer parameters: `extra_args`, where the engine looks for them.
fn in_sampling_params(sampling: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Sampling<'a> {
        #[serde(borrow)]
        extra_args: Option<&'a RawValue>,
    }
    // What cannot be read or has a key twice may be read in another way by the engine: it goes whole.
    let Ok(Sampling { extra_args }) = serde_json::from_str(sampling.get()) else {
        return Some(sampling);
    };
    extra_args.and_then(in_engine_arguments)
}

/// Arguments of the engine, if they have transfer parameters. vLLM makes `extra_args` of a request's `vllm_xargs`, too.
fn in_engine_arguments(extra: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Extra<'a> {
        #[serde(borrow)]
        kv_transfer_params: Option<&'a RawValue>,
        #[serde(borrow)]
        ec_transfer_params: Option<&'a RawValue>,
    }
    match serde_json::from_str(extra.get()) {
        Ok(Extra {
            kv_transfer_params: None,
            ec_transfer_params: None,
        }) => None,
        Ok(Extra { .. }) | Err(_) => Some(extra),
    }
}

/// The part of vLLM's transfer parameters that is a prompt, for a server that only decodes; or all of them, if they cannot be
/// read.
fn in_transfer_params(transfer: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        prompt_token_ids: Option<&'a RawValue>,
    }
    match serde_json::from_str(transfer.get()) {
        Ok(Params { prompt_token_ids }) => prompt_token_ids,
        Err(_) => Some(transfer),
    }
}

#[cfg(test)]
mod tests;
