//! One prompt's ids on their way to a worker, as an endpoint picker brings them there.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use processor_api::{ProcessReply, TOKENS_KEY_HEADER};
use tokio::time::Instant;

use super::Wire;

/// How a worker gets the ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It fetches them by a key.
    Key,
    /// In the body.
    Direct,
    /// Not at all: nobody asks a Processor.
    Text,
}

/// Brings one prompt to a worker again and again.
pub struct Transfer {
    way: Way,
    /// The question about the prompt, and the completion of it.
    question: Vec<u8>,
    completion: String,
    processor: Option<Wire>,
    worker: Wire,
}

/// One time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Of the prompt; 0 where they were not counted.
    pub ids: usize,
    /// All that was sent and received here; by key also the ids that the worker fetches, 4 bytes each.
    pub bytes: usize,
    /// From the question, or without one from the request to the worker, to its whole reply.
    pub took: Duration,
}

/// More than any prompt here has.
const MAX_IDS: usize = 4 << 20;
const COMPLETIONS: &str = "/v1/completions";
/// Beside the ids, in the words of the simulated worker.
const SOURCE: &str = "x-inference-token-source: ";

// === impl Way ===

impl Way {
    /// All.
    pub const ALL: [Self; 3] = [Self::Key, Self::Direct, Self::Text];

    /// In figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "by key",
            Self::Direct => "in the body",
            Self::Text => "text alone",
        }
    }

    /// As the worker names it.
    fn source(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Direct => "body",
            Self::Text => "text",
        }
    }
}

// === impl Transfer ===

impl Transfer {
    /// Connects. `prompt` must be as it is in JSON.
    /// # Errors
    /// When nobody listens.
    pub async fn connect(
        way: Way,
        processor: SocketAddr,
        worker: SocketAddr,
        prompt: &str,
    ) -> Result<Self> {
        // with special tokens a prompt is encoded anew each time, and not what is measured
        let completion = format!(
            r#"{{"model":"llama","prompt":"{prompt}","max_tokens":1,"add_special_tokens":false}}"#
        );
        let question = format!(r#"{{"request_body":{completion},"path":"{COMPLETIONS}"}}"#);
        let processor = match way {
            Way::Key | Way::Direct => Some(Wire::connect(processor).await?),
            Way::Text => None,
        };
        Ok(Self {
            way,
            question: post("/process", "", &[question.as_bytes()]),
            completion,
            processor,
            worker: Wire::connect(worker).await?,
        })
    }

    /// The ids of a prompt.
    /// # Errors
    /// When the Processor does not tell.
    pub async fn count(processor: SocketAddr, prompt: &str) -> Result<usize> {
        let question = format!(
            r#"{{"request_body":{{"model":"llama","prompt":"{prompt}"}},"path":"{COMPLETIONS}"}}"#
        );
        let mut processor = Wire::connect(processor).await?;
        let question = post("/process", "", &[question.as_bytes()]);
        let body = Bytes::copy_from_slice(processor.call(&question).await?);
        let reply = ProcessReply::parse(&body, MAX_IDS)?;
        reply.token_count.context("no count")
    }

    /// Once.
    /// # Errors
    /// When a call fails, or the ids go another way.
    pub async fn call(&mut self) -> Result<Transferred> {
        let start = Instant::now();
        let (mut bytes, mut ids) = (0, 0);
        let mut reply = ProcessReply::default();
        if let Some(processor) = &mut self.processor {
            let body = processor.call(&self.question).await?;
            bytes += self.question.len() + body.len();
            reply = ProcessReply::parse(&Bytes::copy_from_slice(body), MAX_IDS)?;
            ids = reply.token_count.context("no count")?;
        }
        let key = reply.token_key.as_ref().map(|key| {
            bytes += 4 * ids;
            format!("{TOKENS_KEY_HEADER}: {}\r\n", key.as_str())
        });
        let open = self.completion.strip_suffix('}').unwrap_or_default();
        let request = if let Some(value) = &reply.token_value {
            let parts: [&[u8]; 4] = [open.as_bytes(), br#","token_ids":"#, value, b"}"];
            post(COMPLETIONS, "", &parts)
        } else {
            let parts = [self.completion.as_bytes()];
            post(COMPLETIONS, key.as_deref().unwrap_or_default(), &parts)
        };
        let (head, body) = self.worker.call_with_head(&request).await?;
        bytes += request.len() + head.len() + body.len();
        let source = head.lines().find_map(|line| line.strip_prefix(SOURCE));
        let took = start.elapsed();
        ensure!(
            source == Some(self.way.source()),
            "{:?}: the worker took the ids by {source:?}",
            self.way
        );
        Ok(Transferred { ids, bytes, took })
    }
}

fn post(path: &str, headers: &str, body: &[&[u8]]) -> Vec<u8> {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
    );
    [&[head.as_bytes()], body].concat().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_length_of_all_its_parts() {
        let request = post("/p", "a: b\r\n", &[b"{", b"}"]);
        let text = String::from_utf8(request).unwrap();
        assert!(text.starts_with("POST /p HTTP/1.1\r\n"), "{text}");
        assert!(
            text.ends_with("\r\na: b\r\ncontent-length: 2\r\n\r\n{}"),
            "{text}"
        );
    }
}
