//! What an operator decides about waiting.

use std::{collections::BTreeMap, time::Duration};

/// 60 s: the ecosystem's default, about as long as a client waits for a first byte.
const DEFAULT_TTL: Duration = Duration::from_mins(1);

/// 5000: the ecosystem's default. With 60 s to wait it is reached from 83 requests per second on.
const BAND_MAX_REQUESTS: u64 = 5_000;

/// 1 GB: the ecosystem's default, 200 KB for each of 5000 requests.
const BAND_MAX_BYTES: u64 = 1_000_000_000;

/// How requests wait. The default is the ecosystem's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `priorityBands`: the bands that are configured, by priority.
    pub bands: BTreeMap<i32, BandConfig>,
    /// `defaultPriorityBand`: every other priority.
    pub default_band: BandConfig,
    /// `defaultNegativePriorityBand`: every other priority below 0; absent: as [`Config::default_band`].
    pub default_negative_band: Option<BandConfig>,
    /// `defaultRequestTTL`: how long a request may wait while the pool has endpoints; zero: without end.
    pub default_ttl: Duration,
    /// `noEndpointRequestTTL`: how long while it has none; zero: without end; absent: as
    /// [`Config::default_ttl`].
    pub no_endpoint_ttl: Option<Duration>,
    /// `maxRequests`: requests in all bands together; absent: only the bands bound them.
    pub max_requests: Option<u64>,
    /// `maxBytes`: bytes in all bands together; absent: only the bands bound them.
    pub max_bytes: Option<u64>,
}

/// One band: all requests of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandConfig {
    /// `maxRequests`: more are refused.
    pub max_requests: u64,
    /// `maxBytes`: a request that would exceed the sum is refused.
    pub max_bytes: u64,
    /// Which flow is next.
    pub fairness: Fairness,
    /// Which request of it is next.
    pub ordering: Ordering,
}

/// Which flow of a band is next. A flow is the requests of one priority and one fairness id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fairness {
    /// `global-strict-fairness-policy`: flows do not count. The band is one queue, and the request that
    /// the [`Ordering`] puts first among all of it is next. A flow with many requests delays the others.
    #[default]
    GlobalStrict,
    /// `round-robin-fairness-policy`: one request of each flow in turn. A flow takes its first turn after
    /// all flows that wait already, so a flow waits for at most one request of each of them, however many
    /// new ids a client invents. (The reference goes by the order of ids, where new ones can go first.)
    RoundRobin,
}

/// Which request is next; in equal cases the one that came first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// `fcfs-ordering-policy`: the one that came first.
    #[default]
    Fcfs,
    /// `edf-ordering-policy`: the one with the earliest deadline: when it came plus how long it may wait
    /// while the pool has endpoints. A change of regime does not move it. Those that may wait without end
    /// are last.
    Edf,
}

// === impl Config ===

impl Config {
    /// What holds for requests of `priority`.
    pub fn band(&self, priority: i32) -> &BandConfig {
        match (self.bands.get(&priority), &self.default_negative_band) {
            (Some(band), _) => band,
            (None, Some(negative)) if priority < 0 => negative,
            (None, _) => &self.default_band,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bands: BTreeMap::new(),
            default_band: BandConfig::default(),
            default_negative_band: None,
            default_ttl: DEFAULT_TTL,
            no_endpoint_ttl: None,
            max_requests: None,
            max_bytes: None,
        }
    }
}

// === impl BandConfig ===

impl Default for BandConfig {
    fn default() -> Self {
        Self {
            max_requests: BAND_MAX_REQUESTS,
            max_bytes: BAND_MAX_BYTES,
            fairness: Fairness::default(),
            ordering: Ordering::default(),
        }
    }
}
