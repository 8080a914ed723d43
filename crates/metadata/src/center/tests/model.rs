//! The rules of load in their plainest form, and what an engine is to answer.

use std::collections::BTreeMap;

use super::*;

/// One call to an engine.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Add(Add, bool),
    PromptDone(RequestId, bool),
    Remove(RequestId, bool),
    Batch(Batch),
    Pick(Pick),
    EndLeases(Instance, u64),
    Sweep,
    Restart,
}

/// What a call answers: of a pick the endpoint and its charge.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Done,
    Applied { resync: bool },
    Picked(Address, i64),
    Refused(Fault),
}

/// Requests and prefill by endpoint, where there are some.
pub(super) type Loads = BTreeMap<(Cluster, Address), (i64, i64)>;

/// What can run the calls: the state in memory, or one that is elsewhere.
pub(super) trait Engine {
    fn run(&mut self, call: &Call, now: Now) -> Answer;
    fn loads(&self) -> Loads;
    /// Requests and prefill of each cluster, which are below 0 where too much was taken off.
    fn sums(&self) -> Vec<(Cluster, i64, i64)>;
    /// Charges with reservations, reservations alone, live leases.
    fn sizes(&self) -> (usize, usize, usize);
}

#[derive(Debug)]
pub(super) struct Model {
    limits: Limits,
    clusters: BTreeMap<Cluster, InCluster>,
    unowned: BTreeMap<RequestId, (Cluster, Charge, Moment)>,
    early: BTreeMap<RequestId, (bool, Moment)>,
}

#[derive(Debug)]
struct InCluster {
    used: Moment,
    reservations: BTreeMap<RequestId, (Charge, Moment)>,
    terms: BTreeMap<Instance, Term>,
}

#[derive(Debug)]
struct Term {
    epoch: u64,
    live: bool,
    deadline: Moment,
    /// Last batch and charges, by shard.
    owners: BTreeMap<u32, (u64, BTreeMap<RequestId, Charge>)>,
}

type Charge = (Address, i64);

fn of_cluster(loads: &Loads, name: &Cluster) -> Loads {
    let mut of = loads.clone();
    of.retain(|(cluster, _), _| cluster == name);
    of
}

