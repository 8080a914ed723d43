//! `/v1/responses`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, named_event};
use crate::engine::Finish;

/// Events before the first token.
const START_EVENTS: u32 = 4;

// === impl Answer ===

impl Answer {
    pub(crate) fn response_whole(&self) -> Value {
        let mut response = self.response(self.final_status());
        response["output"] = json!([self.item("completed", self.output.text())]);
        if self.output.finish() == Finish::Length {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let output_tokens = self.output.tokens().get();
        response["usage"] = json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens.saturating_add(output_tokens),
        });
        response
    }

    pub(super) fn response_start(&self) -> Vec<Bytes> {
        let response = self.response("in_progress");
        let mut item = self.item("in_progress", "");
        item["content"] = json!([]);
        vec![
            numbered_event(0, "response.created", json!({"response": response})),
            numbered_event(1, "response.in_progress", json!({"response": response})),
            numbered_event(
                2,
                "response.output_item.added",
                json!({"output_index": 0, "item": item}),
            ),
            numbered_event(
                3,
                "response.content_part.added",
                self.in_part("part", part("")),
            ),
        ]
    }

    pub(super) fn response_token(&self, index: u32) -> Bytes {
        let delta = self.in_part("delta", json!(self.output.token(index)));
        numbered_event(START_EVENTS + index, "response.output_text.delta", delta)
    }

    pub(super) fn response_end(&self) -> Vec<Bytes> {
        let next = START_EVENTS.saturating_add(self.output.tokens().get());
        let text = self.output.text();
        let item = self.item("completed", text);
        let last = match self.output.finish() {
            Finish::Stop => "response.completed",
            Finish::Length => "response.incomplete",
        };
        let whole = self.response_whole();
        vec![
            numbered_event(
                next,
                "response.output_text.done",
                self.in_part("text", json!(text)),
            ),
            numbered_event(
                next + 1,
                "response.content_part.done",
                self.in_part("part", part(text)),
            ),
            numbered_event(
                next + 2,
                "response.output_item.done",
                json!({"output_index": 0, "item": item}),
            ),
            numbered_event(next + 3, last, json!({"response": whole})),
        ]
    }

    /// The document without output.
    pub(crate) fn response(&self, status: &str) -> Value {
        json!({
            "id": self.response_id(),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": &*self.model,
            "output": [],
            "incomplete_details": null,
            "error": null,
            "usage": null,
        })
    }

    pub(crate) fn response_id(&self) -> String {
        format!("resp_{}", self.id)
    }

    fn final_status(&self) -> &'static str {
        match self.output.finish() {
            Finish::Stop => "completed",
            Finish::Length => "incomplete",
        }
    }

    fn item(&self, status: &str, text: &str) -> Value {
        json!({
            "id": self.item_id(),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part(text)],
        })
    }

    /// A document about the only part of the only item.
    fn in_part(&self, key: &str, value: Value) -> Value {
        json!({
            "item_id": self.item_id(),
            "output_index": 0,
            "content_index": 0,
            key: value,
        })
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.id)
    }
}

fn numbered_event(number: u32, name: &str, mut document: Value) -> Bytes {
    document["type"] = json!(name);
    document["sequence_number"] = json!(number);
    named_event(&document)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}
