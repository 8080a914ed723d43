//! What is known of all members at one moment, in columns of plain values.
//!
//! A table holds no lock, no atomic and no reference into the process: with a [`crate::Profile`] it is all that
//! [`crate::choose`] needs, here or in another process that got a copy. What is chosen there is reported by its slot.

use std::sync::Arc;

use moment::Moment;

use crate::{
    load::{Freshness, Load, Lora, Quality, Reading, Values},
    request::Subset,
    slot::Slot,
    snapshot::Roster,
};

/// The members of one snapshot and their load. Each column has one value per member, in the order of the roster.
#[derive(Clone, Debug, Default)]
pub struct Table {
    roster: Arc<Roster>,
    /// Waiting requests, our own unseen ones included; never negative.
    pub waiting: Vec<f64>,
    /// Waiting requests as scraped alone.
    pub scraped_waiting: Vec<f64>,
    /// Running requests.
    pub running: Vec<f64>,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Vec<f64>,
    /// Requests of ours in flight.
    pub in_flight: Vec<u32>,
    /// Uncached prompt tokens of those whose response has not begun.
    pub tokens: Vec<u64>,
    /// Unfinished prefill, as the LLM filter charges it.
    pub prefill: Vec<u64>,
    /// Trust in the queue's length.
    pub quality: Vec<Quality>,
    /// Places of what members have cached.
    pub cache_slots: Vec<Slot>,
    /// LoRA adapters; empty where nobody asked for them.
    pub adapters: Vec<Adapters>,
    readings: Vec<Reading>,
}

/// The LoRA adapters of one member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapters {
    /// The adapters from the last scrape; absent if the engine reports none, or reported them too long ago.
    pub scraped: Option<Arc<Lora>>,
    /// Of our own requests that no scrape has seen.
    pub unseen: Vec<Arc<str>>,
}

/// Means over all members; zeros for an empty pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Averages {
    /// Waiting requests, our own unseen ones included.
    pub waiting: f64,
    /// Waiting requests as scraped alone.
    pub scraped_waiting: f64,
    /// Running requests.
    pub running: f64,
    /// Used share of the KV cache, 0 to 1.
    pub kv: f64,
}

// === impl Table ===

impl Table {
    /// Number of members.
    pub fn len(&self) -> usize {
        self.readings.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    /// What is fixed of the members.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The members that may be picked, as indexes: all, or what the subset allows.
    pub(crate) fn allowed(&self, subset: Option<&Subset>) -> Vec<u32> {
        match subset {
            Some(subset) => self.roster.allowed(subset),
            None => (0..u32::try_from(self.len()).unwrap_or(u32::MAX)).collect(),
        }
    }

    pub(crate) fn reset(&mut self, roster: &Arc<Roster>) {
        let Self {
            roster: former,
            waiting,
            scraped_waiting,
            running,
            kv,
            in_flight,
            tokens,
            prefill,
            quality,
            cache_slots,
            adapters,
            readings,
        } = self;
        if !Arc::ptr_eq(former, roster) {
            *former = Arc::clone(roster);
        }
        for column in [waiting, scraped_waiting, running, kv] {
            column.clear();
        }
        in_flight.clear();
        tokens.clear();
        prefill.clear();
        quality.clear();
        cache_slots.clear();
        adapters.clear();
        readings.clear();
    }

    pub(crate) fn push(&mut self, load: &Load, now: Moment, freshness: Freshness, adapters: bool) {
        let reading = load.read(now, freshness);
        self.in_flight.push(reading.in_flight);
        self.tokens.push(reading.tokens);
        self.prefill.push(reading.prefill);
        self.quality.push(reading.quality);
        let slot = self.roster.slots.get(self.readings.len()).copied();
        let slot = slot.unwrap_or_default().after_restarts(reading.restarts);
        self.cache_slots.push(slot);
        self.readings.push(reading);
        if adapters {
            let mut unseen = Vec::new();
            load.unseen_adapters(&mut unseen);
            self.adapters.push(Adapters {
                scraped: load.lora(now, freshness),
                unseen,
            });
        }
    }

    /// Computes what depends on all members.
    pub(crate) fn fill(&mut self) {
        let mean = mean(&self.readings);
        for reading in &self.readings {
            let filled = reading.filled(mean);
            self.waiting.push(filled.waiting);
            let scraped = reading.scraped.waiting.unwrap_or(mean.waiting);
            self.scraped_waiting.push(scraped);
            self.running.push(filled.running);
            self.kv.push(filled.kv);
        }
    }
}

// === impl Averages ===

impl Averages {
    /// The means of the table.
    pub fn of(table: &Table) -> Self {
        let mean = |column: &[f64]| {
            if column.is_empty() {
                0.0
            } else {
                column.iter().sum::<f64>() / column.len() as f64
            }
        };
        Self {
            waiting: mean(&table.waiting),
            scraped_waiting: mean(&table.scraped_waiting),
            running: mean(&table.running),
            kv: mean(&table.kv),
        }
    }
}

/// The mean of each value over the readings that have it; zero where none has.
fn mean(readings: &[Reading]) -> Values<f64> {
    let mean = |value: fn(&Reading) -> Option<f64>| {
        let (sum, count) = readings
            .iter()
            .filter_map(value)
            .fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    };
    Values {
        waiting: mean(|reading| reading.scraped.waiting),
        running: mean(|reading| reading.scraped.running),
        kv: mean(|reading| reading.scraped.kv),
    }
}
