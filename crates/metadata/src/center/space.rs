//! What there is of one cluster.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::{Mutex, RwLock};

use super::{
    Now,
    charges::Charges,
    endpoints::{Charge, Endpoints, Table, nanos},
    lease::{Owner, Reporter, Term},
    room::Room,
    timed::{STEP, Timed},
    unowned::prefill,
};
use crate::{
    fault::{Bound, Fault},
    name::{Address, Cluster, Instance, RequestId},
    wire::batch::{Applied, Batch, Lease, Put},
};

/// One cluster. Locks are taken in the order `picking` or a reporter's term, its owner, `endpoints`, `reservations`.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) name: Cluster,
    /// Held over a whole pick, so that picks see each other.
    pub(super) picking: Mutex<()>,
    pub(super) endpoints: Endpoints,
    pub(super) reservations: Reservations,
    reporters: RwLock<HashMap<Instance, Arc<Reporter>>>,
    live: AtomicUsize,
    /// Last use, in nanoseconds of the monotonic clock.
    used: AtomicU64,
}

/// Charges of picks that no batch confirmed yet.
#[derive(Debug)]
pub(super) struct Reservations {
    by_id: Mutex<Timed<Charge>>,
    /// Their number, so that batches look without the lock whether there is one.
    count: AtomicUsize,
}

/// What all clusters share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Charges and reservations.
    pub(super) requests: Room,
    /// Live leases.
    pub(super) leases: Room,
    /// Records of instances, with a lease or without.
    pub(super) reporters: Room,
    /// Of one cluster.
    pub(super) max_endpoints: usize,
}

/// What a sweep of one cluster ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) leases: usize,
    pub(super) charges: usize,
    pub(super) reservations: usize,
    pub(super) endpoints: usize,
}

// === impl Space ===

impl Space {
    pub(super) fn new(name: Cluster, now: Now) -> Self {
        Self {
            name,
            picking: Mutex::new(()),
            endpoints: Endpoints::default(),
            reservations: Reservations {
                by_id: Mutex::new(Timed::new()),
                count: AtomicUsize::new(0),
            },
            reporters: RwLock::default(),
            live: AtomicUsize::new(0),
            used: AtomicU64::new(nanos(now.at)),
        }
    }

    /// The cluster is in use.
    pub(super) fn touch(&self, now: Moment) {
        /// Not written by each call: all processors share it.
        const OFTEN: Duration = Duration::from_secs(1);

        if self.unused(now) >= OFTEN {
            self.used.store(nanos(now), Ordering::Relaxed);
        }
    }

    pub(super) fn unused(&self, now: Moment) -> Duration {
        let used = Duration::from_nanos(self.used.load(Ordering::Relaxed));
        now.since(Moment::after_start(used))
    }

    /// No endpoint had load lately and no lease lives.
    pub(super) fn is_idle(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0 && self.endpoints.read().len() == 0
    }

    /// Gives back what it has of the bounds; for a cluster that goes.
    pub(super) fn close(&self, shared: &Shared) {
        let mut reporters = self.reporters.write();
        shared.reporters.give(reporters.len());
        reporters.clear();
    }

    /// Charges a request to an endpoint; a reservation of this id becomes this charge.
    pub(super) fn charge(
        &self,
        id: &RequestId,
        address: Address,
        prefill: u32,
        shared: &Shared,
        now: Now,
    ) -> Result<Charge, Fault> {
        let endpoints = self
            .endpoints
            .with([&address].into_iter(), shared.max_endpoints, now)?;
        let endpoint = endpoints.find(&address).ok_or(Fault::Internal)?;
        let charge = Charge { endpoint, prefill };
        if let Some(reserved) = self.reservations.take(id) {
            endpoints.replace(reserved, charge, now);
        } else if shared.requests.try_take(1) {
            endpoints.add(charge, now);
        } else {
            return Err(Fault::Limit(Bound::Requests));
        }
        Ok(charge)
    }

