//! The requests to a Metadata-Center, written by hand into one buffer each: the client must not cost what the service saves.

use std::io::Write;

use anyhow::{Result, ensure};
use memchr::memmem;

/// Makes one call after the other.
pub trait Caller: Send + 'static {
    /// The next request, head and body.
    fn next_call(&mut self) -> &[u8];

    /// Whether the reply is the right one.
    /// # Errors
    /// When it is not.
    fn check(&self, body: &[u8]) -> Result<()>;
}

/// Existing gateways: read the loads, charge a request, end its prefill, end it; in turn.
#[derive(Debug)]
pub struct Mix {
    caller: usize,
    engines: usize,
    /// Charges so far.
    charged: usize,
    /// Calls so far.
    calls: usize,
    request: Request,
}

/// An endpoint picker's batches: puts, and deletes of what was put before.
#[derive(Debug)]
pub struct Batches {
    shard: usize,
    seq: usize,
    engines: usize,
    request: Request,
}

/// An endpoint picker's picks, of prompts that begin alike.
#[derive(Debug)]
pub struct Picks {
    caller: usize,
    calls: usize,
    /// All candidates with what stands around them.
    candidates: String,
    chunks: u64,
    request: Request,
}

/// A head with room for a length, and the body.
#[derive(Debug, Default)]
pub(super) struct Request {
    bytes: Vec<u8>,
    body: Vec<u8>,
    /// Other than JSON.
    kind: Option<&'static str>,
}

/// Prefill ends, and requests end, so many charges later.
const PREFILL: usize = 100;
const LIFE: usize = 200;
/// In a batch: half are puts.
const OPERATIONS: usize = 64;
/// Prompts of a chat: this many begin in the same way, and each goes on in its own.
const CHATS: usize = 64;

// === impl Mix ===

impl Mix {
    /// The calls of one of several callers.
    pub fn new(caller: usize, engines: usize) -> Self {
        Self {
            caller,
            engines,
            charged: 0,
            calls: 0,
            request: Request::default(),
        }
    }

    fn by_id(&mut self, path: &str, back: usize) -> &[u8] {
        let (caller, id) = (self.caller, self.charged.saturating_sub(back));
        self.request.write("DELETE", path, |body| {
            write!(body, r#"{{"request_id":"bench-{caller}-{id}"}}"#)
        })
    }
}

impl Caller for Mix {
    fn next_call(&mut self) -> &[u8] {
        let call = self.calls;
        self.calls += 1;
        match call % 4 {
            0 => self
                .request
                .write("GET", "/v1/load/stats?cluster=bench", |_| Ok(())),
            1 => {
                self.charged += 1;
                let (caller, id) = (self.caller, self.charged);
                let engine = (id * 7 + caller) % self.engines;
                let (high, low) = (engine / 250, engine % 250 + 1);
                self.request.write("POST", "/v1/load/stats", |body| {
                    write!(
                        body,
                        r#"{{"cluster":"bench","request_id":"bench-{caller}-{id}","prompt_length":4096,"ip":"10.0.{high}.{low}"}}"#
                    )
                })
            }
            2 => self.by_id("/v1/load/prompt", PREFILL),
            _ => self.by_id("/v1/load/stats", LIFE),
        }
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        is_ok(body)
    }
}

// === impl Batches ===

impl Batches {
    /// The calls of one shard of an instance.
    pub fn new(shard: usize, engines: usize) -> Self {
        Self {
            shard,
            seq: 0,
            engines,
            request: Request::default(),
        }
    }

