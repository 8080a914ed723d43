//! A completion in its OpenAI shape, whole or in chunks: pure.

use serde::Serialize;

use super::request::IncludeUsage;
use crate::{engine::Finish, text::Output};

/// Which API was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// Everything that an answer says.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) endpoint: Endpoint,
    /// Unique in this process; the prefix of its kind is added.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: i64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: u32,
    /// Those of them that the prefix cache held.
    pub(crate) cached_tokens: u32,
    /// `None`: not a stream.
    pub(crate) include_usage: Option<IncludeUsage>,
    pub(crate) output: Output,
}

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

#[derive(Serialize)]
struct Usage {
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
    /// The whole answer.
    pub(crate) fn whole(&self) -> Vec<u8> {
        let text = self.output.text();
        let (object, content) = match self.endpoint {
            Endpoint::Chat => (
                "chat.completion",
                Content::Message {
                    role: "assistant",
                    content: text,
                },
            ),
            Endpoint::Completions => ("text_completion", Content::Text(text)),
        };
        self.document(
            object,
            &[choice(content, Some(self.output.finish()))],
            Some(self.usage()),
        )
    }

    /// The chunk before the first token: only chats have one.
    pub(crate) fn role_chunk(&self) -> Option<Vec<u8>> {
        let content = Content::Delta {
            role: Some("assistant"),
            content: "",
        };
        (self.endpoint == Endpoint::Chat).then(|| self.chunk(&[choice(content, None)], None))
    }

    /// One token, counted from 0; the last one says how the text ends.
    pub(crate) fn token_chunk(&self, index: u32) -> Vec<u8> {
        let text = self.output.token(index);
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta {
                role: None,
                content: text,
            },
            Endpoint::Completions => Content::Text(text),
        };
        let last = index + 1 == self.output.tokens().get();
        self.chunk(&[choice(content, last.then(|| self.output.finish()))], None)
    }

    /// The chunk after the last token, if the client wants one.
    pub(crate) fn usage_chunk(&self) -> Option<Vec<u8>> {
        (self.include_usage == Some(true)).then(|| self.chunk(&[], Some(self.usage())))
    }

    fn chunk(&self, choices: &[Choice<'_>], usage: Option<Usage>) -> Vec<u8> {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        self.document(object, choices, usage)
    }

    fn document(
        &self,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<Usage>,
    ) -> Vec<u8> {
        let prefix = match self.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        let document = Document {
            id: format!("{prefix}-{}", self.id),
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        serde_json::to_vec(&document).expect("strings and numbers always have a JSON form")
    }

    fn usage(&self) -> Usage {
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
}

fn choice(content: Content<'_>, finish: Option<Finish>) -> Choice<'_> {
    let finish_reason = finish.map(|finish| match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    });
    Choice {
        index: 0,
        content,
        logprobs: None,
        finish_reason,
    }
}