    /// Applies a batch that was validated.
    pub(super) fn batch(&self, batch: Batch, shared: &Shared, now: Now) -> Result<Applied, Fault> {
        let reporter = self.reporter(&batch, shared)?;
        loop {
            let term = reporter.term.read();
            if term.epoch == batch.epoch
                && term.is_live(now.at)
                && let Some(owner) = term.owner(batch.shard)
            {
                return self.apply(&mut owner.lock(), &term, batch, shared, now);
            }
            drop(term);
            self.begin(&mut reporter.term.write(), &batch, shared, now)?;
        }
    }

    /// Ends the lease of the instance unless it is of a later epoch.
    pub(super) fn end_lease(&self, instance: &Instance, epoch: u64, shared: &Shared, now: Now) {
        let reporter = self.reporters.read().get(instance).cloned();
        if let Some(reporter) = reporter {
            let mut term = reporter.term.write();
            if term.epoch <= epoch {
                self.end(&mut term, shared, now);
            }
        }
    }

    /// Ends what is over, some at a time.
    pub(super) fn sweep(&self, keep: Duration, shared: &Shared, now: Now) -> Ended {
        let mut ended = Ended::default();
        let reporters: Vec<_> = self.reporters.read().values().cloned().collect();
        for reporter in reporters {
            let over = |term: &Term| term.live && !term.is_live(now.at);
            if over(&reporter.term.read()) {
                let mut term = reporter.term.write();
                if over(&term) {
                    ended.leases += 1;
                    ended.charges += self.end(&mut term, shared, now);
                }
            }
        }
        self.forget(keep, shared, now);
        ended.reservations = self.sweep_reservations(shared, now);
        ended.endpoints = self.endpoints.sweep(keep, now.at);
        ended
    }

    /// Live leases by instance.
    pub(super) fn leases(&self, now: Moment) -> Vec<Lease> {
        let lease = |(instance, reporter): (&Instance, &Arc<Reporter>)| {
            let term = reporter.term.read();
            let (live, prompt_sum) = term.totals();
            let remaining = term.deadline().since(now).as_millis();
            term.is_live(now).then(|| Lease {
                instance: instance.clone(),
                epoch: term.epoch,
                live,
                prompt_sum,
                remaining_ms: u64::try_from(remaining).unwrap_or(u64::MAX),
            })
        };
        let reporters = self.reporters.read();
        let mut leases: Vec<_> = reporters.iter().filter_map(lease).collect();
        leases.sort_unstable_by(|a, b| a.instance.cmp(&b.instance));
        leases
    }

    pub(super) fn reserved(&self) -> usize {
        self.reservations.count.load(Ordering::Relaxed)
    }

    /// The record of the instance; a full batch makes it.
    fn reporter(&self, batch: &Batch, shared: &Shared) -> Result<Arc<Reporter>, Fault> {
        if let Some(reporter) = self.reporters.read().get(&batch.instance) {
            return Ok(Arc::clone(reporter));
        }
        if !batch.full {
            return Err(Fault::LeaseLost);
        }
        let mut reporters = self.reporters.write();
        if let Some(reporter) = reporters.get(&batch.instance) {
            return Ok(Arc::clone(reporter));
        }
        if !shared.reporters.try_take(1) {
            // One whose lease is over gives way.
            let over = |it: &Arc<Reporter>| Arc::strong_count(it) == 1 && !it.term.read().live;
            let ended = reporters.iter().find(|(_, it)| over(it));
            let ended = ended.map(|(instance, _)| instance.clone());
            match ended {
                Some(ended) => reporters.remove(&ended),
                None => return Err(Fault::Limit(Bound::Instances)),
            };
        }
        let reporter = Arc::new(Reporter::new(batch.epoch));
        reporters.insert(batch.instance.clone(), Arc::clone(&reporter));
        Ok(reporter)
    }

