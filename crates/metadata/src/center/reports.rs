//! What instances report in batches.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use moment::Moment;

use super::{
    Now,
    charges::Charges,
    endpoints::{Charge, Table},
    freed::Cause,
    lease::{Owner, Reporter, Term},
    space::{Shared, Space},
    timed::STEP,
    unowned::prefill,
};
use crate::{
    fault::{Bound, Fault},
    name::Instance,
    wire::batch::{Applied, Batch, Put},
};

// === impl Space ===

impl Space {
    /// Applies a batch that was validated.
    pub(super) fn batch(&self, batch: &Batch, shared: &Shared, now: Now) -> Result<Applied, Fault> {
        let reporter = self.reporter(batch, shared)?;
        loop {
            let term = reporter.term.read();
            if term.epoch == batch.epoch
                && term.is_live(now.at)
                && let Some(owner) = term.owner(batch.shard)
            {
                return self.apply(&mut owner.lock(), &term, batch, shared, now);
            }
            drop(term);
            self.begin(&mut reporter.term.write(), batch, shared, now)?;
        }
    }

    /// Ends the lease of the instance unless it is of a later epoch.
    pub(super) fn end_lease(&self, instance: &Instance, epoch: u64, shared: &Shared, now: Now) {
        let reporter = self.reporters.read().get(instance).cloned();
        if let Some(reporter) = reporter {
            let mut term = reporter.term.write();
            if term.epoch <= epoch {
                self.end(&mut term, Cause::Released, shared, now);
            }
        }
    }

    /// Ends the leases that are over, and forgets instances whose lease is over for long.
    pub(super) fn sweep_leases(&self, keep: Duration, shared: &Shared, now: Now) {
        let reporters: Vec<_> = self.reporters.read().values().cloned().collect();
        for reporter in reporters {
            let over = |term: &Term| term.live && !term.is_live(now.at);
            if over(&reporter.term.read()) {
                let mut term = reporter.term.write();
                if over(&term) {
                    self.end_over(&mut term, shared, now);
                }
            }
        }
        self.forget(keep, shared, now);
    }

    /// Forgets an instance whose lease is over, if there is one.
    pub(super) fn forget_one(&self, shared: &Shared) -> bool {
        let over = |it: &Arc<Reporter>| Arc::strong_count(it) == 1 && !it.term.read().live;
        let mut reporters = self.reporters.write();
        let over = reporters.iter().find(|(_, it)| over(it));
        let Some(instance) = over.map(|(instance, _)| instance.clone()) else {
            return false;
        };
        reporters.remove(&instance);
        shared.reporters.give(1);
        true
    }

