//! What became of a request under the LLM filter.

use std::{net::SocketAddr, sync::Arc};

use moment::Moment;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::TraceId;
use crate::tap::Usage;

/// All that is told of a request once its stream ends.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    trace_id: Option<TraceId>,
    /// When its headers came.
    pub(crate) opened: Moment,
    /// As the client named it; absent: its body was not read.
    pub(crate) model: Option<Arc<str>>,
    pub(crate) selected: Option<SocketAddr>,
    pub(crate) served: Option<SocketAddr>,
    /// When the pick was with the proxy.
    pub(crate) answered: Option<Moment>,
    /// When the headers of the response came.
    pub(crate) responding: Option<Moment>,
    pub(crate) first_byte: Option<Moment>,
    pub(crate) last_byte: Option<Moment>,
    /// Of the response; 0: there was none.
    pub(crate) status: u16,
    /// Why it was answered here.
    pub(crate) refused: Option<&'static str>,
    /// The response is a stream of events.
    pub(crate) is_sse: bool,
    /// Its first event is an error.
    pub(crate) is_sse_error: bool,
    pub(crate) usage: Usage,
    /// The whole response passed.
    pub(crate) is_complete: bool,
    /// How the stream ended.
    pub(crate) end: &'static str,
}

/// What an event of an error has.
#[derive(Deserialize)]
struct Event<'a> {
    error: Option<IgnoredAny>,
    object: Option<&'a str>,
    r#type: Option<&'a str>,
}

// === impl Ended ===

impl Ended {
    /// Of a request whose headers came just now.
    pub(crate) fn new(trace_id: Option<TraceId>, opened: Moment) -> Self {
        Self {
            trace_id,
            opened,
            model: None,
            selected: None,
            served: None,
            answered: None,
            responding: None,
            first_byte: None,
            last_byte: None,
            status: 0,
            refused: None,
            is_sse: false,
            is_sse_error: false,
            usage: Usage::default(),
            is_complete: false,
            end: "reset",
        }
    }

    /// For logs.
    pub(crate) fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_ref().map(TraceId::as_str)
    }

    /// The server computed what it was asked for, as far as can be seen.
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status) && self.refused.is_none() && !self.is_sse_error
    }
}

/// Whether a stream of events begins with one that says that the request failed; `beginning` is its first part, and an
/// event that is cut off there counts as no error.
pub(crate) fn begins_with_error(beginning: &[u8]) -> bool {
    for line in beginning.split(|byte| *byte == b'\n' || *byte == b'\r') {
        if let Some(name) = line.strip_prefix(b"event:") {
            if name.trim_ascii() == b"error" {
                return true;
            }
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let event = serde_json::from_slice::<Event<'_>>(data.trim_ascii());
            let says_error = |text: Option<&str>| text == Some("error");
            return event.is_ok_and(|event| {
                event.error.is_some() || says_error(event.object) || says_error(event.r#type)
            });
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::openai("data: {\"error\":{\"message\":\"no\"}}\n\n", true)]
    #[case::vllm(": ping\r\n\r\ndata:{\"object\":\"error\",\"code\":400}\r\n\r\n", true)]
    #[case::anthropic("event: error\ndata: {\"type\":\"error\"}\n\n", true)]
    #[case::null("data: {\"id\":\"x\",\"error\":null}\n\n", false)]
    #[case::chunk(
        "data: {\"object\":\"chat.completion.chunk\"}\n\ndata: {\"error\":1}\n",
        false
    )]
    #[case::other_name("event: message_start\ndata: {\"type\":\"message_start\"}\n\n", false)]
    #[case::cut_off("data: {\"error\":{", false)]
    #[case::done("data: [DONE]\n\n", false)]
    fn the_first_event_tells_a_failure(#[case] beginning: &str, #[case] want: bool) {
        assert_eq!(begins_with_error(beginning.as_bytes()), want);
    }
}