    /// Makes the owner of the batch, and its lease if it is a full one.
    fn begin(
        &self,
        term: &mut Term,
        batch: &Batch,
        shared: &Shared,
        now: Now,
    ) -> Result<(), Fault> {
        if batch.epoch < term.epoch {
            let current = term.epoch;
            return Err(Fault::StaleEpoch { current });
        }
        if !term.is_live(now.at) {
            self.end(term, shared, now);
        }
        let is_live = term.live && batch.epoch == term.epoch;
        if !is_live {
            if !batch.full {
                return Err(Fault::LeaseLost);
            }
            if batch.epoch > term.epoch {
                self.end(term, shared, now);
                *term = Term::new(batch.epoch);
            } else if let Some(owner) = term.owner(batch.shard) {
                owner.lock().check(batch)?;
            }
            if !shared.leases.try_take(1) {
                return Err(Fault::Limit(Bound::Instances));
            }
            self.live.fetch_add(1, Ordering::Relaxed);
            term.live = true;
            term.renew(lease_end(batch, now));
        }
        term.add_owner(batch.shard);
        Ok(())
    }

    fn apply(
        &self,
        owner: &mut Owner,
        term: &Term,
        batch: Batch,
        shared: &Shared,
        now: Now,
    ) -> Result<Applied, Fault> {
        owner.check(&batch)?;
        // Also where it does not fit: what the owner has stays.
        term.renew(lease_end(&batch, now));
        let addresses = batch.puts.iter().map(|put| &put.ip);
        let endpoints = self.endpoints.with(addresses, shared.max_endpoints, now)?;
        let taken = if shared.requests.try_take(batch.puts.len()) {
            batch.puts.len()
        } else {
            // Few of the puts may be new.
            let more = self.growth(owner, &batch);
            if !shared.requests.try_take(more) {
                return Err(Fault::Limit(Bound::Requests));
            }
            more
        };
        let ids = batch.puts.iter().map(|put| &put.request_id);
        let confirmed = self.reservations.take_all(ids.chain(&batch.deletes));
        let more = change(
            owner,
            &endpoints,
            &batch.deletes,
            batch.puts,
            batch.full,
            now,
        );
        // After their charges were added: a pick in between sees too much rather than too little.
        for reserved in &confirmed {
            endpoints.subtract(*reserved, now);
        }
        shared
            .requests
            .settle(taken, more - signed(confirmed.len()));
        owner.seq = Some(batch.seq);
        let (live, prompt_sum) = (owner.charges.len() as u64, owner.prompt_sum);
        Ok(Applied {
            resync: (live, prompt_sum) != (batch.live, batch.prompt_sum),
            lease_ms: batch.lease_ms,
        })
    }

    /// How many requests more there are after the batch; 0 if there are fewer.
    fn growth(&self, owner: &Owner, batch: &Batch) -> usize {
        let reserved = |id: &&RequestId| self.reservations.contains(id);
        let known = |id: &&RequestId| owner.charges.get(id).is_some();
        let puts = || batch.puts.iter().map(|put| &put.request_id);
        let before = if batch.full {
            owner.charges.len()
        } else {
            puts().chain(&batch.deletes).filter(known).count()
        };
        let confirmed = puts().chain(&batch.deletes).filter(reserved).count();
        batch.puts.len().saturating_sub(before + confirmed)
    }

    /// Ends a lease; says how many charges it had.
    fn end(&self, term: &mut Term, shared: &Shared, now: Now) -> usize {
        if !term.live {
            return 0;
        }
        let charges = term.end();
        shared.leases.give(1);
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.subtract(charges, shared, now)
    }

    fn subtract(&self, charges: Vec<Charges>, shared: &Shared, now: Now) -> usize {
        let mut charges = charges.into_iter().flat_map(Charges::into_values);
        let mut subtracted = 0;
        loop {
            let endpoints = self.endpoints.read();
            let step = charges.by_ref().take(STEP);
            let step = step.map(|it| endpoints.subtract(it, now)).count();
            shared.requests.give(step);
            subtracted += step;
            if step < STEP {
                return subtracted;
            }
        }
    }

