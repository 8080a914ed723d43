//! One shard of an outbox.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering},
};

use hashbrown::HashMap;
use moment::Moment;

use super::{MAX_CHANGES, Reply, Shared};
use crate::{
    fault::Fault,
    name::{Address, RequestId},
    wire::{
        batch::{Batch, Put},
        load::PromptLength,
    },
};

type Charge = (Address, PromptLength);

#[derive(Debug)]
pub(super) struct Shard {
    entries: HashMap<RequestId, Entry>,
    /// Ids of entries that changed, each once.
    changed: VecDeque<RequestId>,
    /// What the service has once the last batch is applied.
    live: u64,
    prompt_sum: i64,
    /// The next batch is to be full: what changed until then need not wait.
    needs_full: bool,
    /// Of the last batch.
    epoch: u64,
    seq: u64,
    under_way: Option<Arc<Batch>>,
    pub(super) renew_at: Moment,
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
    /// It is in `changed`.
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

// === impl Shard ===

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            changed: VecDeque::new(),
            live: 0,
            prompt_sum: 0,
            // There is no lease yet.
            needs_full: true,
            epoch: 0,
            seq: 0,
            under_way: None,
            renew_at: Moment::START,
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

    /// What the next batch is made of; none if there is nothing to say yet.
    pub(super) fn next(&mut self, shared: &Shared, now: Moment) -> Option<Next> {
        let epoch = shared.epoch.load(Ordering::Relaxed);
        let mut next = Next {
            full: mem::take(&mut self.needs_full) || self.epoch != epoch,
            ..Next::default()
        };
        let changed = if next.full {
            mem::take(&mut self.changed)
        } else {
            let count = self.changed.len().min(MAX_CHANGES);
            self.changed.drain(..count).collect()
        };
        shared.done_waiting(changed.len());
        for id in changed {
            self.say(id, &mut next);
        }
        if next.full {
            self.say_all(&mut next);
        } else if next.puts.is_empty() && next.deletes.is_empty() && now < self.renew_at {
            return None;
        }
        self.epoch = epoch;
        self.seq += 1;
        Some(Next {
            epoch,
            seq: self.seq,
            live: self.live,
            prompt_sum: self.prompt_sum,
            ..next
        })
    }

    pub(super) fn settle(&mut self, reply: &Reply, renew_at: Moment, shared: &Shared) {
        if self.under_way.take().is_none() {
            return;
        }
        match reply {
            Reply::Applied(applied) => {
                self.needs_full |= applied.resync;
                self.renew_at = renew_at;
            }
            // Its first reply was lost.
            Reply::Refused(Fault::StaleSeq { applied: true, .. }) => self.renew_at = renew_at,
            Reply::Refused(fault) => {
                match fault {
                    Fault::StaleEpoch { current } => {
                        let above = current.saturating_add(1);
                        shared.epoch.fetch_max(above, Ordering::Relaxed);
                    }
                    Fault::StaleSeq { last, .. } => self.seq = self.seq.max(*last),
                    _ => {}
                }
                self.needs_full = true;
            }
        }
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
            if shared.try_wait() {
                entry.waits = true;
                self.changed.push_back(id);
                return;
            }
            shared.overflows.fetch_add(1, Ordering::Relaxed);
            self.needs_full = true;
        }
        // A full batch leaves out what ended, and a reservation ends by itself: nothing is to be kept.
        if entry.wanted.is_none() {
            self.forget(&id);
        }
    }

    /// Puts a changed entry into the batch.
    fn say(&mut self, id: RequestId, next: &mut Next) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.waits = false;
        match entry.wanted {
            // All of these follow.
            Some(_) if next.full => {}
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

    fn say_all(&mut self, next: &mut Next) {
        (self.live, self.prompt_sum) = (0, 0);
        let (mut live, mut prompt_sum) = (0, 0);
        let puts = self.entries.iter_mut().filter_map(|(id, entry)| {
            let charge = entry.wanted?;
            entry.sent = Some(charge);
            entry.reserved = false;
            live += 1;
            prompt_sum += i64::from(charge.1);
            Some(put(id.clone(), charge))
        });
        next.puts.extend(puts);
        (self.live, self.prompt_sum) = (live, prompt_sum);
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