    pub(super) fn knows(&self, instance: &Instance) -> bool {
        self.reporters.read().contains_key(instance)
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
            return Err(Fault::Limit(Bound::Instances));
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
            self.end_over(term, shared, now);
        }
        let is_live = term.live && batch.epoch == term.epoch;
        if !is_live {
            if !batch.full {
                return Err(Fault::LeaseLost);
            }
            if batch.epoch > term.epoch {
                self.end(term, Cause::Replaced, shared, now);
                *term = Term::new(batch.epoch);
            } else if let Some(owner) = term.owner(batch.shard) {
                owner.lock().check(batch).map_err(|fault| match fault {
                    // What it applied is gone with the lease.
                    Fault::StaleSeq { applied: true, .. } => Fault::LeaseLost,
                    other => other,
                })?;
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
        batch: &Batch,
        shared: &Shared,
        now: Now,
    ) -> Result<Applied, Fault> {
        owner.check(batch)?;
        // What ends needs no room: also where the puts do not fit, and also the lease goes on then.
        term.renew(lease_end(batch, now));
        self.end_charges(owner, batch, shared, now);
        self.put(owner, &batch.puts, shared, now)?;
        owner.seq = Some(batch.seq);
        let (live, prompt_sum) = (owner.charges.len() as u64, owner.prompt_sum);
        Ok(Applied {
            resync: (live, prompt_sum) != (batch.live, batch.prompt_sum),
            lease_ms: batch.lease_ms,
        })
    }

    /// Ends what the batch deletes, reservations too, and what a full one leaves out.
    fn end_charges(&self, owner: &mut Owner, batch: &Batch, shared: &Shared, now: Now) {
        let deletes = batch.deletes.iter();
        let deleted: Vec<_> = deletes.filter_map(|id| owner.charges.remove(id)).collect();
        let left_out = batch.full.then(|| {
            let mut before = mem::replace(&mut owner.charges, Charges::new());
            for id in batch.puts.iter().map(|put| &put.request_id) {
                if let Some(charge) = before.remove(id) {
                    owner.charges.insert(id.clone(), charge);
                }
            }
            before
        });
        let count = left_out.as_ref().map_or(0, Charges::len);
        shared.freed.add(Cause::LeftOut, count);
        let left_out = left_out.into_iter().flat_map(Charges::into_values);
        let owned = deleted.into_iter().chain(left_out);
        let prompt_sum = &mut owner.prompt_sum;
        self.subtract(owned.inspect(|it| *prompt_sum -= it.prefill()), shared, now);
        let reserved = self.reservations.take_all(batch.deletes.iter());
        self.subtract(reserved.into_iter(), shared, now);
    }

    /// Adds, moves, lowers and confirms: all or nothing.
    fn put(&self, owner: &mut Owner, puts: &[Put], shared: &Shared, now: Now) -> Result<(), Fault> {
        let with = |puts: &[Put]| {
            let addresses = puts.iter().map(|put| &put.ip);
            self.endpoints.with(addresses, shared.max_endpoints, now)
        };
        let endpoints = with(puts)?;
        let taken = self.take_room(owner, puts, shared)?;
        let before = owner.charges.len();
        let (first, rest) = puts.split_at(puts.len().min(STEP));
        put_step(owner, &endpoints, first, now);
        drop(endpoints);
        let mut applied = first.len();
        // It fails only where an endpoint went since it was seen above, and another one has its place.
        let done = rest.chunks(STEP).try_for_each(|step| {
            put_step(owner, &*with(step)?, step, now);
            applied += step.len();
            Ok(())
        });
        let more = owner.charges.len() - before;
        // After their charges were added: a pick in between sees too much rather than too little.
        let ids = puts.iter().map(|put| &put.request_id).take(applied);
        let confirmed = self.reservations.take_all(ids);
        shared.requests.settle(taken, more);
        self.subtract(confirmed.into_iter(), shared, now);
        done
    }

    /// Takes room for the puts, at most one for each; says how much.
    fn take_room(&self, owner: &Owner, puts: &[Put], shared: &Shared) -> Result<usize, Fault> {
        if shared.requests.try_take(puts.len()) {
            return Ok(puts.len());
        }
        // Few of them may be new, and reservations give their room.
        let ids = || puts.iter().map(|put| &put.request_id);
        let new = ids().filter(|id| owner.charges.get(id).is_none()).count();
        let confirmed = ids().filter(|id| self.reservations.contains(id)).count();
        let more = new.saturating_sub(confirmed);
        if !shared.requests.try_take(more) {
            return Err(Fault::Limit(Bound::Requests));
        }
        Ok(more)
    }

    /// Ends a lease that is over.
    fn end_over(&self, term: &mut Term, shared: &Shared, now: Now) {
        shared.freed.add(Cause::Lease, usize::from(term.live));
        self.end(term, Cause::Silent, shared, now);
    }

    /// Ends a lease and its charges.
    fn end(&self, term: &mut Term, cause: Cause, shared: &Shared, now: Now) {
        if !term.live {
            return;
        }
        let charges = term.end();
        shared.leases.give(1);
        self.live.fetch_sub(1, Ordering::Relaxed);
        let charges = charges.into_iter().flat_map(Charges::into_values);
        let ended = self.subtract(charges, shared, now);
        shared.freed.add(cause, ended);
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
}

fn lease_end(batch: &Batch, now: Now) -> Moment {
    now.at + Duration::from_millis(batch.lease_ms.into())
}

/// Sets these charges of an owner and the load of their endpoints.
fn put_step(owner: &mut Owner, endpoints: &Table, puts: &[Put], now: Now) {
    for put in puts {
        let Some(endpoint) = endpoints.find(&put.ip) else {
            continue;
        };
        let prefill = prefill(put.prompt_length);
        let charge = Charge { endpoint, prefill };
        owner.prompt_sum += charge.prefill();
        if let Some(old) = owner.charges.insert(put.request_id.clone(), charge) {
            owner.prompt_sum -= old.prefill();
            endpoints.replace(old, charge, now);
        } else {
            endpoints.add(charge, now);
        }
    }
}