    /// Operations in each call.
    pub const OPERATIONS: usize = OPERATIONS;
}

impl Caller for Batches {
    fn next_call(&mut self) -> &[u8] {
        self.seq += 1;
        let (shard, seq, engines) = (self.shard, self.seq, self.engines);
        self.request.write("POST", "/v1/load/batch", |body| {
            let full = seq == 1;
            write!(
                body,
                r#"{{"cluster":"bench","instance":"epp-{shard}","epoch":1790000000000,"shard":0,"seq":{seq},"full":{full},"lease_ms":15000,"puts":["#
            )?;
            let half = OPERATIONS / 2;
            for at in 0..half {
                let engine = (seq * half + at) % engines;
                let (high, low) = (engine / 250, engine % 250 + 1);
                let comma = if at == 0 { "" } else { "," };
                write!(
                    body,
                    r#"{comma}{{"request_id":"{shard:04x}-{seq:08x}-{at:04x}-request","ip":"10.0.{high}.{low}:8000","prompt_length":4096}}"#
                )?;
            }
            body.extend_from_slice(br#"],"deletes":["#);
            let before = seq - 1;
            for at in 0..if full { 0 } else { half } {
                let comma = if at == 0 { "" } else { "," };
                write!(body, r#"{comma}"{shard:04x}-{before:08x}-{at:04x}-request""#)?;
            }
            write!(body, r#"],"live":{half},"prompt_sum":{}}}"#, half * 4096)
        })
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        is_ok(body)?;
        ensure!(
            memmem::find(body, br#""resync":false"#).is_some(),
            "totals differ: {}",
            String::from_utf8_lossy(body)
        );
        Ok(())
    }
}

// === impl Picks ===

impl Picks {
    /// The calls of one of several callers.
    pub fn new(caller: usize, candidates: usize, chunks: u64) -> Self {
        let each = (1..=candidates).map(|at| format!(r#"{{"ip":"10.0.0.{at}:8000","bias":0.0}}"#));
        let each: Vec<String> = each.collect();
        Self {
            caller,
            calls: 0,
            candidates: each.join(","),
            chunks,
            request: Request::default(),
        }
    }
}

impl Caller for Picks {
    fn next_call(&mut self) -> &[u8] {
        self.calls += 1;
        let (caller, call, chunks) = (self.caller, self.calls, self.chunks);
        let candidates = &self.candidates;
        self.request.write("POST", "/v1/pick", |body| {
            write!(
                body,
                r#"{{"cluster":"bench","request_id":"pick-{caller}-{call}","prompt_hash":["#
            )?;
            let chat = ((caller * 31 + call) % CHATS) as u64;
            for chunk in 0..chunks {
                let comma = if chunk == 0 { "" } else { "," };
                // Three quarters are as in the other requests of the chat.
                let own = if chunk * 4 < chunks * 3 { 0 } else { call as u64 };
                let hash = (chat << 48 | own << 16 | chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                write!(body, "{comma}{hash}")?;
            }
            let length = chunks * 512;
            write!(
                body,
                r#"],"prompt_length":{length},"count":1,"reserve_ms":1000,"candidates":[{candidates}]}}"#
            )
        })
    }

    fn check(&self, body: &[u8]) -> Result<()> {
        is_ok(body)
    }
}

// === impl Request ===

impl Request {
    /// With bodies of this type.
    pub(super) fn of(kind: &'static str) -> Self {
        Self {
            kind: Some(kind),
            ..Self::default()
        }
    }

    /// With this text as body.
    pub(super) fn json(&mut self, method: &str, path: &str, text: &str) -> &[u8] {
        self.write(method, path, |body| body.write_all(text.as_bytes()))
    }

    pub(super) fn write(
        &mut self,
        method: &str,
        path: &str,
        body: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
    ) -> &[u8] {
        self.body.clear();
        self.bytes.clear();
        // Writing to memory does not fail.
        let _ = body(&mut self.body);
        let _ = write!(
            self.bytes,
            "{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n",
            self.kind.unwrap_or("application/json"),
            self.body.len()
        );
        self.bytes.extend_from_slice(&self.body);
        &self.bytes
    }
}

fn is_ok(body: &[u8]) -> Result<()> {
    ensure!(
        body.starts_with(br#"{"status":"OK""#),
        "refused: {}",
        String::from_utf8_lossy(body)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use metadata::wire::{batch::Batch, load::Add, pick::Pick};

    use super::*;

    fn body(request: &[u8]) -> &[u8] {
        let head = memmem::find(request, b"\r\n\r\n").unwrap();
        &request[head + 4..]
    }

    #[test]
    fn the_mix_is_a_quarter_of_each() {
        let mut mix = Mix::new(3, 1000);
        let starts: Vec<String> = (0..4)
            .map(|_| {
                let text = String::from_utf8(mix.next_call().to_vec()).unwrap();
                text.split(" HTTP").next().unwrap().to_owned()
            })
            .collect();
        assert_eq!(
            starts,
            [
                "GET /v1/load/stats?cluster=bench",
                "POST /v1/load/stats",
                "DELETE /v1/load/prompt",
                "DELETE /v1/load/stats"
            ]
        );
        let mut mix = Mix::new(3, 1000);
        mix.next_call();
        let add: Add = serde_json::from_slice(body(mix.next_call())).unwrap();
        assert_eq!(add.request_id.as_str(), "bench-3-1");
    }

    #[test]
    fn a_batch_deletes_what_the_one_before_put() {
        let mut batches = Batches::new(2, 32);
        let mut next = || -> Batch {
            let batch: Batch = serde_json::from_slice(body(batches.next_call())).unwrap();
            batch.validate().unwrap();
            batch
        };
        let (first, second) = (next(), next());
        assert!(first.full && !second.full);
        let put: Vec<_> = first.puts.iter().map(|it| it.request_id.clone()).collect();
        assert_eq!(put, second.deletes);
        assert_eq!(second.puts.len() + second.deletes.len(), OPERATIONS);
    }

    #[test]
    fn picks_of_a_chat_begin_alike() {
        let mut picks = Picks::new(0, 100, 40);
        let mut next = || -> Pick {
            let pick: Pick = serde_json::from_slice(body(picks.next_call())).unwrap();
            pick.validate().unwrap();
            pick
        };
        let first = next();
        let again = (1..CHATS).map(|_| next()).count();
        let later = next();
        assert_eq!((again, first.candidates.len()), (CHATS - 1, 100));
        let (first, later) = (first.prompt_hash.hashes(), later.prompt_hash.hashes());
        assert_eq!(first[..30], later[..30]);
        assert_ne!(first[30..], later[30..]);
    }
}
