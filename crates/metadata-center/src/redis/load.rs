//! Charges: of owners, in batches, and owner-less ones, call by call.

use std::collections::{HashSet, VecDeque};

use futures::future::try_join_all;
use metadata::{
    Bound, Fault, Instance, RequestId,
    wire::{
        batch::{Applied, Batch, Put},
        load::Add,
    },
};

use super::{
    Shared,
    directory::Known,
    keys,
    link::{is_out_of_memory, unavailable},
    scripts::MAX_ITEMS,
};

/// For how long a delete waits for the add that it overtook.
const EARLY_MS: u64 = 2000;
/// The note where an owner-less charge is outlives the charge.
const NOTE_S: u64 = 60;
/// A batch begins again when the lease before it was ended, by it or by others.
const MAX_ATTEMPTS: usize = 8;
/// Calls to Redis at a time where one of each cluster is due.
const AT_ONCE: usize = 32;

/// Whether a note was written, the cluster that it names, and an early delete.
type Notes = (Option<String>, Option<String>, Option<String>);

/// A delete that came before its add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    Prompt,
    Whole,
}

/// What one step of freeing a lease did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) charges: usize,
    pub(super) leases: usize,
}

/// One item of a batch.
enum Item<'a> {
    /// A full batch does not name it.
    LeftOut(&'a str),
    Delete(&'a str),
    Put(&'a Put),
}

/// How many more there will be, of requests also less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Growth {
    requests: i64,
    endpoints: i64,
}

/// Charges, reservations and requests by endpoint, where there are some.
type Growing = (
    Vec<Option<String>>,
    Vec<Option<String>>,
    Vec<Option<String>>,
);

/// What Redis says to a part of a batch.
enum Part {
    Applied {
        live: u64,
        prompt_sum: i64,
    },
    /// A lease is in the way, of this epoch; over, or of an earlier epoch than the batch.
    Blocked {
        epoch: u64,
        over: bool,
    },
}

// === impl Shared ===

impl Shared {
    pub(super) async fn add(&self, add: Add, strict: bool) -> Result<(), Fault> {
        let note = keys::id(&add.request_id);
        let keep_s = self.limits.request_expire.as_secs() + NOTE_S;
        let mut first = redis::pipe();
        let cluster = add.cluster.as_str();
        first.cmd("SET").arg(&note).arg(cluster);
        first.arg("NX").arg("EX").arg(keep_s);
        first.cmd("GET").arg(&note);
        first.cmd("GET").arg(keys::gone(&add.request_id));
        let (set, noted, gone): Notes = self.link.query(&first).await?;
        if set.is_none()
            && let Some(noted) = noted
        {
            if let Some(ip) = self.find_unowned(&noted, &add.request_id).await? {
                return not_elsewhere(&add, &ip, strict);
            }
            let mut claim = redis::pipe();
            claim
                .cmd("SET")
                .arg(&note)
                .arg(cluster)
                .arg("EX")
                .arg(keep_s)
                .ignore();
            self.link.query::<()>(&claim).await?;
        }
        let early = gone.as_deref().map(Early::read);
        if early == Some(Early::Whole) {
            return self.forget(&[note]).await;
        }
        let charged = self.charge(&add, early.is_some()).await;
        match charged {
            Ok(None) => self.settle(&add.request_id, early.is_some()).await,
            Ok(Some(ip)) => not_elsewhere(&add, &ip, strict),
            Err(fault) => {
                if matches!(fault, Fault::Limit(_)) {
                    self.forget(&[note]).await?;
                }
                Err(fault)
            }
        }
    }

    /// The first token came, or with `whole` the end. An unknown request is remembered, also where `strict` says so.
    pub(super) async fn delete(
        &self,
        id: &RequestId,
        whole: bool,
        strict: bool,
    ) -> Result<(), Fault> {
        let (note, gone) = (keys::id(id), keys::gone(id));
        let mut first = redis::pipe();
        let early = if whole { Early::Whole } else { Early::Prompt };
        // A delete of the whole stays one.
        first.cmd("SET").arg(&gone).arg(early.text());
        if !whole {
            first.arg("NX");
        }
        first.arg("PX").arg(EARLY_MS).ignore();
        first.cmd("PEXPIRE").arg(&gone).arg(EARLY_MS).ignore();
        first.cmd("GET").arg(&note);
        let first: Result<(Option<String>,), _> = self.link.query(&first).await;
        let (noted,) = match &first {
            // Without memory there is no note of an early delete, but the others go on: they make room.
            Err(fault) if is_out_of_memory(fault) => {
                let mut look = redis::pipe();
                look.cmd("GET").arg(&note);
                self.link.query(&look).await?
            }
            _ => first.clone()?,
        };
        let found = match noted {
            Some(cluster) => self.end_unowned(&cluster, id, whole).await?,
            None => false,
        };
        match (found, whole) {
            (true, true) => self.forget(&[note, gone]).await,
            (true, false) => self.forget(&[gone]).await,
            (false, _) if first.is_err() => first.map(|_| ()),
            (false, _) if strict => Err(Fault::UnknownRequest(id.to_string())),
            (false, _) => Ok(()),
        }
    }

    pub(super) async fn batch(&self, batch: Batch) -> Result<Applied, Fault> {
        batch.validate()?;
        let known = if batch.full {
            self.open(&batch.cluster).await?
        } else {
            let known = self.directory.find_or_name(&batch.cluster);
            known.mark_used();
            known
        };
        let left_out = if batch.full {
            self.left_out(&known, &batch).await?
        } else {
            Vec::new()
        };
        let left_out = left_out.iter().map(|it| Item::LeftOut(it));
        let deletes = batch.deletes.iter().map(|it| Item::Delete(it.as_str()));
        let puts = batch.puts.iter().map(Item::Put);
        let items: Vec<_> = left_out.chain(deletes).chain(puts).collect();
        for _ in 0..MAX_ATTEMPTS {
            match self.apply(&known, &batch, &items).await? {
                Part::Applied { live, prompt_sum } => {
                    let left_out = |it: &&Item<'_>| matches!(it, Item::LeftOut(_));
                    let left_out = items.iter().filter(left_out).count();
                    self.freed.lock().left_out += left_out;
                    return Ok(Applied {
                        resync: (live, prompt_sum) != (batch.live, batch.prompt_sum),
                        lease_ms: batch.lease_ms,
                    });
                }
                Part::Blocked { epoch, over } => {
                    let instance = batch.instance.as_str();
                    let freed = self.free(&known, instance, epoch, !over).await?;
                    let mut all = self.freed.lock();
                    if over {
                        all.leases += freed.leases;
                        all.charges += freed.charges;
                    } else {
                        all.replaced += freed.charges;
                    }
                }
            }
        }
        Err(unavailable("the lease changes while it is looked at"))
    }

    pub(super) async fn end_leases(&self, instance: &Instance, epoch: u64) -> Result<(), Fault> {
        for part in self.directory.all().chunks(AT_ONCE) {
            let free = |known| self.free(known, instance.as_str(), epoch, true);
            for freed in try_join_all(part.iter().map(|it| free(it))).await? {
                self.freed.lock().released += freed.charges;
            }
        }
        Ok(())
    }

    /// Ends the lease of the instance if it is over, or with `force` if it is of this epoch or an earlier one.
    pub(super) async fn free(
        &self,
        known: &Known,
        instance: &str,
        epoch: u64,
        force: bool,
    ) -> Result<Freed, Fault> {
        let mut free = self.scripts.free.key(&known.prefix);
        free.arg(instance).arg(epoch).arg(u8::from(force));
        let mut freed = Freed::default();
        loop {
            let (charges, done, leases): (usize, bool, usize) = self.link.invoke(&free).await?;
            freed.charges += charges;
            freed.leases += leases;
            if done {
                return Ok(freed);
            }
        }
    }

    /// How many requests the cluster may have, the others being as they were at the last beat.
    pub(super) fn room(&self, known: &Known) -> i64 {
        room(self.limits.requests, self.directory.others(known).requests)
    }

    /// What the owner has beside the puts of its full batch. Nobody else writes there.
    async fn left_out(&self, known: &Known, batch: &Batch) -> Result<Vec<String>, Fault> {
        let puts: HashSet<_> = batch.puts.iter().map(|it| it.request_id.as_str()).collect();
        let deletes: HashSet<_> = batch.deletes.iter().map(RequestId::as_str).collect();
        let charges = owner_key(known, batch);
        let (mut cursor, mut left_out) = (0, HashSet::new());
        loop {
            let mut scan = redis::pipe();
            scan.cmd("HSCAN")
                .arg(&charges)
                .arg(cursor)
                .arg("COUNT")
                .arg(MAX_ITEMS);
            let ((next, found),): ((u64, Vec<(String, String)>),) = self.link.query(&scan).await?;
            let named = |id: &String| puts.contains(id.as_str()) || deletes.contains(id.as_str());
            left_out.extend(found.into_iter().map(|it| it.0).filter(|it| !named(it)));
            cursor = next;
            if cursor == 0 {
                return Ok(left_out.into_iter().collect());
            }
        }
    }

    /// Applies a batch in parts. Each looks whether there is room for those that follow too: all puts fit or none.
    async fn apply(&self, known: &Known, batch: &Batch, items: &[Item<'_>]) -> Result<Part, Fault> {
        let mut parts: Vec<_> = items.chunks(MAX_ITEMS).collect();
        let last = parts.pop().unwrap_or_default();
        let mut ahead = VecDeque::new();
        if !parts.is_empty() {
            ahead = self.growth(known, batch, items).await?;
        }
        for part in parts {
            // What follows this part.
            ahead.pop_front();
            let growth = ahead.front().copied().unwrap_or_default();
            let applied = self.apply_part(known, batch, part, Some(growth)).await?;
            if matches!(applied, Part::Blocked { .. }) {
                return Ok(applied);
            }
        }
        self.apply_part(known, batch, last, None).await
    }

    /// How much more there will be after each part of the batch and all that follow it.
    async fn growth(
        &self,
        known: &Known,
        batch: &Batch,
        items: &[Item<'_>],
    ) -> Result<VecDeque<Growth>, Fault> {
        let charges = owner_key(known, batch);
        let mut seen = HashSet::new();
        let mut growth = VecDeque::new();
        for part in items.chunks(MAX_ITEMS) {
            let puts: Vec<_> = part.iter().filter_map(Item::put).collect();
            let mut of_part = Growth::default();
            if !puts.is_empty() {
                let endpoints = puts.iter().map(|it| it.ip.to_string());
                let new: Vec<_> = endpoints.filter(|it| seen.insert(it.clone())).collect();
                let mut ask = redis::pipe();
                for (key, names) in [(&charges, &puts), (&known.key("w"), &puts)] {
                    ask.cmd("HMGET").arg(key);
                    for put in names {
                        ask.arg(put.request_id.as_str());
                    }
                }
                ask.cmd("HMGET").arg(known.key("n")).arg("").arg(&new);
                let answer: Growing = self.link.query(&ask).await?;
                of_part = Growth::of(&answer, puts.len(), new.len());
            }
            growth.push_back(of_part);
        }
        let mut sum = Growth::default();
        for of_part in growth.iter_mut().rev() {
            sum.requests += of_part.requests;
            sum.endpoints += of_part.endpoints;
            *of_part = sum;
        }
        Ok(growth)
    }

    async fn apply_part(
        &self,
        known: &Known,
        batch: &Batch,
        items: &[Item<'_>],
        ahead: Option<Growth>,
    ) -> Result<Part, Fault> {
        let is_last = ahead.is_none();
        let ahead = ahead.unwrap_or_default();
        let others = self.directory.others(known);
        let max_instances = self.limits.instances.saturating_mul(2);
        let mut script = self.scripts.batch.key(&known.prefix);
        script.arg(batch.instance.as_str()).arg(batch.epoch);
        script.arg(batch.shard).arg(batch.seq);
        script.arg(u8::from(batch.full)).arg(u8::from(is_last));
        script.arg(batch.lease_ms).arg(self.room(known));
        script.arg(room(self.limits.instances, others.leases));
        script.arg(room(max_instances, others.instances));
        script.arg(self.limits.endpoints);
        let left_out = |it: &&Item<'_>| matches!(it, Item::LeftOut(_));
        let delete = |it: &&Item<'_>| matches!(it, Item::Delete(_));
        script.arg(items.iter().filter(left_out).count());
        script.arg(items.iter().filter(delete).count());
        script.arg(ahead.requests).arg(ahead.endpoints);
        for item in items {
            match item {
                Item::LeftOut(id) | Item::Delete(id) => script.arg(*id),
                Item::Put(put) => {
                    script.arg(put.request_id.as_str()).arg(put.ip.to_string());
                    script.arg(i64::from(put.prompt_length))
                }
            };
        }
        let answer: Vec<String> = self.link.invoke(&script).await?;
        read_part(&answer, batch)
    }

    /// Charges a request to its endpoint; says where it is charged already.
    async fn charge(&self, add: &Add, prompt_done: bool) -> Result<Option<String>, Fault> {
        let known = self.open(&add.cluster).await?;
        let prefill = if prompt_done {
            0
        } else {
            add.prompt_length.into()
        };
        let mut script = self.scripts.add.key(&known.prefix);
        script.arg(add.request_id.as_str()).arg(add.ip.to_string());
        script.arg(prefill).arg(self.expire_ms());
        script
            .arg(self.room(&known))
            .arg(self.limits.endpoints)
            .arg(0);
        let answer: Vec<String> = self.link.invoke(&script).await?;
        match words(&answer).as_slice() {
            ["added"] => Ok(None),
            ["known", ip] => Ok(Some((*ip).to_owned())),
            answer => Err(refusal(answer)),
        }
    }

    /// Where the owner-less charge is.
    async fn find_unowned(&self, cluster: &str, id: &RequestId) -> Result<Option<String>, Fault> {
        let Ok(cluster) = cluster.parse() else {
            return Ok(None);
        };
        let known = self.directory.find_or_name(&cluster);
        let mut script = self.scripts.add.key(&known.prefix);
        script.arg(id.as_str()).arg("").arg(0).arg(self.expire_ms());
        script.arg(0).arg(0).arg(1);
        let answer: Vec<String> = self.link.invoke(&script).await?;
        Ok(match words(&answer).as_slice() {
            ["known", ip] => Some((*ip).to_owned()),
            ["unknown", ended] => {
                let ended = ended.parse().unwrap_or(0);
                self.directory.subtract_requests(&known, ended);
                None
            }
            _ => None,
        })
    }

    /// After a charge: a delete that came meanwhile did not find it.
    async fn settle(&self, id: &RequestId, was_early: bool) -> Result<(), Fault> {
        let gone = keys::gone(id);
        let mut look = redis::pipe();
        look.cmd("GET").arg(&gone);
        let (early,): (Option<String>,) = self.link.query(&look).await?;
        match early.as_deref().map(Early::read) {
            None => Ok(()),
            Some(Early::Prompt) if was_early => self.forget(&[gone]).await,
            Some(early) => self.delete(id, early == Early::Whole, false).await,
        }
    }

    /// Ends the prefill of an owner-less charge, or with `whole` the charge; says whether there is one.
    async fn end_unowned(&self, cluster: &str, id: &RequestId, whole: bool) -> Result<bool, Fault> {
        let Ok(cluster) = cluster.parse() else {
            return Ok(false);
        };
        let known = self.directory.find_or_name(&cluster);
        let script = if whole {
            &self.scripts.delete
        } else {
            &self.scripts.prompt
        };
        let mut script = script.key(&known.prefix);
        script.arg(id.as_str()).arg(self.expire_ms());
        self.link.invoke(&script).await
    }

    async fn forget(&self, keys: &[String]) -> Result<(), Fault> {
        let mut forget = redis::pipe();
        for key in keys {
            forget.cmd("DEL").arg(key).ignore();
        }
        self.link.query(&forget).await
    }

    pub(super) fn expire_ms(&self) -> u64 {
        u64::try_from(self.limits.request_expire.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Where the charges of the owner are.
fn owner_key(known: &Known, batch: &Batch) -> String {
    let Batch {
        instance,
        epoch,
        shard,
        ..
    } = batch;
    known.key(&format!("r:{instance}@{epoch}:{shard}"))
}

fn not_elsewhere(add: &Add, ip: &str, strict: bool) -> Result<(), Fault> {
    if strict && ip != add.ip.to_string() {
        return Err(Fault::Duplicate(add.request_id.to_string()));
    }
    Ok(())
}

fn room(limit: usize, others: i64) -> i64 {
    i64::try_from(limit)
        .unwrap_or(i64::MAX)
        .saturating_sub(others)
}

pub(super) fn words(answer: &[String]) -> Vec<&str> {
    answer.iter().map(String::as_str).collect()
}

fn read_part(answer: &[String], batch: &Batch) -> Result<Part, Fault> {
    let number = |text: &str| text.parse().map_err(|_| Fault::Internal);
    match words(answer).as_slice() {
        ["applied", live, sum] => Ok(Part::Applied {
            live: number(live)?,
            prompt_sum: sum.parse().map_err(|_| Fault::Internal)?,
        }),
        ["over", epoch] => Ok(Part::Blocked {
            epoch: number(epoch)?,
            over: true,
        }),
        ["replaces", epoch] => Ok(Part::Blocked {
            epoch: number(epoch)?,
            over: false,
        }),
        ["lease-lost"] => Err(Fault::LeaseLost),
        ["stale-epoch", current] => Err(Fault::StaleEpoch {
            current: number(current)?,
        }),
        ["stale-seq", last] => {
            let last = number(last)?;
            let applied = last == batch.seq;
            Err(Fault::StaleSeq { last, applied })
        }
        answer => Err(refusal(answer)),
    }
}

/// Of a script that says that something does not fit.
pub(super) fn refusal(answer: &[&str]) -> Fault {
    match answer {
        ["limit-requests"] => Fault::Limit(Bound::Requests),
        ["limit-endpoints"] => Fault::Limit(Bound::Endpoints),
        ["limit-instances"] => Fault::Limit(Bound::Instances),
        _ => Fault::Internal,
    }
}

// === impl Item ===

impl Item<'_> {
    fn put(&self) -> Option<&Put> {
        match self {
            Self::Put(put) => Some(put),
            Self::LeftOut(_) | Self::Delete(_) => None,
        }
    }
}

// === impl Growth ===

impl Growth {
    fn of((charges, reserved, endpoints): &Growing, puts: usize, new: usize) -> Self {
        let count = |them: &[Option<String>]| them.iter().flatten().count();
        let less = |all: usize, some: usize| {
            let signed = |it| i64::try_from(it).unwrap_or(i64::MAX);
            signed(all) - signed(some)
        };
        Self {
            requests: less(puts, count(charges) + count(reserved)),
            endpoints: less(new, count(endpoints)),
        }
    }
}

// === impl Early ===

impl Early {
    fn text(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Whole => "whole",
        }
    }

    fn read(text: &str) -> Self {
        if text == "prompt" {
            Self::Prompt
        } else {
            Self::Whole
        }
    }
}
