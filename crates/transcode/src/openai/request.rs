//! What a client asks for.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::Api;
use crate::{
    backend::ChatTemplate,
    error::{Refusal, brief},
};

/// Bytes of a reader's message that a client is told.
const MAX_MESSAGE: usize = 200;

/// A request for text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) prompt: Prompt,
    pub(crate) sampling: Sampling,
    pub(crate) stream: bool,
    /// Whether a stream ends with a chunk of the usage.
    pub(crate) include_usage: bool,
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// Role and text of each.
    Messages(Vec<(String, String)>),
    Text(String),
}

/// How tokens are chosen, by the names that vLLM has for it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repetition_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stop: Vec<String>,
}

/// The fields that count; others mean nothing to a server that takes text, and are ignored. Each is read by itself, so
/// that a refusal can name it.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    temperature: Option<&'a RawValue>,
    top_p: Option<&'a RawValue>,
    top_k: Option<&'a RawValue>,
    min_p: Option<&'a RawValue>,
    presence_penalty: Option<&'a RawValue>,
    frequency_penalty: Option<&'a RawValue>,
    repetition_penalty: Option<&'a RawValue>,
    seed: Option<&'a RawValue>,
    stop: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    response_format: Option<&'a RawValue>,
    tools: Option<&'a RawValue>,
    functions: Option<&'a RawValue>,
    logprobs: Option<&'a RawValue>,
    top_logprobs: Option<&'a RawValue>,
    logit_bias: Option<&'a RawValue>,
    audio: Option<&'a RawValue>,
    echo: Option<&'a RawValue>,
    suffix: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: Option<RawContent>,
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of parts")]
enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Deserialize)]
struct RawPart {
    r#type: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct RawStreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct RawResponseFormat {
    r#type: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string or a list of strings")]
enum RawTexts {
    One(String),
    Many(Vec<String>),
}

// === impl Asked ===

impl Asked {
    /// Reads a body that was sent to `path`.
    pub(crate) fn read(path: &str, body: &[u8]) -> Result<Self, Refusal> {
        let api = Api::for_path(path)?;
        let text = str::from_utf8(body).map_err(|_| broken("it is no UTF-8"))?;
        let raw: Raw<'_> =
            serde_json::from_str(text).map_err(|error| broken(&error.to_string()))?;
        raw.refuse_what_is_no_text()?;
        let chat_max_tokens = match api {
            Api::Chat => field("max_completion_tokens", raw.max_completion_tokens)?,
            Api::Completions => None,
        };
        let max_tokens: Option<u32> = field("max_tokens", raw.max_tokens)?;
        let max_tokens = chat_max_tokens.or(max_tokens);
        if max_tokens == Some(0) {
            return Err(Refusal::new("max_tokens", "max_tokens must be at least 1"));
        }
        let stop = match field("stop", raw.stop)? {
            None => Vec::new(),
            Some(RawTexts::One(text)) => vec![text],
            Some(RawTexts::Many(texts)) => texts,
        };
        let options: Option<RawStreamOptions> = field("stream_options", raw.stream_options)?;
        Ok(Self {
            api,
            model: field("model", raw.model)?
                .ok_or_else(|| Refusal::new("model", "model is missing: name one"))?,
            prompt: match api {
                Api::Chat => messages(raw.messages)?,
                Api::Completions => prompt(raw.prompt)?,
            },
            sampling: Sampling {
                max_tokens,
                temperature: field("temperature", raw.temperature)?,
                top_p: field("top_p", raw.top_p)?,
                top_k: field("top_k", raw.top_k)?,
                min_p: field("min_p", raw.min_p)?,
                presence_penalty: field("presence_penalty", raw.presence_penalty)?,
                frequency_penalty: field("frequency_penalty", raw.frequency_penalty)?,
                repetition_penalty: field("repetition_penalty", raw.repetition_penalty)?,
                seed: field("seed", raw.seed)?,
                stop,
            },
            stream: field("stream", raw.stream)?.unwrap_or(false),
            include_usage: options.and_then(|options| options.include_usage) == Some(true),
        })
    }
}

// === impl Api ===

impl Api {
    /// The API that has this path, which a query may follow.
    fn for_path(path: &str) -> Result<Self, Refusal> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let mut segments = path.rsplit('/');
        match (segments.next(), segments.next()) {
            (Some("completions"), Some("chat")) => Ok(Self::Chat),
            (Some("completions"), _) => Ok(Self::Completions),
            _ => Err(Refusal {
                message: format!(
                    "the model server has nothing like {path}: use /v1/chat/completions or /v1/completions"
                ),
                param: None,
            }),
        }
    }
}

