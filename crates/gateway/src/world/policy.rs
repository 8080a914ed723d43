//! `ClusterSelectionPolicy` as it was written, and what it asks for.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use crd::selection_policy::{
    ClusterSelectionPolicy, ClusterSelectionPolicySpec, HealthSettings, LocalPool, MAX_ORDER,
    MetricsSettings, SelectionType,
};

use crate::select::{HealthRule, MetricsRule, OrderRule, Policy, Strategy};

/// A policy for imports of its namespace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectionPolicy {
    pub(crate) generation: i64,
    /// Seconds since 1970: of two policies for one import the older one holds.
    pub(crate) created: i64,
    /// Names of imports.
    pub(crate) targets: BTreeSet<String>,
    /// What it asks for, or why it cannot hold.
    pub(crate) policy: Result<Policy, String>,
}

pub(crate) fn selection_policy(object: &ClusterSelectionPolicy) -> SelectionPolicy {
    let meta = &object.metadata;
    let created = meta.creation_timestamp.as_ref();
    let targets = object.spec.target_refs.iter();
    SelectionPolicy {
        generation: meta.generation.unwrap_or(0),
        created: created.map_or(0, |time| time.0.as_second()),
        targets: targets.map(|target| target.name.clone()).collect(),
        policy: read(&object.spec),
    }
}

/// The schema has the same bounds. They are checked again, since a CRD of another release may have others.
fn read(spec: &ClusterSelectionPolicySpec) -> Result<Policy, String> {
    if spec.order.len() > MAX_ORDER {
        return Err(format!("spec.order has more than {MAX_ORDER} clusters"));
    }
    let strategy = match spec.type_ {
        SelectionType::HealthBased => Strategy::HealthBased,
        SelectionType::MetricsBased => {
            Strategy::MetricsBased(metrics(spec.metrics.as_ref().unwrap_or(&DEFAULT_METRICS))?)
        }
        SelectionType::ActivePassive => {
            let OrderRule { failback, .. } = OrderRule::default();
            let field = "spec.failbackSeconds";
            Strategy::ActivePassive(OrderRule {
                order: spec.order.clone(),
                failback: seconds(field, spec.failback_seconds, 0..=3600, failback)?,
            })
        }
    };
    Ok(Policy {
        strategy,
        include_local: spec.local_pool == LocalPool::Include,
        health: health(spec.health.as_ref().unwrap_or(&DEFAULT_HEALTH))?,
    })
}

const DEFAULT_METRICS: MetricsSettings = MetricsSettings {
    queue_target: None,
    half_life_seconds: None,
    hysteresis_permille: None,
    min_share_permille: None,
    stale_after_seconds: None,
};

const DEFAULT_HEALTH: HealthSettings = HealthSettings {
    interval_seconds: None,
    timeout_seconds: None,
    unhealthy_after: None,
    healthy_after: None,
};

fn metrics(given: &MetricsSettings) -> Result<MetricsRule, String> {
    let MetricsSettings {
        queue_target,
        half_life_seconds,
        hysteresis_permille,
        min_share_permille,
        stale_after_seconds,
    } = given;
    let default = MetricsRule::default();
    let target = number("spec.metrics.queueTarget", *queue_target, 1..=10_000)?;
    let permille = |name: &str, given: &Option<i64>, default| {
        let given = number(&format!("spec.metrics.{name}"), *given, 1..=500)?;
        Ok::<_, String>(given.unwrap_or(default))
    };
    Ok(MetricsRule {
        queue_target: target.map_or(default.queue_target, f64::from),
        half_life: seconds(
            "spec.metrics.halfLifeSeconds",
            *half_life_seconds,
            1..=600,
            default.half_life,
        )?,
        hysteresis: permille(
            "hysteresisPermille",
            hysteresis_permille,
            default.hysteresis,
        )?,
        min_share: permille("minSharePermille", min_share_permille, default.min_share)?,
        stale_after: seconds(
            "spec.metrics.staleAfterSeconds",
            *stale_after_seconds,
            2..=600,
            default.stale_after,
        )?,
    })
}

