//! One shard of such an outbox.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{Sum, Write};
use crate::{
    name::{Address, Cluster, RequestId},
    outbox::waiting::Waiting,
    wire::load::{Add, Drop, PromptLength},
};

type Charge = (Address, PromptLength);

#[derive(Debug)]
pub(super) struct Shard {
    entries: HashMap<RequestId, Entry>,
    /// Ids of entries that changed, each once.
    changed: VecDeque<RequestId>,
    under_way: Option<Write>,
    by_endpoint: HashMap<Address, Sums>,
}

/// One request.
#[derive(Debug, Default)]
struct Entry {
    /// None: it ended.
    wanted: Option<Charge>,
    /// As the service has it.
    acknowledged: Option<Charge>,
    /// It is in `changed`, or its write is under way: it is looked at again.
    waits: bool,
}

#[derive(Debug, Default, PartialEq)]
struct Sums {
    wanted: Sum,
    acknowledged: Sum,
}

// === impl Shard ===

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            changed: VecDeque::new(),
            under_way: None,
            by_endpoint: HashMap::new(),
        }
    }

    pub(super) fn put(&mut self, id: RequestId, charge: Charge, waiting: &Waiting) {
        self.entries.entry_ref(&id).or_default();
        self.want(&id, Some(charge), waiting);
    }

    pub(super) fn prompt_done(&mut self, id: &RequestId, waiting: &Waiting) {
        let wanted = self.entries.get(id).and_then(|it| it.wanted);
        if let Some((ip, _)) = wanted {
            self.want(id, Some((ip, PromptLength::default())), waiting);
        }
    }

    pub(super) fn delete(&mut self, id: &RequestId, waiting: &Waiting) {
        self.want(id, None, waiting);
    }

    pub(super) fn take(&mut self, cluster: &Cluster, waiting: &Waiting) -> Option<Write> {
        while self.under_way.is_none()
            && let Some(id) = self.changed.pop_front()
        {
            waiting.remove(1);
            self.under_way = self.write(id, cluster);
        }
        self.under_way.clone()
    }

    pub(super) fn settle(&mut self, accepted: bool, waiting: &Waiting) {
        let write = self.under_way.take();
        // Such a charge waits for its next change.
        let is_refused_add = !accepted && matches!(write, Some(Write::Add(_)));
        let (id, acknowledged) = match write {
            None => return,
            Some(Write::Add(add)) => {
                let charge = accepted.then_some((add.ip, add.prompt_length));
                (add.request_id, charge)
            }
            // What it does not know has no prefill and no request there.
            Some(Write::PromptDone(Drop { request_id })) => {
                let charge = self.entries.get(&request_id);
                let charge = charge.and_then(|it| it.acknowledged);
                (
                    request_id,
                    charge.map(|(ip, _)| (ip, PromptLength::default())),
                )
            }
            Some(Write::Delete(Drop { request_id })) => (request_id, None),
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.waits = false;
        let before = std::mem::replace(&mut entry.acknowledged, acknowledged);
        let changed = entry.wanted != entry.acknowledged;
        self.count(before, acknowledged, |it| &mut it.acknowledged);
        if changed && !is_refused_add {
            self.wait(id, waiting);
        } else {
            self.forget_ended(&id);
        }
    }

    pub(super) fn charged(&self, ip: &Address) -> Sum {
        self.by_endpoint
            .get(ip)
            .map_or(Sum::default(), |it| it.wanted)
    }

    pub(super) fn acknowledged(&self, ip: &Address) -> Sum {
        let sums = self.by_endpoint.get(ip);
        sums.map_or(Sum::default(), |it| it.acknowledged)
    }

    fn want(&mut self, id: &RequestId, wanted: Option<Charge>, waiting: &Waiting) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut entry.wanted, wanted);
        if before == wanted {
            return;
        }
        self.count(before, wanted, |it| &mut it.wanted);
        self.wait(id.clone(), waiting);
    }

    /// The entry is to be looked at.
    fn wait(&mut self, id: RequestId, waiting: &Waiting) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.waits {
            return;
        }
        match (entry.acknowledged, entry.wanted) {
            (None, None) => return self.forget_ended(&id),
            // It is charged here alone until it changes again.
            (None, Some(_)) if !waiting.try_add() => return,
            (None, Some(_)) => {}
            (Some(_), _) => waiting.add(),
        }
        entry.waits = true;
        self.changed.push_back(id);
    }

    /// What brings the service nearer to what is wanted.
    fn write(&mut self, id: RequestId, cluster: &Cluster) -> Option<Write> {
        let entry = self.entries.get_mut(&id)?;
        let none = PromptLength::default();
        let write = match (entry.acknowledged, entry.wanted) {
            (None, Some((ip, prompt_length))) => Write::Add(Add {
                cluster: cluster.clone(),
                request_id: id,
                ip,
                prompt_length,
            }),
            (was, is) if was == is => {
                entry.waits = false;
                self.forget_ended(&id);
                return None;
            }
            (Some((was, _)), Some((ip, prompt))) if was == ip && prompt == none => {
                Write::PromptDone(Drop { request_id: id })
            }
            // What moved is added again after that; a service that remembers early deletes ignores that add for some time
            // if this one was repeated.
            _ => Write::Delete(Drop { request_id: id }),
        };
        Some(write)
    }

    fn forget_ended(&mut self, id: &RequestId) {
        let ended = |it: &Entry| (it.wanted, it.acknowledged) == (None, None);
        if self.entries.get(id).is_some_and(ended) {
            self.entries.remove(id);
        }
    }

    fn count(
        &mut self,
        before: Option<Charge>,
        after: Option<Charge>,
        sum: fn(&mut Sums) -> &mut Sum,
    ) {
        for (charge, sign) in [(before, -1), (after, 1)] {
            let Some((ip, prompt)) = charge else {
                continue;
            };
            let sums = self.by_endpoint.entry(ip).or_default();
            let of = sum(sums);
            of.requests += sign;
            of.prefill += sign * i64::from(prompt);
            if *sums == Sums::default() {
                self.by_endpoint.remove(&ip);
            }
        }
    }
}
