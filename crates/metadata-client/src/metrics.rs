//! What the calls cost, and how far the service is behind.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use histogram::{Histogram, Shape};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::{answer::Unavailable, calls::CallName, client::Shared, transport::Transport};

/// `ok`, and the reasons of [`Unavailable`].
const OUTCOMES: [&str; 10] = [
    "ok",
    "no-address",
    "breaker-open",
    "timeout",
    "connect",
    "broken",
    "too-large",
    "status",
    "refused",
    "malformed",
];

/// 250 us to 5 s: a pick is to take 1 ms at the median and waits 100 ms at most, other calls 500 ms, unless flags say
/// otherwise.
static CALLS: Shape = Shape::micros(&[
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
]);

/// How long calls took, by call and by outcome.
#[derive(Debug)]
pub(crate) struct CallMetrics {
    histograms: [[Histogram; OUTCOMES.len()]; CallName::ALL.len()],
}

/// Why a batch was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullCause {
    Start,
    Overflow,
    Boot,
    LeaseLost,
    StaleEpoch,
    Resync,
    Refused,
}

/// Counts full batches by cause.
#[derive(Debug, Default)]
pub(crate) struct FullBatches([AtomicU64; FullCause::ALL.len()]);

/// Serves `epp_metadata_*`, computed when the page is asked for.
pub struct ClientCollector<T: Transport>(pub(crate) Arc<Shared<T>>);

// === impl CallMetrics ===

impl CallMetrics {
    pub(crate) fn new() -> Self {
        let row = |_| [(); OUTCOMES.len()].map(|()| Histogram::new(&CALLS));
        Self {
            histograms: CallName::ALL.map(row),
        }
    }

    pub(crate) fn observe(&self, call: CallName, error: Option<&Unavailable>, time: Duration) {
        let reason = error.map_or("ok", Unavailable::reason);
        let outcome = OUTCOMES.iter().position(|it| *it == reason).unwrap_or(0);
        let row = self.histograms.get(call.index());
        if let Some(histogram) = row.and_then(|row| row.get(outcome)) {
            histogram.observe_micros(time);
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "epp_metadata_request_duration_seconds",
            "Calls of the Metadata-Center by what became of them",
            None,
            MetricType::Histogram,
        )?;
        for (call, row) in CallName::ALL.into_iter().zip(&self.histograms) {
            for (outcome, histogram) in OUTCOMES.into_iter().zip(row) {
                if let Some(reading) = histogram.read() {
                    let labels = [("call", call.label()), ("outcome", outcome)];
                    reading.encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

// === impl FullCause ===

impl FullCause {
    const ALL: [Self; 7] = [
        Self::Start,
        Self::Overflow,
        Self::Boot,
        Self::LeaseLost,
        Self::StaleEpoch,
        Self::Resync,
        Self::Refused,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Overflow => "overflow",
            Self::Boot => "boot",
            Self::LeaseLost => "lease-lost",
            Self::StaleEpoch => "stale-epoch",
            Self::Resync => "resync",
            Self::Refused => "refused",
        }
    }
}

// === impl FullBatches ===

impl FullBatches {
    pub(crate) fn count(&self, cause: FullCause) {
        if let Some(count) = self.0.get(cause as usize) {
            count.fetch_add(1, Relaxed);
        }
    }
}

// === impl ClientCollector ===

impl<T: Transport> Collector for ClientCollector<T> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Shared {
            service,
            outboxes,
            saves,
            cache_calls,
            full_batches,
            ..
        } = &*self.0;
        service.calls().encode(&mut encoder)?;
        let gauges = [
            (
                "epp_metadata_outbox_dirty",
                "Requests whose changes wait to be reported",
                outboxes.waiting() as f64,
            ),
            (
                "epp_metadata_ack_lag_seconds",
                "Age of the oldest change that the Metadata-Center has not acknowledged",
                outboxes.lag(service.now()).as_secs_f64(),
            ),
            (
                "epp_metadata_cache_calls_missing",
                "1 while the Metadata-Center has no calls for prompt caches: they are not shared",
                f64::from(u8::from(cache_calls.are_missing())),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let counters = [
            (
                "epp_metadata_overflow",
                "Times that more requests changed than may wait: all of a shard were reported anew",
                outboxes.overflows(),
            ),
            (
                "epp_metadata_saves_dropped",
                "Cache locations that were not reported, since newer ones took their places or the service refused them",
                saves.dropped(),
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let mut family = encoder.encode_descriptor(
            "epp_metadata_full_batches",
            "Batches that named all requests of a shard, by what made them necessary",
            None,
            MetricType::Counter,
        )?;
        for (cause, count) in FullCause::ALL.into_iter().zip(&full_batches.0) {
            let counter = ConstCounter::new(count.load(Relaxed));
            counter.encode(family.encode_family(&[("cause", cause.label())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "epp_metadata_breaker_state",
            "0: the address is called, 1: it is tried, 2: it is not called",
            None,
            MetricType::Gauge,
        )?;
        for (address, position) in service.positions() {
            let gauge = ConstGauge::new(i64::from(position as u8));
            gauge.encode(family.encode_family(&[("address", address.to_string())])?)?;
        }
        Ok(())
    }
}

impl<T: Transport> fmt::Debug for ClientCollector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientCollector").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::{answer, transport::CallError};

    #[test]
    fn outcomes_calls_and_causes_are_documented() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metadata-client.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let (_, metrics) = docs.split_once("## Metrics").unwrap();
        let calls = CallName::ALL.map(CallName::label);
        let causes = FullCause::ALL.map(FullCause::label);
        for label in calls.iter().chain(&causes).chain(&OUTCOMES) {
            assert!(metrics.contains(&format!("`{label}`")), "{label}");
        }
    }

    /// What is not among the outcomes would count as a success.
    #[test]
    fn each_failure_has_an_outcome_of_its_own() {
        let refused = answer::read::<u32>(&crate::transport::Reply {
            status: StatusCode::NOT_FOUND,
            boot: None,
            body: bytes::Bytes::new(),
        });
        let failures = [
            Unavailable::NoAddress,
            Unavailable::BreakerOpen,
            Unavailable::Timeout(Duration::ZERO),
            CallError::Connect(String::new()).into(),
            CallError::Broken(String::new()).into(),
            CallError::TooLarge.into(),
            Unavailable::Status(StatusCode::BAD_GATEWAY),
            refused.unwrap_err(),
            Unavailable::Malformed(String::new()),
        ];
        let reasons = failures.each_ref().map(Unavailable::reason);
        assert_eq!(reasons, OUTCOMES[1..]);
    }
}
