//! The last requests, for tests to look at: pure.

use std::collections::{BTreeMap, VecDeque};

use axum::http::{HeaderName, header, request::Parts};
use jiff::Timestamp;
use processor_api::TOKENS_KEY_HEADER;
use serde::Serialize;
use xxhash_rust::xxh64::xxh64;

/// Requests kept. With [`HEADERS`] × [`HEADER_CHARS`] each that is 64 MB at the very worst, usually 1 MB.
const CAPACITY: usize = 1000;

/// Headers kept of a request, by name.
const HEADERS: usize = 64;

/// Characters kept of a header.
const HEADER_CHARS: usize = 1024;

/// Headers that may hold credentials; with the key of token ids whoever has it reads the prompt.
const SECRET: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static(TOKENS_KEY_HEADER),
];

/// One request.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Counts from 0 since the start.
    number: u64,
    at: String,
    method: String,
    path: String,
    /// Without those that may hold credentials; values of one name joined by `, `.
    headers: BTreeMap<String, String>,
    body_bytes: usize,
    /// xxh64 of the body with seed 0, in hex.
    body_hash: String,
    /// Tokens of the prompt that the prefix cache held; null if it was refused or has made no token yet.
    cached_tokens: Option<u32>,
    /// Where the token ids of the prompt came from: `key`, `body` or `text`; null if there are none.
    token_source: Option<&'static str>,
    /// Why they are those of the text.
    token_reason: Option<&'static str>,
    /// xxh64 of the ids, 32 bits each, with seed 0, in hex.
    token_checksum: Option<String>,
}

/// The last [`CAPACITY`] requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    entries: VecDeque<Entry>,
    next: u64,
}

// === impl Entry ===

impl Entry {
    /// Whether the header `name`, in lower case, has this value.
    pub(crate) fn has(&self, name: &str, value: &str) -> bool {
        self.headers.get(name).is_some_and(|own| own == value)
    }
}

// === impl RequestLog ===

impl RequestLog {
    pub(crate) fn push(&mut self, parts: &Parts, body: &[u8], now: Timestamp) -> u64 {
        let mut headers = BTreeMap::<String, String>::new();
        let names = parts.headers.keys().filter(|name| !SECRET.contains(name));
        for name in names.take(HEADERS) {
            let values = parts.headers.get_all(name).iter();
            let values: Vec<_> = values
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            let joined = values.join(", ").chars().take(HEADER_CHARS).collect();
            headers.insert(name.to_string(), joined);
        }
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        let number = self.next;
        self.entries.push_back(Entry {
            number,
            at: now.to_string(),
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            headers,
            body_bytes: body.len(),
            body_hash: format!("{:016x}", xxh64(body, 0)),
            cached_tokens: None,
            token_source: None,
            token_reason: None,
            token_checksum: None,
        });
        self.next += 1;
        number
    }

    /// Nothing happens if that request is forgotten already.
    pub(crate) fn set_cached(&mut self, number: u64, cached_tokens: u32) {
        if let Some(entry) = self.entry(number) {
            entry.cached_tokens = Some(cached_tokens);
        }
    }

    /// As [`set_cached`](Self::set_cached).
    pub(crate) fn set_tokens(
        &mut self,
        number: u64,
        source: &'static str,
        reason: Option<&'static str>,
        checksum: String,
    ) {
        if let Some(entry) = self.entry(number) {
            entry.token_source = Some(source);
            entry.token_reason = reason;
            entry.token_checksum = Some(checksum);
        }
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let oldest = self.next - self.entries.len() as u64;
        let place = number.checked_sub(oldest)?;
        self.entries.get_mut(usize::try_from(place).ok()?)
    }

    pub(crate) fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn mk_parts() -> Parts {
        let request = Request::post("/v1/completions")
            .header("authorization", "Bearer s3cret")
            .header("cookie", "s3cret")
            .header("x-api-key", "s3cret")
            .header("api-key", "s3cret")
            .header("x-req-tokens-key", "s3cret")
            .header("x-long", "x".repeat(3000))
            .header("x-two", "a")
            .header("x-two", "b");
        request.body(()).expect("valid").into_parts().0
    }

    #[test]
    fn headers_are_kept_short_and_without_credentials() {
        let mut log = RequestLog::default();
        log.push(&mk_parts(), b"", Timestamp::UNIX_EPOCH);
        let shown = serde_json::to_value(log.entries()).expect("JSON");
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(shown[0]["headers"]["x-two"], "a, b");
        assert_eq!(
            shown[0]["headers"]["x-long"].as_str().map(str::len),
            Some(1024)
        );
        assert_eq!(
            shown[0]["body_hash"], "ef46db3751d8e999",
            "xxh64 of nothing"
        );
    }

    #[test]
    fn the_oldest_requests_are_forgotten() {
        let mut log = RequestLog::default();
        for _ in 0..=CAPACITY {
            log.push(&mk_parts(), b"", Timestamp::UNIX_EPOCH);
        }
        assert_eq!(log.entries().len(), CAPACITY);
        assert_eq!(log.entries().front().map(|entry| entry.number), Some(1));
        log.set_cached(0, 7);
        log.set_cached(1, 8);
        assert_eq!(
            log.entries().front().and_then(|entry| entry.cached_tokens),
            Some(8)
        );
    }
}
