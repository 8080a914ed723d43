//! How much waits, and whether there is room for more.

use std::{collections::BTreeMap, sync::Arc};

use super::{Full, config::Config};

/// Waiting requests and the bytes they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// What one flow holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowUsage<'a> {
    /// Its priority.
    pub priority: i32,
    /// Its fairness id, as the client gave it: to be capped before it is a label.
    pub fairness_id: &'a Arc<str>,
    /// What waits in it; at least one request.
    pub usage: Usage,
}

/// What waits, in total and by band and flow. A band and a flow are known while they hold a request, so
/// there are never more of them than requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    total: Usage,
    bands: BTreeMap<i32, BandCounts>,
}

#[derive(Debug, Default)]
struct BandCounts {
    total: Usage,
    flows: BTreeMap<Arc<str>, Usage>,
}

// === impl Usage ===

impl Usage {
    /// With one request of `bytes` more; `None` where a number would overflow.
    fn with(self, bytes: u64) -> Option<Self> {
        Some(Self {
            requests: self.requests.checked_add(1)?,
            bytes: self.bytes.checked_add(bytes)?,
        })
    }

    fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

// === impl Counts ===

impl Counts {
    /// Counts a request.
    ///
    /// # Errors
    /// The first cap of `config` that has no room for it, and then nothing is counted.
    pub(super) fn add(
        &mut self,
        config: &Config,
        priority: i32,
        fairness_id: &Arc<str>,
        bytes: u64,
    ) -> Result<(), Full> {
        let band = config.band(priority);
        let in_band = self.band(priority);
        if in_band.requests >= band.max_requests {
            let limit = band.max_requests;
            return Err(Full::BandRequests { priority, limit });
        }
        let Some(in_band) = in_band
            .with(bytes)
            .filter(|usage| usage.bytes <= band.max_bytes)
        else {
            let limit = band.max_bytes;
            return Err(Full::BandBytes { priority, limit });
        };
        if let Some(limit) = config.max_requests
            && self.total.requests >= limit
        {
            return Err(Full::Requests { limit });
        }
        // Without a cap of its own the sum of all bands must still fit the number.
        let limit = config.max_bytes.unwrap_or(u64::MAX);
        let total = self.total.with(bytes);
        self.total = total
            .filter(|usage| usage.bytes <= limit)
            .ok_or(Full::Bytes { limit })?;
        let counts = self.bands.entry(priority).or_default();
        counts.total = in_band;
        let flow = counts.flows.entry(Arc::clone(fairness_id)).or_default();
        flow.requests += 1;
        flow.bytes += bytes;
        Ok(())
    }

    /// A request that was counted waits no more.
    pub(super) fn remove(&mut self, priority: i32, fairness_id: &str, bytes: u64) {
        let Some(band) = self.bands.get_mut(&priority) else {
            return;
        };
        self.total.remove(bytes);
        band.total.remove(bytes);
        if let Some(flow) = band.flows.get_mut(fairness_id) {
            flow.remove(bytes);
            if flow.requests == 0 {
                band.flows.remove(fairness_id);
            }
        }
        if band.flows.is_empty() {
            self.bands.remove(&priority);
        }
    }

    pub(super) fn total(&self) -> Usage {
        self.total
    }

    pub(super) fn bands(&self) -> impl Iterator<Item = (i32, Usage)> {
        let bands = self.bands.iter().rev();
        bands.map(|(priority, band)| (*priority, band.total))
    }

    pub(super) fn flows(&self) -> impl Iterator<Item = FlowUsage<'_>> {
        self.bands.iter().rev().flat_map(|(priority, band)| {
            band.flows.iter().map(|(fairness_id, usage)| FlowUsage {
                priority: *priority,
                fairness_id,
                usage: *usage,
            })
        })
    }

    fn band(&self, priority: i32) -> Usage {
        self.bands
            .get(&priority)
            .map_or_else(Usage::default, |band| band.total)
    }
}
