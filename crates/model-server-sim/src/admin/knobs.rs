//! What can be changed while the server runs: pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{fake::FakeValue, range::Range};
use crate::{
    duration::HumanDuration,
    engine::{Latency, Spread},
};

/// Standard deviations, as a share of the mean.
pub(crate) const STD_DEV: Range = Range {
    low: 0.0,
    high: 0.3,
};

/// How much slower a full batch is.
pub(crate) const FACTOR_UNDER_LOAD: Range = Range {
    low: 1.0,
    high: 100.0,
};

/// What all times are multiplied by.
pub(crate) const TIME_SCALE: Range = Range {
    low: 0.0,
    high: 1000.0,
};

/// Requests in the metrics: more than any engine has.
const COUNT: Range = Range {
    low: 0.0,
    high: 1e9,
};

const SHARE: Range = Range {
    low: 0.0,
    high: 1.0,
};

/// Everything that `/admin/config` shows and sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// How long tokens take.
    pub latency: LatencyKnobs,
    /// What `/metrics` tells in place of the truth.
    pub metrics: FakeMetrics,
    /// `false`: `/health/ready` answers 503; requests are served all the same.
    pub ready: bool,
    /// `true`: requests get no answer until this is `false` again.
    pub hang: bool,
    /// `true`: requests are answered 429, as with a full queue.
    pub reject: bool,
    /// Answers a share of the requests with an error.
    pub fail: Option<Fail>,
    /// Share of the requests, 0 to 1, that get no answer at all: their connection (with HTTP/2 their stream)
    /// ends before the headers.
    pub reset: Option<f64>,
    /// Breaks off a share of the streams.
    pub cut: Option<Cut>,
}

/// How long things take; each field is the flag of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyKnobs {
    /// From the start of a request to its first token.
    pub time_to_first_token: HumanDuration,
    /// Its standard deviation, as a share.
    pub time_to_first_token_std_dev: f64,
    /// Added to it for each request.
    pub prefill_overhead: HumanDuration,
    /// Added to it for each prompt token that the prefix cache does not hold.
    pub prefill_time_per_token: HumanDuration,
    /// Standard deviation of the last two together, as a share.
    pub prefill_time_std_dev: f64,
    /// From one token to the next.
    pub inter_token_latency: HumanDuration,
    /// Its standard deviation, as a share.
    pub inter_token_latency_std_dev: f64,
    /// Added for a LoRA adapter that takes the place of another.
    pub lora_swap_time: HumanDuration,
    /// What a full batch multiplies all of them by.
    pub time_factor_under_load: f64,
    /// What all of them are multiplied by in any case.
    pub time_scale: f64,
}

/// What `/metrics` tells, and how; values of `None` tell the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeMetrics {
    /// Requests that wait.
    pub waiting: Option<FakeValue>,
    /// Requests that run.
    pub running: Option<FakeValue>,
    /// KV-cache usage, 0 to 1.
    pub kv: Option<FakeValue>,
    /// `true`: the page stays as it was when this was set.
    pub frozen: bool,
    /// Time that the page takes to come.
    pub delay: HumanDuration,
    /// An HTTP status, 400 to 599, in place of the page.
    pub status: Option<u16>,
}

/// Streams that break off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Tokens that still arrive; if the answer is shorter, only its end is missing.
    pub after_tokens: u32,
    /// Share of the streams, 0 to 1.
    #[serde(default = "all")]
    pub rate: f64,
}

/// Errors at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Share of the requests, 0 to 1.
    #[serde(default = "all")]
    pub rate: f64,
}

/// Why a patch is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KnobError {
    #[error("send a JSON object, such as {{\"ready\": false}}")]
    NotAnObject,
    #[error("{0} is not known: GET /admin/config shows what is")]
    Unknown(String),
    #[error("{0}")]
    WrongType(String),
    #[error("{name} is {value}: use a number from {low} to {high}")]
    OutOfRange {
        name: &'static str,
        value: f64,
        low: f64,
        high: f64,
    },
    #[error("a status is {0}: use an HTTP status from 400 to 599")]
    Status(u16),
}

/// The knobs of the start, and all changes since.
#[derive(Debug)]
pub(crate) struct KnobBoard {
    initial: Value,
    changes: Value,
}

fn all() -> f64 {
    1.0
}

// === impl LatencyKnobs ===

impl Default for LatencyKnobs {
    /// Nothing takes any time.
    fn default() -> Self {
        Self {
            time_to_first_token: HumanDuration::default(),
            time_to_first_token_std_dev: 0.0,
            prefill_overhead: HumanDuration::default(),
            prefill_time_per_token: HumanDuration::default(),
            prefill_time_std_dev: 0.0,
            inter_token_latency: HumanDuration::default(),
            inter_token_latency_std_dev: 0.0,
            lora_swap_time: HumanDuration::default(),
            time_factor_under_load: 1.0,
            time_scale: 1.0,
        }
    }
}

