//! `/v1/messages`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, named_event};
use crate::engine::Finish;

// === impl Answer ===

impl Answer {
    pub(super) fn message_whole(&self) -> Value {
        let mut message = self.message();
        message["content"] = json!([{"type": "text", "text": self.output.text()}]);
        message["stop_reason"] = json!(self.stop_reason());
        message["usage"] = self.message_usage(self.output.tokens().get());
        message
    }

    pub(super) fn message_start(&self) -> Vec<Bytes> {
        vec![
            named_event(&json!({"type": "message_start", "message": self.message()})),
            named_event(&json!({
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            })),
        ]
    }

    pub(super) fn message_token(&self, index: u32) -> Bytes {
        named_event(&json!({
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": self.output.token(index)},
        }))
    }

    pub(super) fn message_end(&self) -> Vec<Bytes> {
        vec![
            named_event(&json!({"type": "content_block_stop", "index": 0})),
            named_event(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": self.stop_reason(), "stop_sequence": null},
                "usage": self.message_usage(self.output.tokens().get()),
            })),
            named_event(&json!({"type": "message_stop"})),
        ]
    }

    fn message(&self) -> Value {
        json!({
            "id": format!("msg_{}", self.id),
            "type": "message",
            "role": "assistant",
            "model": &*self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": self.message_usage(0),
        })
    }

    fn stop_reason(&self) -> &'static str {
        match self.output.finish() {
            Finish::Stop => "end_turn",
            Finish::Length => "max_tokens",
        }
    }

    /// Here tokens that were read from the cache are not among the input tokens.
    fn message_usage(&self, output_tokens: u32) -> Value {
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(self.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": output_tokens,
        })
    }
}
