//! What Triton is sent.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::Dialect;
use crate::{
    error::Refusal,
    openai::{Asked, Sampling},
    transcoder::Target,
};

/// Bytes that a segment of a path may not have as they are: all but the unreserved ones of RFC 3986.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// For the vLLM backend.
#[derive(Serialize)]
struct VllmBody<'a> {
    text_input: &'a str,
    stream: bool,
    exclude_input_in_output: bool,
    /// JSON in a string: Triton's inputs are no objects.
    sampling_parameters: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_finish_reason: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_num_input_tokens: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_num_output_tokens: Option<bool>,
}

#[derive(Serialize)]
struct VllmSampling<'a> {
    #[serde(flatten)]
    sampling: &'a Sampling,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora_name: Option<&'a str>,
}

/// For the TensorRT-LLM backend.
#[derive(Serialize)]
struct TrtLlmBody<'a> {
    text_input: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclude_input_in_output: Option<bool>,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f64>,
    /// The input of current models.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    /// The same input of older models. Triton takes the one that is no input as a parameter, which has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    random_seed: Option<i64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stop_words: &'a [String],
    return_num_input_tokens: bool,
    return_num_output_tokens: bool,
}

/// Where a model generates.
pub(super) fn path(model: &str, stream: bool) -> String {
    let verb = if stream {
        "generate_stream"
    } else {
        "generate"
    };
    format!("/v2/models/{}/{verb}", utf8_percent_encode(model, SEGMENT))
}

/// # Errors
/// [`Refusal`] when the backend has no terms for a part of the request.
pub(super) fn body(
    dialect: Dialect,
    asked: &Asked,
    input: &str,
    target: &Target<'_>,
) -> Result<Vec<u8>, Refusal> {
    match dialect {
        Dialect::Vllm { extra_outputs } => {
            let sampling = VllmSampling {
                sampling: &asked.sampling,
                lora_name: target.adapter,
            };
            let extra = extra_outputs.then_some(true);
            let body = VllmBody {
                text_input: input,
                stream: asked.stream,
                exclude_input_in_output: true,
                sampling_parameters: serde_json::to_string(&sampling).map_err(|_| unwritable())?,
                return_finish_reason: extra,
                return_num_input_tokens: extra,
                return_num_output_tokens: extra,
            };
            serde_json::to_vec(&body).map_err(|_| unwritable())
        }
        Dialect::TrtLlm {
            default_max_tokens,
            repeats_prompt,
            ..
        } => {
            if target.adapter.is_some() {
                let message = "model: the model server chooses no adapter by its name";
                return Err(Refusal::new("model", message));
            }
            let sampling = &asked.sampling;
            if sampling.min_p.is_some_and(|share| share > 0.0) {
                let message = "min_p: the model server has no such thing: leave it out";
                return Err(Refusal::new("min_p", message));
            }
            let body = TrtLlmBody {
                text_input: input,
                stream: asked.stream,
                exclude_input_in_output: (!repeats_prompt).then_some(true),
                max_tokens: sampling.max_tokens.unwrap_or(default_max_tokens),
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                repetition_penalty: sampling.repetition_penalty,
                seed: sampling.seed,
                random_seed: sampling.seed,
                stop_words: &sampling.stop,
                return_num_input_tokens: true,
                return_num_output_tokens: true,
            };
            serde_json::to_vec(&body).map_err(|_| unwritable())
        }
    }
}

fn unwritable() -> Refusal {
    Refusal {
        message: "the request cannot be written as JSON".to_owned(),
        param: None,
    }
}
