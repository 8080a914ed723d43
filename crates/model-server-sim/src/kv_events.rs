//! What is published of the KV cache over ZeroMQ, and what goes wrong with it on demand.
//!
//! ```text
//!   KvCache ── CacheEvent ──► KvEvents ── batch: a number, MessagePack ──► PUB
//!                                 └── the last 10,000 ──► ROUTER, on request
//! ```

mod batch;
mod faults;
mod kept;
mod serve;

use std::sync::OnceLock;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use zmtp::{Message, Publisher};

pub use self::serve::BindError;
use self::{batch::encode, kept::Kept};
pub(crate) use self::{
    faults::{FaultPatch, Report},
    serve::{Sockets, get_kv_events, post_kv_events, reset_prefix_cache},
};
use crate::{
    args::{EventForm, KvEventSettings, Settings},
    engine::{CacheEvent, CacheListener},
};

/// Batches that wait for a slow subscriber, as vLLM's default.
const QUEUE: usize = 100_000;

/// What one rank publishes.
#[derive(Debug)]
pub(crate) struct KvEvents {
    settings: KvEventSettings,
    block_tokens: u32,
    topic: Bytes,
    publisher: Publisher,
    life: Mutex<Life>,
    /// Where the sockets are, once they are.
    bound: OnceLock<KvEventSettings>,
}

/// From a start of the engine to the next.
#[derive(Debug, Default)]
struct Life {
    /// Number of the next batch.
    next: u64,
    kept: Kept,
    /// What of the next batches goes wrong.
    faults: faults::Pending,
}

// === impl KvEvents ===

impl KvEvents {
    /// None if nothing is to be published.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        let topic = format!("kv@{}@{}", settings.address, settings.model);
        Some(Self {
            settings: settings.kv_events?,
            block_tokens: settings.limits.block_tokens.get(),
            topic: topic.into(),
            publisher: Publisher::new(QUEUE),
            life: Mutex::default(),
            bound: OnceLock::new(),
        })
    }

    /// A batch of a replay, or its end, in the form that the dealer receives.
    fn replayed(&self, number: u64, batch: Bytes) -> Message {
        let is_end = batch.is_empty();
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        match self.settings.form {
            EventForm::Array => [Bytes::new(), number, batch].into(),
            EventForm::Map if is_end => [Bytes::new(), Bytes::new(), number, batch].into(),
            EventForm::Map => [Bytes::new(), self.topic.clone(), number, batch].into(),
        }
    }

    fn message(&self, number: u64, batch: Bytes) -> Message {
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        [self.topic.clone(), number, batch].into()
    }
}

impl CacheListener for KvEvents {
    fn happened(&self, events: Vec<CacheEvent>) {
        let now = Timestamp::now().as_duration().as_secs_f64();
        let batch = encode(
            self.settings.form,
            now,
            &events,
            self.block_tokens,
            self.settings.rank,
        );
        let batch = Bytes::from(batch);
        let mut life = self.life.lock();
        let strike = life.faults.strike();
        let number = life.next.saturating_add(strike.skipped);
        life.next = number.saturating_add(1);
        life.kept.push(number, batch.clone());
        for _ in 0..strike.copies {
            self.publisher.publish(self.message(number, batch.clone()));
        }
    }

    fn restarted(&self) {
        *self.life.lock() = Life::default();
        self.publisher.disconnect();
    }
}