// === impl Model ===

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            clusters: BTreeMap::new(),
            unowned: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    /// What the call is to answer. `picked` is what the engine picked, which chance decides.
    pub(super) fn run(&mut self, call: &Call, picked: Option<Address>, now: Now) -> Answer {
        let before = self.loads();
        let answer = self.answer(call, picked, now);
        // A cluster is in use while its load changes.
        let after = self.loads();
        for (name, cluster) in &mut self.clusters {
            if of_cluster(&before, name) != of_cluster(&after, name) {
                cluster.used = now.at;
            }
        }
        answer
    }

    fn answer(&mut self, call: &Call, picked: Option<Address>, now: Now) -> Answer {
        let done = match call {
            Call::Add(add, strict) => self.add(add, *strict, now.at),
            Call::PromptDone(id, strict) => self.delete(id, false, *strict, now.at),
            Call::Remove(id, strict) => self.delete(id, true, *strict, now.at),
            Call::Batch(batch) => return self.batch(batch, now.at).unwrap_or_else(Answer::Refused),
            Call::Pick(pick) => {
                return self
                    .pick(pick, picked, now.at)
                    .unwrap_or_else(Answer::Refused);
            }
            Call::EndLeases(instance, epoch) => {
                for cluster in self.clusters.values_mut() {
                    let term = cluster.terms.get_mut(instance);
                    term.filter(|it| it.epoch <= *epoch).map(Term::end);
                }
                Ok(())
            }
            Call::Sweep => {
                self.sweep(now.at);
                Ok(())
            }
            Call::Restart => {
                *self = Self::new(self.limits);
                Ok(())
            }
        };
        done.map_or_else(Answer::Refused, |()| Answer::Done)
    }

    pub(super) fn loads(&self) -> Loads {
        let mut loads = Loads::new();
        for (cluster, (ip, prefill)) in self.charges() {
            let load = loads.entry((cluster, ip)).or_default();
            *load = (load.0 + 1, load.1 + prefill);
        }
        loads
    }

    pub(super) fn sums(&self) -> Vec<(Cluster, i64, i64)> {
        let of = |name: &Cluster| {
            let of_cluster = of_cluster(&self.loads(), name);
            let sum = of_cluster
                .values()
                .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            (name.clone(), sum.0, sum.1)
        };
        self.clusters.keys().map(of).collect()
    }

    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let clusters = || self.clusters.values();
        let reservations = clusters().map(|it| it.reservations.len()).sum();
        let leases = clusters().flat_map(|it| it.terms.values());
        let leases = leases.filter(|it| it.live).count();
        (self.charges().len(), reservations, leases)
    }

    fn charges(&self) -> Vec<(Cluster, Charge)> {
        let unowned = self.unowned.values().map(|it| (it.0.clone(), it.1));
        let mut charges: Vec<_> = unowned.collect();
        for (name, cluster) in &self.clusters {
            let reserved = cluster.reservations.values().map(|it| it.0);
            let owners = cluster.terms.values().flat_map(|it| it.owners.values());
            let owned = owners.flat_map(|(_, charges)| charges.values().copied());
            charges.extend(reserved.chain(owned).map(|it| (name.clone(), it)));
        }
        charges
    }

    fn open(&mut self, name: &Cluster, now: Moment) -> &mut InCluster {
        let cluster = self.clusters.entry(name.clone()).or_insert(InCluster {
            used: now,
            reservations: BTreeMap::new(),
            terms: BTreeMap::new(),
        });
        cluster.used = now;
        cluster
    }

    fn has_room(&self, more: usize) -> Result<(), Fault> {
        if self.charges().len() + more > self.limits.requests {
            return Err(Fault::Limit(Bound::Requests));
        }
        Ok(())
    }

    fn end_unowned_if_over(&mut self, id: &RequestId, now: Moment) {
        self.unowned
            .retain(|it, (_, _, until)| it != id || *until > now);
        self.early.retain(|it, (_, until)| it != id || *until > now);
    }

    fn add(&mut self, add: &Add, strict: bool, now: Moment) -> Result<(), Fault> {
        let id = &add.request_id;
        self.end_unowned_if_over(id, now);
        if let Some((_, (ip, _), _)) = self.unowned.get(id) {
            if strict && *ip != add.ip {
                return Err(Fault::Duplicate(id.to_string()));
            }
            return Ok(());
        }
        let early = self.early.get(id).map(|it| it.0);
        if early == Some(true) {
            return Ok(());
        }
        if self
            .open(&add.cluster, now)
            .reservations
            .remove(id)
            .is_none()
        {
            self.has_room(1)?;
        }
        self.early.remove(id);
        let prefill = early.map_or(add.prompt_length.into(), |_| 0);
        let until = now + self.limits.request_expire;
        let charge = (add.cluster.clone(), (add.ip, prefill), until);
        self.unowned.insert(id.clone(), charge);
        Ok(())
    }

    fn delete(
        &mut self,
        id: &RequestId,
        whole: bool,
        strict: bool,
        now: Moment,
    ) -> Result<(), Fault> {
        self.end_unowned_if_over(id, now);
        if let Some((_, (_, prefill), _)) = self.unowned.get_mut(id) {
            *prefill = 0;
            if whole {
                self.unowned.remove(id);
            }
            return Ok(());
        }
        let was = self.early.get(id).is_some_and(|it| it.0);
        let until = now + Duration::from_secs(2);
        self.early.insert(id.clone(), (was || whole, until));
        if strict {
            return Err(Fault::UnknownRequest(id.to_string()));
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch, now: Moment) -> Result<Answer, Fault> {
        if !batch.full && !self.clusters.contains_key(&batch.cluster) {
            return Err(Fault::LeaseLost);
        }
        let lease = Duration::from_millis(batch.lease_ms.into());
        let terms = &mut self.open(&batch.cluster, now).terms;
        let Batch {
            instance, epoch, ..
        } = batch;
        if let Some(term) = terms.get_mut(instance) {
            if batch.epoch < term.epoch {
                let current = term.epoch;
                return Err(Fault::StaleEpoch { current });
            }
            if term.deadline <= now {
                term.end();
            }
        }
        let has_lease = terms
            .get(instance)
            .is_some_and(|it| it.live && it.epoch == *epoch);
        if !has_lease && !batch.full {
            return Err(Fault::LeaseLost);
        }
        if terms.get(instance).is_none_or(|it| it.epoch < *epoch) {
            let term = Term {
                epoch: *epoch,
                live: true,
                deadline: now + lease,
                owners: BTreeMap::new(),
            };
            terms.insert(instance.clone(), term);
        }
        let term = terms.get_mut(instance).unwrap();
        if let Some((last, _)) = term.owners.get(&batch.shard)
            && batch.seq <= *last
        {
            let (last, applied) = (*last, batch.seq == *last);
            return Err(if applied && !has_lease {
                Fault::LeaseLost
            } else {
                Fault::StaleSeq { last, applied }
            });
        }
        term.live = true;
        term.deadline = now + lease;
        self.end_charges(batch);
        self.put(batch)
    }

    /// What a batch ends, whether or not its puts fit.
    fn end_charges(&mut self, batch: &Batch) {
        let cluster = self.clusters.get_mut(&batch.cluster).unwrap();
        let deleted = |id: &RequestId| batch.deletes.contains(id);
        cluster.reservations.retain(|id, _| !deleted(id));
        let put = |id: &RequestId| batch.puts.iter().any(|it| it.request_id == *id);
        let left_out = |id: &RequestId| batch.full && !put(id);
        let term = cluster.terms.get_mut(&batch.instance).unwrap();
        if let Some((_, charges)) = term.owners.get_mut(&batch.shard) {
            charges.retain(|id, _| !deleted(id) && !left_out(id));
        }
    }

    fn put(&mut self, batch: &Batch) -> Result<Answer, Fault> {
        let cluster = &self.clusters[&batch.cluster];
        let owner = cluster.terms[&batch.instance].owners.get(&batch.shard);
        let mut charges = owner.map(|it| it.1.clone()).unwrap_or_default();
        let before = charges.len();
        let mut confirmed = 0;
        for put in &batch.puts {
            let id = &put.request_id;
            confirmed += usize::from(cluster.reservations.contains_key(id));
            charges.insert(id.clone(), (put.ip, put.prompt_length.into()));
        }
        let more = (charges.len() - before).saturating_sub(confirmed);
        if more > 0 {
            self.has_room(more)?;
        }
        let totals = (charges.len() as u64, charges.values().map(|it| it.1).sum());
        let cluster = self.clusters.get_mut(&batch.cluster).unwrap();
        for put in &batch.puts {
            cluster.reservations.remove(&put.request_id);
        }
        let term = cluster.terms.get_mut(&batch.instance).unwrap();
        term.owners.insert(batch.shard, (batch.seq, charges));
        let resync = totals != (batch.live, batch.prompt_sum);
        Ok(Answer::Applied { resync })
    }

    fn pick(&mut self, pick: &Pick, picked: Option<Address>, now: Moment) -> Result<Answer, Fault> {
        let id = &pick.request_id;
        let reservations = &mut self.open(&pick.cluster, now).reservations;
        reservations.retain(|it, (_, until)| it != id || *until > now);
        if let Some(((ip, prefill), _)) = reservations.get(id) {
            return Ok(Answer::Picked(*ip, *prefill));
        }
        self.has_room(1)?;
        let picked = picked.expect("there is room");
        let loads = self.loads();
        let load = |ip: Address| *loads.get(&(pick.cluster.clone(), ip)).unwrap_or(&(0, 0));
        let of_picked = load(picked);
        for other in &pick.candidates {
            let other = load(other.ip);
            let better = other.0 < of_picked.0 && other.1 < of_picked.1;
            assert!(
                !better,
                "{of_picked:?} was picked, {other:?} is better in all"
            );
        }
        assert!(pick.candidates.iter().any(|it| it.ip == picked));
        let prefill = pick.prompt_length.into();
        let until = now + Duration::from_millis(pick.reserve_ms.into());
        let reservations = &mut self.open(&pick.cluster, now).reservations;
        reservations.insert(id.clone(), ((picked, prefill), until));
        Ok(Answer::Picked(picked, prefill))
    }

    fn sweep(&mut self, now: Moment) {
        let keep = self.limits.request_expire;
        let before = self.loads();
        self.unowned.retain(|_, (_, _, until)| *until > now);
        self.early.retain(|_, (_, until)| *until > now);
        for cluster in self.clusters.values_mut() {
            cluster.reservations.retain(|_, (_, until)| *until > now);
            let terms = cluster.terms.values_mut();
            terms.filter(|it| it.deadline <= now).for_each(Term::end);
            let keep = |it: &Term| it.live || now.since(it.deadline) < keep;
            cluster.terms.retain(|_, it| keep(it));
        }
        let loads = self.loads();
        let changed = |name: &Cluster| of_cluster(&before, name) != of_cluster(&loads, name);
        self.clusters.retain(|name, it| {
            let live = it.terms.values().any(|it| it.live);
            let load = loads.keys().any(|(cluster, _)| cluster == name);
            live || load || changed(name) || now.since(it.used) < keep
        });
    }
}

// === impl Term ===

impl Term {
    fn end(&mut self) {
        self.live = false;
        self.owners.values_mut().for_each(|it| it.1.clear());
    }
}