// === impl Prompt ===

impl Prompt {
    /// As the text that the model continues.
    pub(crate) fn render(self, template: ChatTemplate) -> String {
        match self {
            Self::Text(text) => text,
            Self::Messages(messages) => {
                let messages = messages.iter();
                template.render(messages.map(|(role, text)| (role.as_str(), text.as_str())))
            }
        }
    }
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

// === impl Raw ===

impl Raw<'_> {
    /// What would change the answer and cannot be asked for.
    fn refuse_what_is_no_text(&self) -> Result<(), Refusal> {
        for (name, value) in [("n", self.n), ("best_of", self.best_of)] {
            if field::<i64>(name, value)?.is_some_and(|count| count != 1) {
                let message = format!("{name}: the model server gives 1 answer to a request");
                return Err(Refusal::new(name, message));
            }
        }
        let format: Option<RawResponseFormat> = field("response_format", self.response_format)?;
        if format.is_some_and(|format| format.r#type != "text") {
            let message = "response_format: the model server answers with text only";
            return Err(Refusal::new("response_format", message));
        }
        let unknown = [
            ("tools", self.tools),
            ("functions", self.functions),
            ("logprobs", self.logprobs),
            ("top_logprobs", self.top_logprobs),
            ("logit_bias", self.logit_bias),
            ("audio", self.audio),
            ("echo", self.echo),
            ("suffix", self.suffix),
        ];
        for (name, value) in unknown {
            let nothing = ["null", "false", "[]", "{}", "\"\""];
            let asked = value.is_some_and(|value| !nothing.contains(&value.get()));
            // For completions a number of none still means the chosen tokens' own.
            let none = name == "top_logprobs" && value.is_some_and(|value| value.get() == "0");
            if asked && !none {
                let message = format!("{name}: the model server has no such thing: leave it out");
                return Err(Refusal::new(name, message));
            }
        }
        Ok(())
    }
}

/// The value of a field; `null` is none.
fn field<T: DeserializeOwned>(name: &str, value: Option<&RawValue>) -> Result<Option<T>, Refusal> {
    let Some(value) = value else {
        return Ok(None);
    };
    serde_json::from_str(value.get()).map_err(|error| {
        Refusal::new(
            name,
            format!("{name}: {}", brief(&error.to_string(), MAX_MESSAGE)),
        )
    })
}

fn messages(value: Option<&RawValue>) -> Result<Prompt, Refusal> {
    let messages: Vec<RawMessage> = field("messages", value)?.unwrap_or_default();
    if messages.is_empty() {
        return Err(Refusal::new("messages", "messages: at least one is needed"));
    }
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| message.into_text(index));
    messages.collect::<Result<_, _>>().map(Prompt::Messages)
}

fn prompt(value: Option<&RawValue>) -> Result<Prompt, Refusal> {
    let refusal = || Refusal::new("prompt", "prompt: it must be one text, which is not empty");
    let texts = field("prompt", value).map_err(|_| refusal())?;
    let text = match texts {
        Some(RawTexts::One(text)) => Some(text),
        Some(RawTexts::Many(texts)) => <[String; 1]>::try_from(texts).ok().map(|[text]| text),
        None => None,
    };
    let text = text.filter(|text| !text.is_empty());
    text.map(Prompt::Text).ok_or_else(refusal)
}

// === impl RawMessage ===

impl RawMessage {
    /// Role and text.
    fn into_text(self, index: usize) -> Result<(String, String), Refusal> {
        if self.tool_calls.is_some_and(|calls| !calls.is_empty()) {
            let message = "tool_calls: the model server knows no tools";
            return Err(Refusal::new(
                format!("messages[{index}].tool_calls"),
                message,
            ));
        }
        let parts = match self.content {
            None => Vec::new(),
            Some(RawContent::Text(text)) => return Ok((self.role, text)),
            Some(RawContent::Parts(parts)) => parts,
        };
        let mut texts = Vec::with_capacity(parts.len());
        for (place, part) in parts.into_iter().enumerate() {
            match part.text.filter(|_| part.r#type == "text") {
                Some(text) => texts.push(text),
                None => {
                    return Err(Refusal::new(
                        format!("messages[{index}].content[{place}]"),
                        "content: the model server reads parts of type text only",
                    ));
                }
            }
        }
        // As engines do that put the text of a message in one string.
        Ok((self.role, texts.join("\n")))
    }
}

fn broken(problem: &str) -> Refusal {
    Refusal {
        message: format!(
            "the request cannot be read: {}",
            brief(problem, MAX_MESSAGE)
        ),
        param: None,
    }
}

#[cfg(test)]
mod tests;
