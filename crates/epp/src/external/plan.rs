//! Whether the Processor is asked about a request, and for what. Pure.

use processor_api::StageFailure;
use serde_json::value::RawValue;

use super::{Switches, label::Label};
use crate::body::{Api, Parsed, Span};

/// What matters of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// What there is to tokenize.
    pub(crate) prompt: Prompt,
    /// What the client says of routing.
    pub(crate) wish: Wish,
    /// Of the body.
    pub(crate) bytes: usize,
}

/// What there is to tokenize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// A conversation, or one text.
    Text,
    /// The ids themselves: they can be routed by, and the worker has them.
    Ids,
    /// Nothing that the Processor is for.
    None(Skip),
}

/// What the client's `route` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It is not there.
    #[default]
    Silent,
    Boolean(bool),
    /// It is something else, and so not meant for us.
    Foreign,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Skip(Skip),
    Call(Ask),
}

/// What the Processor is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// A worker.
    pub(crate) route: bool,
    /// Ids for the worker.
    pub(crate) transfer: bool,
}

/// Why the Processor is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    /// It does not know the format of such a path.
    OtherPath,
    /// The body was not seen, or only a part of it.
    Unseen,
    /// The server speaks another protocol: its body is made anew.
    Translated,
    /// The body has none.
    NoPrompt,
    /// The body has several.
    SeveralPrompts,
    /// The client sends ids, and nobody is to be routed by them.
    IdsGiven,
    /// There is nobody to go to.
    NoEndpoints,
    /// The body has more bytes than are sent.
    TooLarge,
    /// The last calls failed.
    BreakerOpen,
    /// Too many calls are in flight.
    Busy,
}

/// Whether the Processor is asked about a request. `is_open`: its last calls failed.
pub(crate) fn plan(facts: &Facts, switches: &Switches, is_open: bool) -> Plan {
    let route = match facts.wish {
        Wish::Boolean(wish) if switches.clients_route => wish,
        Wish::Silent | Wish::Boolean(_) => switches.routes,
        Wish::Foreign => false,
    };
    let transfer = match facts.prompt {
        Prompt::Text => true,
        Prompt::Ids if route => false,
        Prompt::Ids => return Plan::Skip(Skip::IdsGiven),
        Prompt::None(skip) => return Plan::Skip(skip),
    };
    if facts.bytes > switches.max_body {
        return Plan::Skip(Skip::TooLarge);
    }
    if is_open {
        return Plan::Skip(Skip::BreakerOpen);
    }
    Plan::Call(Ask { route, transfer })
}

// === impl Facts ===

impl Facts {
    /// Those of a request to a path of this format. `is_translated`: its server speaks another protocol.
    pub(crate) fn of(
        api: Option<Api>,
        parsed: Option<&Parsed>,
        body: &[u8],
        is_translated: bool,
    ) -> Self {
        let span = match api.map(Api::suffix) {
            Some("chat/completions") => Some(Span::Messages),
            Some("completions") => Some(Span::Prompt),
            _ => None,
        };
        let (prompt, wish) = match (span, parsed) {
            (None, _) => (Prompt::None(Skip::OtherPath), Wish::Silent),
            (Some(_), None) => (Prompt::None(Skip::Unseen), Wish::Silent),
            (Some(span), Some(parsed)) => {
                let prompt = if is_translated {
                    Prompt::None(Skip::Translated)
                } else {
                    Prompt::of(span, parsed, body)
                };
                (prompt, Wish::of(parsed, body))
            }
        };
        let bytes = body.len();
        Self {
            prompt,
            wish,
            bytes,
        }
    }

    /// Whether the Processor is for such a request at all.
    pub(crate) fn is_askable(&self) -> bool {
        !matches!(self.prompt, Prompt::None(_))
    }
}

// === impl Prompt ===

impl Prompt {
    fn of(span: Span, parsed: &Parsed, body: &[u8]) -> Self {
        let mut spans = parsed.kinds.iter().zip(&parsed.spans);
        let found = spans.find(|(kind, _)| **kind == span);
        let text = found.and_then(|(_, at)| body.get(at.clone()));
        let text = text.and_then(|text| str::from_utf8(text).ok());
        match text {
            None => Self::None(Skip::NoPrompt),
            Some(_) if span == Span::Messages => Self::Text,
            Some(text) => Self::of_value(text),
        }
    }

    /// Of `prompt` in completions: a text, its ids, or a list of one of these.
    fn of_value(text: &str) -> Self {
        let Some(list) = text.strip_prefix('[') else {
            return Self::Text;
        };
        let first = list.trim_ascii_start().as_bytes().first();
        if first.is_some_and(|byte| !b"\"[]".contains(byte)) {
            return Self::Ids; // whatever else they are, the Processor says so
        }
        match serde_json::from_str::<[&RawValue; 1]>(text) {
            Ok([one]) if one.get().starts_with('[') => Self::Ids,
            Ok(_) => Self::Text,
            Err(_) => Self::None(Skip::SeveralPrompts),
        }
    }
}

// === impl Wish ===

impl Wish {
    fn of(parsed: &Parsed, body: &[u8]) -> Self {
        match (&parsed.fields.route, parsed.fields.client_route(body)) {
            (None, _) => Self::Silent,
            (Some(_), Some(route)) => Self::Boolean(route),
            (Some(_), None) => Self::Foreign,
        }
    }
}

// === impl Skip ===

impl Skip {
    /// What it is a case of, where the request is one for the Processor.
    pub(crate) fn failure(self) -> Option<StageFailure> {
        match self {
            Self::TooLarge => Some(StageFailure::TooLarge),
            Self::BreakerOpen | Self::Busy => Some(StageFailure::Unavailable),
            Self::OtherPath
            | Self::Unseen
            | Self::Translated
            | Self::NoPrompt
            | Self::SeveralPrompts
            | Self::IdsGiven
            | Self::NoEndpoints => None,
        }
    }
}

impl Label for Skip {
    const ALL: &'static [Self] = &[
        Self::OtherPath,
        Self::Unseen,
        Self::Translated,
        Self::NoPrompt,
        Self::SeveralPrompts,
        Self::IdsGiven,
        Self::NoEndpoints,
        Self::TooLarge,
        Self::BreakerOpen,
        Self::Busy,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::OtherPath => "path",
            Self::Unseen => "unseen",
            Self::Translated => "translated",
            Self::NoPrompt => "no-prompt",
            Self::SeveralPrompts => "several-prompts",
            Self::IdsGiven => "ids-given",
            Self::NoEndpoints => "no-endpoints",
            Self::TooLarge => "too-large",
            Self::BreakerOpen => "breaker-open",
            Self::Busy => "busy",
        }
    }
}

#[cfg(test)]
mod tests;
