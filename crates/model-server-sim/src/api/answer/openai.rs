//! Chats and completions.

use bytes::Bytes;
use serde::Serialize;

use super::{Answer, Endpoint, data_event, done_event, finish_reason, to_json};
use crate::engine::Finish;

#[derive(Serialize)]
struct Document<'a> {
    id: String,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
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
        content: &'a str,
    },
    Text(&'a str),
}

/// Tokens of a request, as chats, completions, embeddings and `generate` have them.
#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

// === impl Answer ===

impl Answer {
    pub(super) fn openai_whole(&self) -> Vec<u8> {
        let text = self.output.text();
        let (object, content) = match self.endpoint {
            Endpoint::Chat => (
                "chat.completion",
                Content::Message {
                    role: "assistant",
                    content: text,
                },
            ),
            _ => ("text_completion", Content::Text(text)),
        };
        let choices = [choice(content, Some(self.output.finish()))];
        to_json(&self.document(object, &choices, Some(self.usage())))
    }

    /// Only chats have a chunk before the first token.
    pub(super) fn openai_start(&self) -> Vec<Bytes> {
        if self.endpoint != Endpoint::Chat {
            return Vec::new();
        }
        let content = Content::Delta {
            role: Some("assistant"),
            content: "",
        };
        vec![self.chunk(&[choice(content, None)], None)]
    }

    pub(super) fn openai_token(&self, index: u32) -> Bytes {
        let text = self.output.token(index);
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta {
                role: None,
                content: text,
            },
            _ => Content::Text(text),
        };
        let finish = self.is_last(index).then(|| self.output.finish());
        self.chunk(&[choice(content, finish)], None)
    }

    pub(super) fn openai_end(&self) -> Vec<Bytes> {
        let usage = (self.include_usage == Some(true)).then(|| self.chunk(&[], Some(self.usage())));
        usage.into_iter().chain([done_event()]).collect()
    }

    pub(super) fn usage(&self) -> Usage {
        let completion_tokens = self.output.tokens().get();
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptDetails {
                cached_tokens: self.cached_tokens,
            },
        }
    }

    fn chunk(&self, choices: &[Choice<'_>], usage: Option<Usage>) -> Bytes {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        data_event(&self.document(object, choices, usage))
    }

    fn document<'a>(
        &'a self,
        object: &'static str,
        choices: &'a [Choice<'a>],
        usage: Option<Usage>,
    ) -> Document<'a> {
        let prefix = match self.endpoint {
            Endpoint::Chat => "chatcmpl",
            _ => "cmpl",
        };
        Document {
            id: format!("{prefix}-{}", self.id),
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }
}

fn choice(content: Content<'_>, finish: Option<Finish>) -> Choice<'_> {
    Choice {
        index: 0,
        content,
        logprobs: None,
        finish_reason: finish.map(finish_reason),
    }
}
