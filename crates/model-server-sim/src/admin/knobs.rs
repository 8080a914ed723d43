//! What can be changed while the server runs: pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{duration::HumanDuration, engine::Latency};

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
}

/// How long tokens take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyKnobs {
    /// From the start of a request to its first token.
    pub time_to_first_token: HumanDuration,
    /// Added to that for each prompt token.
    pub prefill_time_per_token: HumanDuration,
    /// From one token to the next.
    pub inter_token_latency: HumanDuration,
}

/// Fixed values for `/metrics`; `None` tells the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeMetrics {
    /// Requests that wait.
    pub waiting: Option<u32>,
    /// Requests that run.
    pub running: Option<u32>,
    /// KV-cache usage, 0 to 1.
    pub kv: Option<f64>,
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
    #[error("metrics.kv is {0}: use a share from 0 to 1")]
    Kv(f64),
    #[error("fail.status is {0}: use an HTTP status from 400 to 599")]
    Status(u16),
    #[error("fail.rate is {0}: use a share from 0 to 1")]
    Rate(f64),
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

// === impl Latency ===

impl From<&LatencyKnobs> for Latency {
    fn from(knobs: &LatencyKnobs) -> Self {
        let LatencyKnobs {
            time_to_first_token,
            prefill_time_per_token,
            inter_token_latency,
        } = knobs;
        Self {
            first_token: time_to_first_token.get(),
            prefill_per_token: prefill_time_per_token.get(),
            inter_token: inter_token_latency.get(),
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
        let share = |value: f64| (0.0..=1.0).contains(&value);
        if let Some(kv) = self.metrics.kv.filter(|kv| !share(*kv)) {
            return Err(KnobError::Kv(kv));
        }
        match self.fail {
            Some(Fail { status, .. }) if !(400..=599).contains(&status) => {
                Err(KnobError::Status(status))
            }
            Some(Fail { rate, .. }) if !share(rate) => Err(KnobError::Rate(rate)),
            _ => Ok(()),
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
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn mk_knobs() -> Knobs {
        Knobs {
            latency: LatencyKnobs {
                time_to_first_token: HumanDuration::from_millis(20),
                prefill_time_per_token: HumanDuration::default(),
                inter_token_latency: HumanDuration::from_millis(5),
            },
            metrics: FakeMetrics::default(),
            ready: true,
            hang: false,
            reject: false,
            fail: None,
        }
    }

    #[test]
    fn a_patch_changes_what_it_names_and_null_takes_it_back() {
        let mut board = KnobBoard::new(&mk_knobs());
        let patch = json!({"latency": {"inter_token_latency": "1s"}, "metrics": {"waiting": 7}});
        let knobs = board.patch(&patch).expect("valid");
        assert_eq!(
            knobs.latency.inter_token_latency,
            HumanDuration::from_millis(1_000)
        );
        assert_eq!(
            knobs.latency.time_to_first_token,
            HumanDuration::from_millis(20)
        );

        let patch = json!({"latency": null, "fail": {"status": 500}});
        let knobs = board.patch(&patch).expect("valid");
        let fail = Some(Fail {
            status: 500,
            rate: 1.0,
        });
        let metrics = FakeMetrics {
            waiting: Some(7),
            ..FakeMetrics::default()
        };
        assert_eq!(
            knobs,
            Knobs {
                metrics,
                fail,
                ..mk_knobs()
            }
        );

        let patch = json!({"metrics": {"waiting": null}, "fail": null});
        assert_eq!(board.patch(&patch).expect("valid"), mk_knobs());
    }

    #[rstest]
    #[case(json!([]), "object")]
    #[case(json!({"redy": true}), "redy")]
    #[case(json!({"redy": null}), "redy")]
    #[case(json!({"latency": {"ttft": "1s"}}), "latency.ttft")]
    #[case(json!({"ready": "no"}), "boolean")]
    #[case(json!({"latency": {"inter_token_latency": "-1s"}}), "20ms")]
    #[case(json!({"metrics": {"kv": 1.5}}), "1.5")]
    #[case(json!({"metrics": {"waiting": -1}}), "-1")]
    #[case(json!({"fail": {"status": 200}}), "200")]
    #[case(json!({"fail": {"status": 500, "rate": 2.0}}), "rate")]
    #[case(json!({"fail": {"rate": 1.0}}), "status")]
    #[case(json!({"fail": {"status": 500, "often": true}}), "often")]
    fn a_bad_patch_is_refused_whole(#[case] bad: Value, #[case] told: &str) {
        let mut board = KnobBoard::new(&mk_knobs());
        let error = board.patch(&bad).expect_err("refused").to_string();
        assert!(error.contains(told), "{error}");
        assert_eq!(board.patch(&json!({})).expect("valid"), mk_knobs());
    }
}
