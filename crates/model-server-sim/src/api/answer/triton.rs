//! Triton's generate extension.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, data_event, finish_reason};
use crate::{api::request::TritonShape, args::StreamOutput};

// === impl Answer ===

impl Answer {
    pub(super) fn triton_whole(&self, shape: TritonShape) -> Value {
        let text = format!("{}{}", self.repeated_input, self.output.text());
        self.triton_document(shape, &text, self.output.tokens().get(), true)
    }

    /// Empty before the last token if the stream has one event.
    pub(super) fn triton_token(&self, shape: TritonShape, index: u32) -> Bytes {
        let last = self.is_last(index);
        if shape.one_event {
            return if last {
                data_event(&self.triton_whole(shape))
            } else {
                Bytes::new()
            };
        }
        let (repeats, text) = match shape.stream_output {
            StreamOutput::Delta => (index == 0, self.output.token(index)),
            StreamOutput::Cumulative => (true, self.output.up_to(index)),
        };
        let before = if repeats { &*self.repeated_input } else { "" };
        data_event(&self.triton_document(shape, &format!("{before}{text}"), 1, last))
    }

    /// A part of `tokens` tokens.
    fn triton_document(&self, shape: TritonShape, text: &str, tokens: u32, ended: bool) -> Value {
        let mut document = json!({
            "model_name": &*self.model,
            "model_version": "1",
            "text_output": text,
        });
        if shape.is_tensorrt_llm {
            document["context_logits"] = json!(0.0);
            document["cum_log_probs"] = json!(0.0);
            document["generation_logits"] = json!(0.0);
            document["output_log_probs"] = (0..tokens).map(|_| 0.0).collect();
        }
        if shape.finish_reason {
            // As Python writes nothing.
            let reason = if ended {
                finish_reason(self.output.finish())
            } else {
                "None"
            };
            document["finish_reason"] = json!(reason);
        }
        if shape.num_input_tokens {
            document["num_input_tokens"] = json!(self.prompt_tokens);
        }
        if shape.num_output_tokens {
            document["num_output_tokens"] = json!(tokens);
        }
        document
    }
}
