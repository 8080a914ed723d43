//! A request body, read and checked: pure.

mod triton;

use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use xxhash_rust::xxh64::xxh64;

use super::{
    answer::Endpoint,
    error::ApiError,
    object::Object,
    prompt::{Prompt, RawContent, RawInput, RawMessage, RawPrompt},
    responses::Responses,
};
use crate::{
    engine::{BlockHash, Content, Finish, PrefixSeed, TOKEN_BYTES, prefix_blocks},
    models::{Model, Models},
    server::ApiServer,
    text::token_ids,
};

pub(crate) use triton::{TritonCall, TritonShape};

/// `max_tokens` of `/v1/completions` when the request says nothing, as in the OpenAI API.
const COMPLETIONS_MAX_TOKENS: u32 = 16;

/// Numbers of an embedding when the request says nothing: those of a small model.
const DIMENSIONS: u32 = 384;

/// The most numbers of an embedding; those of the largest models.
const MAX_DIMENSIONS: u32 = 8192;

/// Bytes of a client's value, or of a message that may repeat one, that the client is told.
const MAX_MESSAGE: usize = 200;

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) models: &'a Models,
    /// Prompt and output together, in tokens.
    pub(crate) max_model_len: NonZeroU32,
    /// The responses that requests may go on from.
    pub(crate) responses: &'a Responses,
}

/// A valid request for text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    input: Input,
    max_tokens: NonZeroU32,
    /// The request itself set `max_tokens`, or its endpoint has a default for it.
    max_tokens_given: bool,
    seed: u64,
    stream: Option<IncludeUsage>,
    /// Of `/v1/responses`.
    keeping: Keeping,
}

/// What becomes of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keeping {
    /// Who keeps it.
    pub(crate) by: ApiServer,
    /// Whether clients can ask for it again.
    pub(crate) is_stored: bool,
    /// Its client gets it later.
    pub(crate) is_in_background: bool,
}

/// A model and what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) model: Model,
    pub(crate) prompt: Prompt,
    cache_salt: String,
}

/// A valid request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmbeddingRequest {
    /// One per input; never empty.
    pub(crate) inputs: Vec<Input>,
    pub(crate) dimensions: u32,
    /// As base64 of little-endian 32-bit numbers, which is what the official clients ask for.
    pub(crate) base64: bool,
}

/// Whether a stream ends with a usage chunk.
pub(crate) type IncludeUsage = bool;

/// What is read of all kinds of bodies; other fields are ignored, a field twice is an error.
#[derive(Debug, Deserialize)]
struct RawRequest {
    model: Option<String>,
    messages: Option<Vec<Object<RawMessage>>>,
    system: Option<RawContent>,
    prompt: Option<RawPrompt>,
    input: Option<RawInput>,
    instructions: Option<String>,
    /// Of another kind it may be anything: only one path reads it from here.
    token_ids: Option<Box<RawValue>>,
    tools: Option<Value>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    sampling_params: Option<Object<RawSampling>>,
    stream: Option<bool>,
    stream_options: Option<Object<RawStreamOptions>>,
    seed: Option<i64>,
    n: Option<i64>,
    cache_salt: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    background: Option<bool>,
    dimensions: Option<i64>,
    encoding_format: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RawStreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct RawSampling {
    max_tokens: Option<i64>,
    seed: Option<i64>,
}

// === impl Request ===

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// [`ApiError`] when it is not JSON, lacks a field, names an unknown model or asks for too much.
    pub(crate) fn parse(
        endpoint: Endpoint,
        body: &[u8],
        limits: &Limits<'_>,
    ) -> Result<Self, ApiError> {
        Self::parse_with(endpoint, body, limits, None)
    }

