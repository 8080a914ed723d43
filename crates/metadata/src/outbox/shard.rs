//! One shard of an outbox.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hashbrown::HashMap;
use moment::Moment;
use xxhash_rust::xxh64::xxh64;

use super::{MAX_CHANGES, MAX_PUTS, Refusal, Reply, Shared};
use crate::{
    name::{Address, RequestId},
    wire::{
        batch::{Batch, Put},
        load::PromptLength,
    },
};

/// After the first refusal in a row that asks for nothing, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

type Charge = (Address, PromptLength);

#[derive(Debug)]
pub(super) struct Shard {
    entries: HashMap<RequestId, Entry>,
    /// Ids of entries that changed, each once.
    changed: VecDeque<RequestId>,
    /// Ids of entries for which the full batch had no room.
    rest: Vec<RequestId>,
    /// What the service has once the last batch is applied.
    live: u64,
    prompt_sum: i64,
    /// The next batch is to be full: what changed until then need not wait.
    needs_full: bool,
    /// Of the last batch.
    epoch: u64,
    seq: u64,
    under_way: Option<Arc<Batch>>,
    /// When there is to be a batch though nothing changed.
    renew_at: Moment,
    /// There is to be none before.
    not_before: Moment,
    /// Replies in a row that made the next batch a full one.
    refusals: u32,
}

/// One request.
#[derive(Debug, Default)]
struct Entry {
    /// None: it ended.
    wanted: Option<Charge>,
    /// As in the last batch that said something of it.
    sent: Option<Charge>,
    /// The service may have a reservation of it.
    reserved: bool,
    /// It is in `changed` or in `rest`.
    waits: bool,
}

/// What makes the next batch.
#[derive(Debug, Default)]
pub(super) struct Next {
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) full: bool,
    pub(super) puts: Vec<Put>,
    pub(super) deletes: Vec<RequestId>,
    pub(super) live: u64,
    pub(super) prompt_sum: i64,
}

// === impl Next ===

