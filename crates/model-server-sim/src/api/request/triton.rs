//! The body of Triton's generate extension.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::{COMPLETIONS_MAX_TOKENS, Input, Keeping, Limits, Request, invalid, max_tokens};
use crate::{
    api::{error::ApiError, object::Object, prompt::Prompt, request::brief},
    args::{EngineKind, StreamOutput},
    models::Model,
};

/// How an answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an input of its own")]
pub(crate) struct TritonShape {
    /// The backend is TensorRT-LLM, else vLLM.
    pub(crate) is_tensorrt_llm: bool,
    pub(crate) stream_output: StreamOutput,
    /// A stream has one event only.
    pub(crate) one_event: bool,
    /// The prompt stands before the text.
    pub(crate) repeats_input: bool,
    pub(crate) finish_reason: bool,
    pub(crate) num_input_tokens: bool,
    pub(crate) num_output_tokens: bool,
}

/// What is called, and what it simulates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TritonCall<'a> {
    /// Of the path.
    pub(crate) model: &'a str,
    /// `generate_stream`, else `generate`.
    pub(crate) streams: bool,
    pub(crate) engine: EngineKind,
    pub(crate) stream_output: StreamOutput,
}

#[derive(Debug, Deserialize)]
struct RawGenerate {
    #[serde(flatten)]
    inputs: RawInputs,
    /// Inputs may stand here too.
    parameters: Option<Object<RawInputs>>,
}

/// The inputs of both backends that count; others are ignored.
#[derive(Debug, Default, Deserialize)]
struct RawInputs {
    text_input: Option<String>,
    stream: Option<bool>,
    exclude_input_in_output: Option<bool>,
    sampling_parameters: Option<String>,
    return_finish_reason: Option<bool>,
    return_num_input_tokens: Option<bool>,
    return_num_output_tokens: Option<bool>,
    max_tokens: Option<i64>,
    seed: Option<i64>,
    random_seed: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
struct RawVllmSampling {
    max_tokens: Option<i64>,
    seed: Option<i64>,
    lora_name: Option<String>,
}

// === impl Request ===

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// [`ApiError`] as for [`Request::parse`].
    pub(crate) fn parse_triton(
        call: TritonCall<'_>,
        body: &[u8],
        limits: &Limits<'_>,
    ) -> Result<(Self, TritonShape), ApiError> {
        let unknown = || ApiError::UnknownModel {
            model: brief(call.model),
            served: brief(&limits.models.served().join(", ")),
        };
        let mut model = limits.models.resolve(call.model).ok_or_else(unknown)?;
        let Object(raw): Object<RawGenerate> = serde_json::from_slice(body)
            .map_err(|error| ApiError::InvalidJson(brief(&error.to_string())))?;
        let inputs = raw.inputs.or(raw.parameters.map(|Object(inputs)| inputs));
        let text = inputs.text_input.ok_or(ApiError::MissingField {
            field: "text_input",
            expected: "send the prompt as a string",
        })?;
        let stream = inputs.stream.unwrap_or(false);
        if stream && !call.streams {
            let message = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses";
            return Err(invalid("stream", message));
        }
        let is_tensorrt_llm = call.engine == EngineKind::TritonTensorrtLlm;
        let repeats_input = !inputs.exclude_input_in_output.unwrap_or(stream);
        if repeats_input && stream && !is_tensorrt_llm {
            let message = "when streaming, false is not allowed";
            return Err(invalid("exclude_input_in_output", message));
        }
        let (asked, seed) = if is_tensorrt_llm {
            let asked = inputs.max_tokens.ok_or(ApiError::MissingField {
                field: "max_tokens",
                expected: "the TensorRT-LLM backend wants a limit",
            })?;
            (Some(asked), inputs.random_seed.or(inputs.seed))
        } else {
            let sampling = sampling(inputs.sampling_parameters.as_deref())?;
            model = adapted(model, sampling.lora_name.as_deref(), limits)?;
            let asked = sampling.max_tokens.or(inputs.max_tokens);
            (asked, sampling.seed.or(inputs.seed))
        };
        let asked = asked.map(max_tokens).transpose()?;
        let input = Input {
            model,
            prompt: Prompt::of_text("text_input", text)?,
            cache_salt: String::new(),
        };
        let room = input.room(limits, asked.map_or(1, NonZeroU32::get))?;
        let default = NonZeroU32::new(COMPLETIONS_MAX_TOKENS).map_or(room, |limit| limit.min(room));
        let request = Self {
            input,
            max_tokens: asked.unwrap_or(default),
            max_tokens_given: true,
            seed: seed.map_or(0, i64::cast_unsigned),
            stream: call.streams.then_some(false),
            keeping: Keeping::default(),
        };
        let asked = |extra: Option<bool>| extra.unwrap_or(false);
        let shape = TritonShape {
            is_tensorrt_llm,
            stream_output: call.stream_output,
            one_event: !stream,
            repeats_input,
            finish_reason: asked(inputs.return_finish_reason),
            num_input_tokens: asked(inputs.return_num_input_tokens),
            num_output_tokens: asked(inputs.return_num_output_tokens),
        };
        Ok((request, shape))
    }
}

// === impl RawInputs ===

impl RawInputs {
    /// These, and those others that are not among them.
    fn or(self, others: Option<Self>) -> Self {
        let others = others.unwrap_or_default();
        Self {
            text_input: self.text_input.or(others.text_input),
            stream: self.stream.or(others.stream),
            exclude_input_in_output: self
                .exclude_input_in_output
                .or(others.exclude_input_in_output),
            sampling_parameters: self.sampling_parameters.or(others.sampling_parameters),
            return_finish_reason: self.return_finish_reason.or(others.return_finish_reason),
            return_num_input_tokens: self
                .return_num_input_tokens
                .or(others.return_num_input_tokens),
            return_num_output_tokens: self
                .return_num_output_tokens
                .or(others.return_num_output_tokens),
            max_tokens: self.max_tokens.or(others.max_tokens),
            seed: self.seed.or(others.seed),
            random_seed: self.random_seed.or(others.random_seed),
        }
    }
}

/// The JSON in the string of the vLLM backend.
fn sampling(text: Option<&str>) -> Result<RawVllmSampling, ApiError> {
    let Some(text) = text else {
        return Ok(RawVllmSampling::default());
    };
    let Object(sampling) = serde_json::from_str(text)
        .map_err(|error| invalid("sampling_parameters", &brief(&error.to_string())))?;
    Ok(sampling)
}

fn adapted(model: Model, adapter: Option<&str>, limits: &Limits<'_>) -> Result<Model, ApiError> {
    let Some(name) = adapter else {
        return Ok(model);
    };
    let adapter = limits.models.resolve(name);
    let adapter = adapter.and_then(|adapter| adapter.adapter);
    let adapter = adapter.ok_or_else(|| invalid("lora_name", "there is no such adapter"))?;
    Ok(Model {
        adapter: Some(adapter),
        ..model
    })
}