    /// Reads a body; `ids` are what the model reads in place of its text.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn parse_with(
        endpoint: Endpoint,
        body: &[u8],
        limits: &Limits<'_>,
        ids: Option<&[u32]>,
    ) -> Result<Self, ApiError> {
        let mut raw = RawRequest::read(body)?;
        let model = raw.model(endpoint, limits.models)?;
        if raw.n.is_some_and(|choices| choices != 1) {
            return Err(invalid("n", "only 1 choice per request is simulated"));
        }
        let stream = raw.stream.unwrap_or(false);
        let keeping = match endpoint {
            Endpoint::Responses => raw.keeping(limits.responses)?,
            _ => Keeping::default(),
        };
        let previous = raw.previous_response_id.take();
        let previous = previous.filter(|_| endpoint == Endpoint::Responses);
        let previous = previous.map(|id| limits.responses.conversation(&id));
        let previous = previous.transpose()?.unwrap_or_default();
        if raw.stream_options.is_some() && !stream {
            return Err(invalid(
                "stream_options",
                "only allowed with \"stream\": true",
            ));
        }
        let usage = raw
            .stream_options
            .take()
            .and_then(|Object(options)| options.include_usage)
            .unwrap_or(false);
        let sampling = raw.sampling_params.take().map(|Object(sampling)| sampling);
        let sampling_seed = sampling.as_ref().and_then(|sampling| sampling.seed);
        // Only mixed into a hash: any bits will do.
        let seed = raw.seed.or(sampling_seed).map_or(0, i64::cast_unsigned);
        let default = NonZeroU32::new(COMPLETIONS_MAX_TOKENS);
        let (asked, default) = match endpoint {
            Endpoint::Chat => (raw.max_completion_tokens.or(raw.max_tokens), None),
            Endpoint::Completions => (raw.max_tokens, default),
            Endpoint::Responses => (raw.max_output_tokens, None),
            Endpoint::Messages => {
                let asked = raw.max_tokens.ok_or(ApiError::MissingField {
                    field: "max_tokens",
                    expected: "the Anthropic API wants a limit",
                })?;
                (Some(asked), None)
            }
            Endpoint::Generate | Endpoint::Triton(_) => {
                (sampling.and_then(|sampling| sampling.max_tokens), default)
            }
        };
        let asked = asked.map(max_tokens).transpose()?;
        let cache_salt = raw.cache_salt.take().unwrap_or_default();
        let mut prompt = raw.prompt(endpoint)?;
        if let Some(ids) = ids {
            prompt.replace_ids(ids);
        }
        prompt.go_on_from(previous);
        let input = Input {
            model,
            prompt,
            cache_salt,
        };
        let room = input.room(limits, asked.map_or(1, NonZeroU32::get))?;
        let default = default.map(|default| default.min(room));
        Ok(Self {
            input,
            max_tokens: asked.or(default).unwrap_or(room),
            max_tokens_given: asked.or(default).is_some(),
            seed,
            stream: stream.then_some(usage),
            keeping,
        })
    }

    /// How long made-up text is, and how it ends: exactly `max_tokens` if given (a load test asks for
    /// what it wants to get), else 1 to `usual` tokens, drawn from `seed`.
    pub(crate) fn output_length(&self, seed: u64, usual: NonZeroU32) -> (NonZeroU32, Finish) {
        if self.max_tokens_given {
            return (self.max_tokens, Finish::Length);
        }
        let draw = xxh64(b"length", seed) % u64::from(usual.get());
        let drawn = u32::try_from(draw).map_or(usual, |draw| NonZeroU32::MIN.saturating_add(draw));
        if drawn > self.max_tokens {
            (self.max_tokens, Finish::Length)
        } else {
            (drawn, Finish::Stop)
        }
    }

    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    /// The most tokens that may be made.
    pub(crate) fn max_tokens(&self) -> NonZeroU32 {
        self.max_tokens
    }

    /// The request's own seed; 0 if it has none.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn keeping(&self) -> Keeping {
        self.keeping
    }

    /// `None`: one JSON document is wanted, no stream.
    pub(crate) fn include_usage(&self) -> Option<IncludeUsage> {
        self.stream
    }
}

// === impl Input ===

