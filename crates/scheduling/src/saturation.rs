//! How near a pool is to having more work than it can take: 1 and above is saturated.

use crate::{load::Quality, table::Table};

/// Measures saturation, named as in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detector {
    /// `utilization-detector`: by the queues and caches of the model servers.
    Utilization {
        /// Waiting requests at which an endpoint is saturated.
        queue_depth: f64,
        /// Used share of the KV cache at which it is.
        kv_utilization: f64,
        /// As a filter: the share by which an endpoint may exceed both and still pass.
        headroom: f64,
    },
    /// `concurrency-detector`: by our own requests in flight.
    Concurrency {
        /// What is counted.
        mode: ConcurrencyMode,
        /// Requests in flight at which an endpoint is saturated.
        max_requests: f64,
        /// Prompt tokens in flight at which it is.
        max_tokens: f64,
        /// As a filter: the share by which an endpoint may exceed them and still pass.
        headroom: f64,
    },
}

/// Requests that are let through and have no endpoint yet: they count evenly, wherever they will go.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unplaced {
    /// How many there are.
    pub requests: f64,
    /// Tokens of their prompts.
    pub tokens: f64,
}

/// What `concurrency-detector` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyMode {
    /// Requests.
    Requests,
    /// Prompt tokens.
    Tokens,
    /// Whichever is nearer to its limit.
    Hybrid,
}

// === impl Detector ===

impl Detector {
    /// `concurrency-detector` as it is without parameters.
    pub const CONCURRENCY: Self = Self::Concurrency {
        mode: ConcurrencyMode::Requests,
        max_requests: 100.0,
        max_tokens: 1_000_000.0,
        headroom: 0.0,
    };

    /// Its type in the configuration file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Utilization { .. } => "utilization-detector",
            Self::Concurrency { .. } => "concurrency-detector",
        }
    }

    /// Saturation of the pool, the mean of its members; an empty pool is saturated. Of a member whose metrics are not fresh
    /// our own requests decide, so that stale metrics alone never shed or lock up.
    pub fn saturation(&self, table: &Table) -> f64 {
        self.saturation_with(table, Unplaced::default())
    }

    /// As [`saturation`](Self::saturation), with these requests at the members too.
    pub fn saturation_with(&self, table: &Table, unplaced: Unplaced) -> f64 {
        if table.is_empty() {
            return 1.0;
        }
        let count = table.len() as f64;
        let each = Unplaced {
            requests: unplaced.requests / count,
            tokens: unplaced.tokens / count,
        };
        let members = 0..table.len();
        let sum: f64 = members
            .map(|member| self.utilization(table, member, each))
            .sum();
        sum / count
    }

    /// As a filter: whether the endpoint takes nothing more.
    pub(crate) fn is_saturated(&self, table: &Table, member: usize) -> bool {
        let (Self::Utilization { headroom, .. } | Self::Concurrency { headroom, .. }) = self;
        self.utilization(table, member, Unplaced::default()) >= 1.0 + headroom
    }

    /// Of one member, as a share of its limit.
    fn utilization(&self, table: &Table, member: usize, more: Unplaced) -> f64 {
        let is_fresh = table.quality.get(member) == Some(&Quality::Fresh);
        if !is_fresh && matches!(self, Self::Utilization { .. }) {
            return Self::CONCURRENCY.utilization(table, member, more);
        }
        let share = |value: f64, limit: f64| if limit > 0.0 { value / limit } else { 1.0 };
        let at = |column: &[f64]| column.get(member).copied().unwrap_or(0.0);
        match self {
            Self::Utilization {
                queue_depth,
                kv_utilization,
                ..
            } => {
                let waiting = at(&table.waiting) + more.requests;
                share(waiting, *queue_depth).max(share(at(&table.kv), *kv_utilization))
            }
            Self::Concurrency {
                mode,
                max_requests,
                max_tokens,
                ..
            } => {
                let in_flight = table.in_flight.get(member).copied().unwrap_or(0);
                let tokens = table.tokens.get(member).copied().unwrap_or(0);
                let requests = share(f64::from(in_flight) + more.requests, *max_requests);
                let tokens = share(tokens as f64 + more.tokens, *max_tokens);
                match mode {
                    ConcurrencyMode::Requests => requests,
                    ConcurrencyMode::Tokens => tokens,
                    ConcurrencyMode::Hybrid => requests.max(tokens),
                }
            }
        }
    }
}

impl Default for Detector {
    /// `utilization-detector` as it is without parameters.
    fn default() -> Self {
        Self::Utilization {
            queue_depth: 5.0,
            kv_utilization: 0.8,
            headroom: 0.0,
        }
    }
}

#[cfg(test)]
mod tests;
