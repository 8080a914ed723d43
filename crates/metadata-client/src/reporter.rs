//! Under which name is reported, and what happens if another program has it too.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use metadata::{Instance, wire::batch::Batch};
use moment::Moment;
use parking_lot::Mutex;
use rand::RngExt;
use tracing::error;

use crate::{answer::Unavailable, calls::Named, outbids::Outbids, settings::Settings};

/// Of a name with a UUID behind it: the whole has at most 128 characters.
const MAX_STEM: usize = 91;

#[derive(Debug)]
pub(crate) struct Reporter {
    /// That of the settings, unless another program has it too.
    instance: ArcSwap<Instance>,
    /// The highest that was sent.
    epoch: AtomicU64,
    outbids: Mutex<Outbids>,
}

// === impl Reporter ===

impl Reporter {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            instance: ArcSwap::from_pointee(settings.instance.clone()),
            epoch: AtomicU64::new(settings.epoch),
            outbids: Mutex::new(Outbids::new(settings.epoch)),
        }
    }

    /// The call of a batch, under the name of now.
    pub(crate) fn call(&self, batch: &Batch) -> Result<Named, Unavailable> {
        self.epoch.fetch_max(batch.epoch, Relaxed);
        let instance = self.instance.load();
        if **instance == batch.instance {
            return Named::batch(batch);
        }
        Named::batch(&Batch {
            instance: Instance::clone(&instance),
            ..batch.clone()
        })
    }

    /// The call that ends all leases.
    pub(crate) fn end(&self) -> Named {
        Named::end_leases(&self.instance.load(), self.epoch.load(Relaxed))
    }

    /// The service knows a higher epoch. True: another program reports under the name, which is now another.
    pub(crate) fn is_shared(&self, current: u64, now: Moment) -> bool {
        if !self.outbids.lock().record(current, now) {
            return false;
        }
        let old = self.instance.load_full();
        let uuid = uuid::Builder::from_random_bytes(rand::rng().random()).into_uuid();
        let stem: String = old.as_str().chars().take(MAX_STEM).collect();
        match format!("{stem}-{uuid}").parse::<Instance>() {
            Ok(new) => {
                error!(%old, %new, "another program reports to the Metadata-Center as this instance: give each its own --metadata-center-instance");
                self.instance.store(Arc::new(new));
                true
            }
            Err(_) => false,
        }
    }
}