    /// Forgets instances whose lease is over for long.
    fn forget(&self, keep: Duration, shared: &Shared, now: Now) {
        let over = |it: &Arc<Reporter>| {
            let term = it.term.read();
            !term.live && now.at.since(term.deadline()) >= keep
        };
        if !self.reporters.read().values().any(over) {
            return;
        }
        let mut reporters = self.reporters.write();
        let before = reporters.len();
        // Nobody else has it, and while the map is locked nobody gets it.
        reporters.retain(|_, it| Arc::strong_count(it) > 1 || !over(it));
        shared.reporters.give(before - reporters.len());
    }

    fn sweep_reservations(&self, shared: &Shared, now: Now) -> usize {
        let mut ended = 0;
        let mut from = Some(0);
        while let Some(at) = from {
            let endpoints = self.endpoints.read();
            let mut by_id = self.reservations.by_id.lock();
            from = by_id.sweep(at, now.at, |charge| {
                endpoints.subtract(charge, now);
                shared.requests.give(1);
                ended += 1;
            });
            self.reservations.recount(&by_id);
        }
        ended
    }
}

fn lease_end(batch: &Batch, now: Now) -> Moment {
    now.at + Duration::from_millis(batch.lease_ms.into())
}

fn signed(count: usize) -> isize {
    isize::try_from(count).unwrap_or(isize::MAX)
}

/// Changes the charges of an owner and the load of their endpoints; says how many more charges there are.
fn change(
    owner: &mut Owner,
    endpoints: &Table,
    deletes: &[RequestId],
    puts: Vec<Put>,
    full: bool,
    now: Now,
) -> isize {
    let len = owner.charges.len();
    let mut sum = owner.prompt_sum;
    let mut before = full.then(|| std::mem::replace(&mut owner.charges, Charges::new()));
    for put in puts {
        let Some(endpoint) = endpoints.find(&put.ip) else {
            continue;
        };
        let prefill = prefill(put.prompt_length);
        let charge = Charge { endpoint, prefill };
        let old = before.as_mut().and_then(|it| it.remove(&put.request_id));
        let old = old.or(owner.charges.insert(put.request_id, charge));
        sum += charge.prefill();
        if let Some(old) = old {
            sum -= old.prefill();
            endpoints.replace(old, charge, now);
        } else {
            endpoints.add(charge, now);
        }
    }
    let deleted = deletes.iter().filter_map(|id| owner.charges.remove(id));
    let deleted: Vec<_> = deleted.collect();
    let rest = before.into_iter().flat_map(Charges::into_values);
    for charge in deleted.into_iter().chain(rest) {
        sum -= charge.prefill();
        endpoints.subtract(charge, now);
    }
    owner.prompt_sum = sum;
    signed(owner.charges.len()) - signed(len)
}

// === impl Reservations ===

impl Reservations {
    /// The charge reserved under this id until after `now`; one that is over is taken out and is to be subtracted.
    pub(super) fn find(&self, id: &RequestId, now: Moment) -> (Option<Charge>, Option<Charge>) {
        let mut by_id = self.by_id.lock();
        match by_id.get_mut(id) {
            Some((until, charge)) if *until > now => (Some(*charge), None),
            Some(_) => {
                let over = by_id.remove(id);
                self.recount(&by_id);
                (None, over)
            }
            None => (None, None),
        }
    }

    pub(super) fn insert(&self, id: RequestId, until: Moment, charge: Charge) {
        let mut by_id = self.by_id.lock();
        by_id.insert(id, until, charge);
        self.recount(&by_id);
    }

    fn contains(&self, id: &RequestId) -> bool {
        self.by_id.lock().contains(id)
    }

    fn take(&self, id: &RequestId) -> Option<Charge> {
        self.take_all([id].into_iter()).pop()
    }

    /// Takes out those of these ids.
    fn take_all<'a>(&self, ids: impl Iterator<Item = &'a RequestId>) -> Vec<Charge> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut by_id = self.by_id.lock();
        let taken = ids.filter_map(|id| by_id.remove(id)).collect();
        self.recount(&by_id);
        taken
    }

    fn recount(&self, by_id: &Timed<Charge>) {
        self.count.store(by_id.len(), Ordering::Release);
    }
}
