//! `/inference/v1/generate`: token ids in, token ids out.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, data_event, done_event, finish_reason};
use crate::text::token_ids;

// === impl Answer ===

impl Answer {
    pub(super) fn generate_whole(&self) -> Value {
        let tokens = 0..self.output.tokens().get();
        let ids: Vec<_> = tokens.flat_map(|index| self.ids(index)).collect();
        let mut document = self.generate_document(&ids, true);
        document["usage"] = json!(self.usage());
        document
    }

    pub(super) fn generate_token(&self, index: u32) -> Bytes {
        data_event(&self.generate_document(&self.ids(index), self.is_last(index)))
    }

    pub(super) fn generate_end(&self) -> Vec<Bytes> {
        let usage = json!({
            "request_id": self.generate_id(),
            "choices": [],
            "usage": self.usage(),
        });
        let usage = (self.include_usage == Some(true)).then(|| data_event(&usage));
        usage.into_iter().chain([done_event()]).collect()
    }

    fn generate_document(&self, ids: &[u32], ended: bool) -> Value {
        json!({
            "request_id": self.generate_id(),
            "choices": [{
                "index": 0,
                "token_ids": ids,
                "logprobs": null,
                "finish_reason": ended.then(|| finish_reason(self.output.finish())),
            }],
        })
    }

    fn generate_id(&self) -> String {
        format!("generate-tokens-{}", self.id)
    }

    /// One token of the text is one id; none if it is empty.
    fn ids(&self, index: u32) -> Vec<u32> {
        token_ids(self.output.token(index).as_bytes())
    }
}
