//! What a client is answered, whole or as events.

use serde::Serialize;

use super::Api;
use crate::transcoder::Usage;

/// The end of a stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What all documents of one answer have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) api: Api,
    /// With the prefix of its kind.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// As the client named it.
    pub(crate) model: String,
}

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Tokens>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Message {
        role: &'static str,
        content: &'a str,
    },
    Delta {
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<&'a str>,
    },
    Text(&'a str),
}

#[derive(Serialize)]
struct Tokens {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

// === impl Reply ===

impl Reply {
    pub(crate) fn new(api: Api, request_id: &str, created: u64, model: &str) -> Self {
        let prefix = match api {
            Api::Chat => "chatcmpl",
            Api::Completions => "cmpl",
        };
        Self {
            api,
            id: format!("{prefix}-{request_id}"),
            created,
            model: model.to_owned(),
        }
    }

    /// The whole response, with its usage if that is known.
    pub(crate) fn whole(&self, text: &str, finish: &str, usage: Option<Usage>) -> Vec<u8> {
        let (object, content) = match self.api {
            Api::Chat => {
                let role = "assistant";
                let content = text;
                ("chat.completion", Content::Message { role, content })
            }
            Api::Completions => ("text_completion", Content::Text(text)),
        };
        let choices = [choice(content, Some(finish))];
        let mut body = Vec::new();
        self.write(&mut body, object, &choices, usage);
        body
    }

    /// What comes before any text: only chats have it.
    pub(crate) fn role_chunk(&self, out: &mut Vec<u8>) {
        if self.api == Api::Chat {
            let content = Content::Delta {
                role: Some("assistant"),
                content: Some(""),
            };
            self.chunk(out, &[choice(content, None)], None);
        }
    }

    pub(crate) fn text_chunk(&self, out: &mut Vec<u8>, text: &str) {
        self.chunk(out, &[choice(self.delta(Some(text)), None)], None);
    }

    pub(crate) fn finish_chunk(&self, out: &mut Vec<u8>, finish: &str) {
        self.chunk(out, &[choice(self.delta(None), Some(finish))], None);
    }

    pub(crate) fn usage_chunk(&self, out: &mut Vec<u8>, usage: Usage) {
        self.chunk(out, &[], Some(usage));
    }

    fn delta<'a>(&self, text: Option<&'a str>) -> Content<'a> {
        match self.api {
            Api::Chat => Content::Delta {
                role: None,
                content: text,
            },
            Api::Completions => Content::Text(text.unwrap_or_default()),
        }
    }

    fn chunk(&self, out: &mut Vec<u8>, choices: &[Choice<'_>], usage: Option<Usage>) {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        };
        out.extend_from_slice(b"data: ");
        self.write(out, object, choices, usage);
        out.extend_from_slice(b"\n\n");
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<Usage>,
    ) {
        let document = Document {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage: usage.map(Tokens::from),
        };
        let start = out.len();
        if serde_json::to_writer(&mut *out, &document).is_err() {
            // only maps with keys that are no texts cannot be written, and here is none
            out.truncate(start);
        }
    }
}

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
        }
    }
}

fn choice<'a>(content: Content<'a>, finish_reason: Option<&'a str>) -> Choice<'a> {
    Choice {
        index: 0,
        content,
        logprobs: None,
        finish_reason,
    }
}