// === impl Latency ===

impl From<&LatencyKnobs> for Latency {
    fn from(knobs: &LatencyKnobs) -> Self {
        let LatencyKnobs {
            time_to_first_token,
            time_to_first_token_std_dev,
            prefill_overhead,
            prefill_time_per_token,
            prefill_time_std_dev,
            inter_token_latency,
            inter_token_latency_std_dev,
            lora_swap_time,
            time_factor_under_load,
            time_scale,
        } = knobs;
        Self {
            first_token: Spread {
                mean: time_to_first_token.get(),
                std_dev: *time_to_first_token_std_dev,
            },
            prefill_overhead: prefill_overhead.get(),
            prefill_per_token: prefill_time_per_token.get(),
            prefill_std_dev: *prefill_time_std_dev,
            inter_token: Spread {
                mean: inter_token_latency.get(),
                std_dev: *inter_token_latency_std_dev,
            },
            adapter_swap: lora_swap_time.get(),
            factor_under_load: *time_factor_under_load,
            scale: *time_scale,
        }
    }
}

// === impl KnobBoard ===

impl KnobBoard {
    pub(crate) fn new(initial: &Knobs) -> Self {
        let initial = serde_json::to_value(initial).expect("knobs always have a JSON form");
        Self {
            initial,
            changes: Value::Object(Map::new()),
        }
    }

    /// Merges a patch as RFC 7396 has it, where `null` means: as at the start. A refused patch changes
    /// nothing.
    ///
    /// # Errors
    /// [`KnobError`] when the patch names something unknown or has a value that is not possible.
    pub(crate) fn patch(&mut self, patch: &Value) -> Result<Knobs, KnobError> {
        if !patch.is_object() {
            return Err(KnobError::NotAnObject);
        }
        if let Some(name) = unknown(&self.initial, patch) {
            return Err(KnobError::Unknown(name));
        }
        let mut changes = self.changes.clone();
        merge(&mut changes, patch);
        let mut knobs = self.initial.clone();
        merge(&mut knobs, &changes);
        let knobs: Knobs = serde_json::from_value(knobs)
            .map_err(|error| KnobError::WrongType(error.to_string()))?;
        knobs.check()?;
        self.changes = changes;
        Ok(knobs)
    }
}

// === impl Knobs ===

impl Knobs {
    fn check(&self) -> Result<(), KnobError> {
        let Self {
            latency, metrics, ..
        } = self;
        let outside =
            |value: Option<FakeValue>, range| value.and_then(|value| value.outside(range));
        let numbers = [
            (
                "latency.time_to_first_token_std_dev",
                Some(latency.time_to_first_token_std_dev),
                STD_DEV,
            ),
            (
                "latency.prefill_time_std_dev",
                Some(latency.prefill_time_std_dev),
                STD_DEV,
            ),
            (
                "latency.inter_token_latency_std_dev",
                Some(latency.inter_token_latency_std_dev),
                STD_DEV,
            ),
            (
                "latency.time_factor_under_load",
                Some(latency.time_factor_under_load),
                FACTOR_UNDER_LOAD,
            ),
            ("latency.time_scale", Some(latency.time_scale), TIME_SCALE),
            ("metrics.waiting", outside(metrics.waiting, COUNT), COUNT),
            ("metrics.running", outside(metrics.running, COUNT), COUNT),
            ("metrics.kv", outside(metrics.kv, SHARE), SHARE),
            ("fail.rate", self.fail.map(|fail| fail.rate), SHARE),
            ("cut.rate", self.cut.map(|cut| cut.rate), SHARE),
            ("reset", self.reset, SHARE),
        ];
        for (name, value, range) in numbers {
            if let Some(value) = value.filter(|value| !range.contains(*value)) {
                let Range { low, high } = range;
                return Err(KnobError::OutOfRange {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        let statuses = [self.fail.map(|fail| fail.status), metrics.status];
        match statuses
            .into_iter()
            .flatten()
            .find(|status| !(400..=599).contains(status))
        {
            Some(status) => Err(KnobError::Status(status)),
            None => Ok(()),
        }
    }
}

/// A key of the patch that the initial document does not have, with its path. Needed besides
/// `deny_unknown_fields`, which never sees a key set to `null`.
fn unknown(initial: &Value, patch: &Value) -> Option<String> {
    let (Value::Object(initial), Value::Object(patch)) = (initial, patch) else {
        return None;
    };
    patch
        .iter()
        .find_map(|(key, value)| match initial.get(key) {
            None => Some(key.clone()),
            Some(inner) => unknown(inner, value).map(|rest| format!("{key}.{rest}")),
        })
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests;