impl Input {
    /// Reads a body of which only the prompt counts, of any length.
    ///
    /// # Errors
    /// [`ApiError`] as for [`Request::parse`].
    pub(crate) fn parse(
        endpoint: Endpoint,
        body: &[u8],
        models: &Models,
    ) -> Result<Self, ApiError> {
        let mut raw = RawRequest::read(body)?;
        Ok(Self {
            model: raw.model(endpoint, models)?,
            cache_salt: raw.cache_salt.take().unwrap_or_default(),
            prompt: raw.prompt(endpoint)?,
        })
    }

    /// As [`Input::parse`], for a path that takes messages or a prompt.
    ///
    /// # Errors
    /// [`ApiError`] as for [`Request::parse`].
    pub(crate) fn parse_either(body: &[u8], models: &Models) -> Result<Self, ApiError> {
        let raw = RawRequest::read(body)?;
        let endpoint = if raw.messages.is_some() {
            Endpoint::Chat
        } else {
            Endpoint::Completions
        };
        Ok(Self {
            model: raw.model(endpoint, models)?,
            cache_salt: String::new(),
            prompt: raw.prompt(endpoint)?,
        })
    }

    /// The full blocks of the prompt, for the prefix cache of the model at `root`.
    pub(crate) fn prefix(&self, root: &str, block_tokens: NonZeroU32) -> Vec<BlockHash> {
        let seed = PrefixSeed {
            model: root,
            adapter: self.model.adapter.as_deref().unwrap_or_default(),
            salt: &self.cache_salt,
        };
        prefix_blocks(seed, self.prompt.bytes(), block_tokens.get())
    }

    /// What those blocks are made of.
    pub(crate) fn content(&self, block_tokens: NonZeroU32) -> Content {
        let mut ids = token_ids(self.prompt.bytes());
        let block = usize::try_from(block_tokens.get()).unwrap_or(usize::MAX);
        // a token that is short is of no full block
        let full = self.prompt.bytes().len() / TOKEN_BYTES as usize / block * block;
        ids.truncate(full);
        Content {
            ids,
            salt: self.cache_salt.clone(),
        }
    }

    /// Tokens that the model's length leaves for the output.
    fn room(&self, limits: &Limits<'_>, wanted: u32) -> Result<NonZeroU32, ApiError> {
        let limit = limits.max_model_len.get();
        let prompt = self.prompt.tokens();
        let room = limit.checked_sub(prompt).and_then(NonZeroU32::new);
        room.filter(|room| room.get() >= wanted)
            .ok_or(ApiError::ContextTooLong {
                limit,
                prompt,
                output: wanted,
            })
    }
}

// === impl EmbeddingRequest ===

impl EmbeddingRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`ApiError`] as for [`Request::parse`].
    pub(crate) fn parse(body: &[u8], limits: &Limits<'_>) -> Result<Self, ApiError> {
        let raw = RawRequest::read(body)?;
        // Any endpoint that needs a model.
        let model = raw.model(Endpoint::Completions, limits.models)?;
        let base64 = match raw.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(invalid("encoding_format", "must be float or base64")),
        };
        let dimensions = raw.dimensions.map_or(Some(DIMENSIONS), |asked| {
            let asked = u32::try_from(asked).ok();
            asked.filter(|asked| (1..=MAX_DIMENSIONS).contains(asked))
        });
        let dimensions =
            dimensions.ok_or_else(|| invalid("dimensions", "must be from 1 to 8192"))?;
        let input = raw.input.ok_or(ApiError::MissingField {
            field: "input",
            expected: "send a string or a list of strings",
        })?;
        let cache_salt = raw.cache_salt.unwrap_or_default();
        let inputs = Prompt::of_inputs(input)?
            .into_iter()
            .map(|prompt| {
                let input = Input {
                    model: model.clone(),
                    prompt,
                    cache_salt: cache_salt.clone(),
                };
                let (prompt, limit) = (input.prompt.tokens(), limits.max_model_len.get());
                if prompt > limit {
                    return Err(ApiError::ContextTooLong {
                        limit,
                        prompt,
                        output: 0,
                    });
                }
                Ok(input)
            })
            .collect::<Result<_, ApiError>>()?;
        Ok(Self {
            inputs,
            dimensions,
            base64,
        })
    }
}