impl Next {
    fn len(&self) -> usize {
        self.puts.len() + self.deletes.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// === impl Shard ===

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            changed: VecDeque::new(),
            rest: Vec::new(),
            live: 0,
            prompt_sum: 0,
            // There is no lease yet.
            needs_full: true,
            epoch: 0,
            seq: 0,
            under_way: None,
            renew_at: Moment::START,
            not_before: Moment::START,
            refusals: 0,
        }
    }

    pub(super) fn put(&mut self, id: RequestId, charge: Charge, reserved: bool, shared: &Shared) {
        let entry = self.entries.entry_ref(&id).or_default();
        entry.reserved |= reserved;
        if entry.wanted != Some(charge) {
            entry.wanted = Some(charge);
            self.change(id, shared);
        }
    }

    pub(super) fn prompt_done(&mut self, id: &RequestId, shared: &Shared) {
        let none = PromptLength::default();
        let entry = self.entries.get_mut(id);
        if let Some((_, prompt)) = entry.and_then(|it| it.wanted.as_mut())
            && *prompt != none
        {
            *prompt = none;
            self.change(id.clone(), shared);
        }
    }

    pub(super) fn delete(&mut self, id: &RequestId, reserved: bool, shared: &Shared) {
        if reserved {
            self.entries.entry_ref(id).or_default().reserved = true;
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.wanted = None;
            self.change(id.clone(), shared);
        }
    }

    pub(super) fn need_full(&mut self) {
        self.needs_full = true;
    }

    pub(super) fn under_way(&self) -> Option<Arc<Batch>> {
        self.under_way.clone()
    }

    pub(super) fn start(&mut self, batch: Batch) -> Arc<Batch> {
        let batch = Arc::new(batch);
        self.under_way = Some(Arc::clone(&batch));
        batch
    }

    /// When `next` may give something.
    pub(super) fn due(&self, shared: &Shared) -> Moment {
        let is_full = self.needs_full || self.epoch != shared.epoch.load(Ordering::Relaxed);
        let waits = !self.changed.is_empty() || !self.rest.is_empty();
        if is_full || waits || self.under_way.is_some() {
            self.not_before
        } else {
            self.renew_at
        }
    }

    /// What the next batch is made of; none if there is nothing to say yet.
    pub(super) fn next(&mut self, shared: &Shared, now: Moment) -> Option<Next> {
        if now < self.not_before {
            return None;
        }
        let epoch = shared.epoch.load(Ordering::Relaxed);
        let mut next = Next {
            full: mem::take(&mut self.needs_full) || self.epoch != epoch,
            ..Next::default()
        };
        if next.full {
            self.say_all(&mut next, shared);
        } else {
            self.say_changed(&mut next, shared);
            self.say_rest(&mut next);
            if next.is_empty() && now < self.renew_at {
                return None;
            }
        }
        self.epoch = epoch;
        self.seq = self.seq.saturating_add(1);
        Some(Next {
            epoch,
            seq: self.seq,
            live: self.live,
            prompt_sum: self.prompt_sum,
            ..next
        })
    }

    pub(super) fn settle(&mut self, reply: &Reply, lease: Duration, now: Moment, shared: &Shared) {
        let Some(batch) = self.under_way.take() else {
            return;
        };
        let above = |epoch: u64| {
            let above = epoch.saturating_add(1);
            shared.epoch.fetch_max(above, Ordering::Relaxed);
        };
        let asks_for_full = match reply {
            Reply::Applied(applied) if applied.resync => true,
            Reply::Applied(_) => {
                (self.refusals, self.not_before) = (0, Moment::START);
                self.renew_at = now + lease / 3;
                return;
            }
            // Its first reply was lost. That was when the lease was renewed last: it may be over any time.
            Reply::Refused(Refusal::StaleSeq { applied: true, .. }) => {
                (self.refusals, self.not_before) = (0, Moment::START);
                self.renew_at = now;
                return;
            }
            Reply::Refused(refusal) => {
                match refusal {
                    Refusal::StaleEpoch { current } => above(current.unwrap_or(batch.epoch)),
                    // The last batch of this owner was not sent from here.
                    Refusal::StaleSeq { .. } => above(batch.epoch),
                    Refusal::LeaseLost | Refusal::Other => {}
                }
                refusal.asks_for_full()
            }
        };
        self.needs_full = true;
        self.not_before = now + self.back_off(asks_for_full, &batch);
        self.refusals = self.refusals.saturating_add(1);
    }

    fn back_off(&self, at_once: bool, batch: &Batch) -> Duration {
        let (first, most) = BACK_OFF;
        let Some(before) = self.refusals.checked_sub(u32::from(at_once)) else {
            return Duration::ZERO;
        };
        let delay = first.saturating_mul(1 << before.min(16)).min(most);
        // Not at the same time as other shards and instances: each its own part of the second half.
        let owner = batch.seq.rotate_left(32).wrapping_add(batch.shard.into());
        let part = xxh64(batch.instance.as_str().as_bytes(), owner) % 1024;
        delay / 2 + delay / 2 * u32::try_from(part).unwrap_or(0) / 1024
    }

    /// The entry is other than it was.
    fn change(&mut self, id: RequestId, shared: &Shared) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.waits {
            return;
        }
        if !self.needs_full {
            if shared.waiting.try_add() {
                entry.waits = true;
                self.changed.push_back(id);
                return;
            }
            self.needs_full = true;
        }
        // A full batch leaves out what ended, and a reservation ends by itself: nothing is to be kept.
        if entry.wanted.is_none() {
            self.forget(&id);
        }
    }

    fn say_changed(&mut self, next: &mut Next, shared: &Shared) {
        // What began and ended since says nothing, and makes room for the others.
        while next.len() < MAX_CHANGES
            && let Some(id) = self.changed.pop_front()
        {
            shared.waiting.remove(1);
            self.say(id, next);
        }
    }

    fn say_rest(&mut self, next: &mut Next) {
        while next.len() < MAX_PUTS
            && let Some(id) = self.rest.pop()
        {
            self.say(id, next);
        }
        if self.rest.is_empty() {
            self.rest = Vec::new();
        }
    }

    /// Puts an entry that waited into the batch.
    fn say(&mut self, id: RequestId, next: &mut Next) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.waits = false;
        match entry.wanted {
            Some(charge) if entry.sent == Some(charge) && !entry.reserved => {}
            Some(charge) => {
                let sent = entry.sent.replace(charge);
                entry.reserved = false;
                self.count(sent, Some(charge));
                next.puts.push(put(id, charge));
            }
            None => {
                // What was never sent needs no end.
                let known = entry.sent.is_some() || entry.reserved;
                self.forget(&id);
                if known {
                    next.deletes.push(id);
                }
            }
        }
    }

    /// All that there is, as far as it fits: the rest waits.
    fn say_all(&mut self, next: &mut Next, shared: &Shared) {
        let changed = mem::take(&mut self.changed);
        shared.waiting.remove(changed.len());
        let rest = mem::take(&mut self.rest);
        for id in changed.into_iter().chain(rest) {
            self.end_unsaid(id, next);
        }
        (self.live, self.prompt_sum) = (0, 0);
        for (id, entry) in &mut self.entries {
            let Some(charge) = entry.wanted else {
                continue;
            };
            if next.puts.len() == MAX_PUTS {
                (entry.sent, entry.waits) = (None, true);
                self.rest.push(id.clone());
            } else {
                (entry.sent, entry.reserved) = (Some(charge), false);
                self.live += 1;
                self.prompt_sum += i64::from(charge.1);
                next.puts.push(put(id.clone(), charge));
            }
        }
    }

    /// A full batch follows, which leaves out what ended: only reservations need a delete. Beyond some they end by
    /// themselves.
    fn end_unsaid(&mut self, id: RequestId, next: &mut Next) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.waits = false;
        if entry.wanted.is_none() {
            let reserved = entry.reserved;
            self.entries.remove(&id);
            if reserved && next.deletes.len() < MAX_CHANGES {
                next.deletes.push(id);
            }
        }
    }

    fn forget(&mut self, id: &RequestId) {
        if let Some(entry) = self.entries.remove(id) {
            self.count(entry.sent, None);
        }
    }

    fn count(&mut self, before: Option<Charge>, after: Option<Charge>) {
        let length = |it: Option<Charge>| it.map_or(0, |it| i64::from(it.1));
        self.live = self.live + u64::from(after.is_some()) - u64::from(before.is_some());
        self.prompt_sum += length(after) - length(before);
    }
}

fn put(request_id: RequestId, (ip, prompt_length): Charge) -> Put {
    Put {
        request_id,
        ip,
        prompt_length,
    }
}