fn health(given: &HealthSettings) -> Result<HealthRule, String> {
    let HealthSettings {
        interval_seconds,
        timeout_seconds,
        unhealthy_after,
        healthy_after,
    } = given;
    let default = HealthRule::default();
    let unhealthy = number("spec.health.unhealthyAfter", *unhealthy_after, 1..=20)?;
    let healthy = number("spec.health.healthyAfter", *healthy_after, 1..=20)?;
    Ok(HealthRule {
        interval: seconds(
            "spec.health.intervalSeconds",
            *interval_seconds,
            1..=60,
            default.interval,
        )?,
        timeout: seconds(
            "spec.health.timeoutSeconds",
            *timeout_seconds,
            1..=10,
            default.timeout,
        )?,
        unhealthy_after: unhealthy.unwrap_or(default.unhealthy_after),
        healthy_after: healthy.unwrap_or(default.healthy_after),
    })
}

fn seconds(
    field: &str,
    given: Option<i64>,
    range: RangeInclusive<u32>,
    default: Duration,
) -> Result<Duration, String> {
    let given = number(field, given, range)?;
    Ok(given.map_or(default, |given| Duration::from_secs(given.into())))
}

fn number(
    field: &str,
    given: Option<i64>,
    range: RangeInclusive<u32>,
) -> Result<Option<u32>, String> {
    let Some(given) = given else {
        return Ok(None);
    };
    let number = u32::try_from(given).ok();
    let number = number.filter(|number| range.contains(number));
    let (from, to) = (range.start(), range.end());
    let bad = || format!("{field} is {given}: expected {from} to {to}");
    number.map(Some).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn mk(more: Value) -> SelectionPolicy {
        let mut spec = json!({"targetRefs": [
            {"group": "inference.networking.x-k8s.io", "kind": "InferencePoolImport", "name": "llm"},
        ]});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let object = json!({
            "metadata": {"name": "csp", "generation": 3, "creationTimestamp": "1970-01-01T00:01:00Z"},
            "spec": spec,
        });
        selection_policy(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn what_is_absent_is_as_without_a_policy() {
        let read = mk(json!({}));
        assert_eq!(read.policy, Ok(Policy::default()));
        assert_eq!((read.generation, read.created), (3, 60));
        assert_eq!(read.targets, BTreeSet::from(["llm".to_owned()]));
        let strategy = |kind: &str| mk(json!({"type": kind})).policy.unwrap().strategy;
        let metrics = Strategy::MetricsBased(MetricsRule::default());
        assert_eq!(strategy("MetricsBased"), metrics);
        let order = Strategy::ActivePassive(OrderRule::default());
        assert_eq!(strategy("ActivePassive"), order);
    }

    #[test]
    fn each_field_has_its_place() {
        let read = mk(json!({
            "type": "MetricsBased", "localPool": "Include",
            "metrics": {"queueTarget": 7, "halfLifeSeconds": 8, "hysteresisPermille": 9, "minSharePermille": 10, "staleAfterSeconds": 11},
            "health": {"intervalSeconds": 2, "timeoutSeconds": 3, "unhealthyAfter": 4, "healthyAfter": 5},
        }));
        let expected = Policy {
            strategy: Strategy::MetricsBased(MetricsRule {
                queue_target: 7.0,
                half_life: Duration::from_secs(8),
                hysteresis: 9,
                min_share: 10,
                stale_after: Duration::from_secs(11),
            }),
            include_local: true,
            health: HealthRule {
                interval: Duration::from_secs(2),
                timeout: Duration::from_secs(3),
                unhealthy_after: 4,
                healthy_after: 5,
            },
        };
        assert_eq!(read.policy, Ok(expected));
        let read = mk(json!({"type": "ActivePassive", "order": ["b", "a"], "failbackSeconds": 0}));
        let expected = OrderRule {
            order: vec!["b".to_owned(), "a".to_owned()],
            failback: Duration::ZERO,
        };
        assert_eq!(
            read.policy.unwrap().strategy,
            Strategy::ActivePassive(expected)
        );
    }

    #[rstest]
    #[case(json!({"type": "MetricsBased", "metrics": {"queueTarget": 0}}), "spec.metrics.queueTarget is 0: expected 1 to 10000")]
    #[case(json!({"type": "ActivePassive", "failbackSeconds": -1}), "spec.failbackSeconds is -1: expected 0 to 3600")]
    #[case(json!({"health": {"timeoutSeconds": 11}}), "spec.health.timeoutSeconds is 11: expected 1 to 10")]
    #[case(json!({"type": "ActivePassive", "order": vec!["a"; 65]}), "spec.order has more than 64 clusters")]
    fn what_a_schema_of_another_release_lets_through_is_invalid(
        #[case] spec: Value,
        #[case] expected: &str,
    ) {
        assert_eq!(mk(spec).policy, Err(expected.to_owned()));
    }
}