// === impl RawRequest ===

impl RawRequest {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let Object(raw) = serde_json::from_slice(body)
            .map_err(|error| ApiError::InvalidJson(brief(&error.to_string())))?;
        Ok(raw)
    }

    fn model(&self, endpoint: Endpoint, models: &Models) -> Result<Model, ApiError> {
        let Some(name) = &self.model else {
            let default = models
                .default_model()
                .filter(|_| endpoint == Endpoint::Generate);
            return default.ok_or(ApiError::MissingField {
                field: "model",
                expected: "name the model to use, see /v1/models",
            });
        };
        models.resolve(name).ok_or_else(|| ApiError::UnknownModel {
            model: brief(name),
            served: brief(&models.served().join(", ")),
        })
    }

    /// As in vLLM, `store` has no effect where nothing is kept.
    fn keeping(&self, responses: &Responses) -> Result<Keeping, ApiError> {
        let is_stored = self.store.unwrap_or(true) && responses.are_kept();
        let is_in_background = self.background.unwrap_or(false);
        if is_in_background && !is_stored {
            return Err(invalid(
                "background",
                "only a response that is kept can come later: --responses-store keeps responses, and \"store\" must not be false",
            ));
        }
        if is_in_background && self.stream == Some(true) {
            return Err(invalid(
                "background",
                "a stream in the background is not simulated",
            ));
        }
        Ok(Keeping {
            by: responses.by(),
            is_stored,
            is_in_background,
        })
    }

    fn prompt(self, endpoint: Endpoint) -> Result<Prompt, ApiError> {
        match endpoint {
            Endpoint::Chat | Endpoint::Messages => {
                let messages = self.messages.ok_or(ApiError::MissingField {
                    field: "messages",
                    expected: "send a list of messages",
                })?;
                let system = self.system.filter(|_| endpoint == Endpoint::Messages);
                Prompt::of_chat(self.tools, system, messages)
            }
            Endpoint::Completions => {
                let prompt = self.prompt.ok_or(ApiError::MissingField {
                    field: "prompt",
                    expected: "send a string or a list of token ids",
                })?;
                Prompt::of_completion(prompt)
            }
            Endpoint::Responses => {
                let input = self.input.ok_or(ApiError::MissingField {
                    field: "input",
                    expected: "send a string or a list of messages",
                })?;
                Prompt::of_response(self.instructions, self.tools, input)
            }
            Endpoint::Generate | Endpoint::Triton(_) => {
                let ids = self.token_ids.ok_or(ApiError::MissingField {
                    field: "token_ids",
                    expected: "send a list of token ids",
                })?;
                let ids: Vec<u32> = serde_json::from_str(ids.get())
                    .map_err(|error| invalid("token_ids", &brief(&error.to_string())))?;
                Prompt::of_tokens("token_ids", &ids)
            }
        }
    }
}

fn max_tokens(asked: i64) -> Result<NonZeroU32, ApiError> {
    if asked < 1 {
        return Err(invalid("max_tokens", "must be at least 1"));
    }
    let asked = u32::try_from(asked).unwrap_or(u32::MAX);
    Ok(NonZeroU32::new(asked).unwrap_or(NonZeroU32::MIN))
}

/// The first [`MAX_MESSAGE`] bytes of `message`, cut between characters.
pub(super) fn brief(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    match message.split_at_checked(end) {
        Some((start, rest)) if !rest.is_empty() => format!("{start}..."),
        _ => message.to_owned(),
    }
}

pub(super) fn invalid(field: &'static str, message: &str) -> ApiError {
    ApiError::InvalidField {
        field,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
