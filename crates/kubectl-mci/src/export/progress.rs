//! How far an export is, by the pool's condition. Pure.

use std::time::Duration;

use crd::{
    Condition,
    annotations::{EXPORT, EXPORT_MODE, MCI_CONTROLLER},
    conditions,
    inference_pool::InferencePool,
};
use kube::ResourceExt;

/// How far an export is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done(String),
    Waiting(String),
    /// It will not come without a change.
    Refused(String),
}

/// What an annotation changed, as its write was answered.
#[derive(Debug)]
pub(super) struct Change {
    /// Whether it changed anything.
    changed: bool,
    /// The condition that the pool had then: it says nothing of the change.
    condition: Option<Condition>,
}

/// How long a condition that does not change may be the one from before a change. The controller reports a change within a
/// second or two; it is 5 for a busy one. Afterwards it counts: an export in another mode may be said in the same words.
const SETTLES: Duration = Duration::from_secs(5);

// === impl Change ===

impl Change {
    /// By the pool as it was read before, and as the write was answered.
    pub(super) fn of(before: Option<&InferencePool>, after: &InferencePool) -> Self {
        let asked = |pool: &InferencePool| {
            let annotations = pool.annotations();
            [EXPORT, EXPORT_MODE].map(|key| annotations.get(key).cloned())
        };
        Self {
            changed: before.map(asked) != Some(asked(after)),
            condition: exported_condition(after).cloned(),
        }
    }
}

/// The condition `Exported` that our controller wrote on a pool.
pub(crate) fn exported_condition(pool: &InferencePool) -> Option<&Condition> {
    let parents = pool.status.as_ref()?.parents.as_ref()?;
    let ours = parents
        .iter()
        .find(|parent| parent.controller_name.as_deref() == Some(MCI_CONTROLLER))?;
    conditions::find(ours.conditions.as_ref()?, conditions::EXPORTED)
}

/// How far the export is, so long after the change.
pub(super) fn exported(pool: &InferencePool, change: &Change, since: Duration) -> Progress {
    let Some(condition) = exported_condition(pool) else {
        return Progress::Waiting(
            "no controller has seen it yet: is its cluster a member, and a controller running (kubectl mci check)?"
                .to_owned(),
        );
    };
    let mut message = condition.message.clone();
    let mut text = format!("{}: {message}", condition.reason);
    if change.changed && change.condition.as_ref() == Some(condition) {
        if since < SETTLES {
            return Progress::Waiting(format!("no controller has seen the change yet ({text})"));
        }
        let unchanged =
            format!("; unchanged after {SETTLES:?}: not known whether a controller saw the change");
        message.push_str(&unchanged);
        text.push_str(&unchanged);
    }
    match (condition.status.as_str(), condition.reason.as_str()) {
        ("True", _) => Progress::Done(message),
        (_, "NotSupported") => Progress::Refused(text),
        _ => Progress::Waiting(text),
    }
}

/// The controller's entry goes with the last entry of the pool in an import.
pub(super) fn withdrawn(pool: &InferencePool) -> Progress {
    match exported_condition(pool) {
        None => Progress::Done("withdrawn".to_owned()),
        Some(condition) => Progress::Waiting(format!(
            "the controller has not withdrawn it yet ({})",
            condition.reason
        )),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const LATER: Duration = Duration::from_secs(5);

    fn mk_pool(mode: &str, status: &str, reason: &str) -> InferencePool {
        serde_json::from_value(json!({
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": "llama", "namespace": "llm", "annotations": {EXPORT: "ClusterSet", EXPORT_MODE: mode}},
            "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
            "status": {"parents": [
                {"parentRef": {"name": "gw"}, "controllerName": "example.com/other", "conditions": []},
                {"parentRef": {"name": "default"}, "controllerName": MCI_CONTROLLER, "conditions": [{
                    "type": "Exported", "status": status, "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            ]},
        }))
        .expect("a pool")
    }

    /// Of a pool that had no condition.
    fn mk_first() -> Change {
        let mut pool = mk_pool("EndpointMode", "True", "Exported");
        pool.status = None;
        Change::of(None, &pool)
    }

    fn kind(progress: &Progress) -> &'static str {
        match progress {
            Progress::Done(_) => "done",
            Progress::Waiting(_) => "waiting",
            Progress::Refused(_) => "refused",
        }
    }

    #[rstest]
    #[case("True", "Exported", "done")]
    #[case("False", "PartiallyExported", "waiting")]
    #[case("False", "NamespaceMissing", "waiting")]
    #[case("False", "NoOtherMember", "waiting")]
    #[case("False", "NotSupported", "refused")]
    fn an_export_is_done_refused_or_on_its_way(
        #[case] status: &str,
        #[case] reason: &str,
        #[case] expected: &str,
    ) {
        let pool = mk_pool("EndpointMode", status, reason);
        assert_eq!(kind(&exported(&pool, &mk_first(), AT_ONCE)), expected);
    }

    #[rstest]
    #[case::nothing_changed("EndpointMode", ("True", "Exported"), AT_ONCE, Progress::Done("why".to_owned()))]
    #[case::the_condition_from_before("ParentMode", ("True", "Exported"), AT_ONCE, Progress::Waiting("no controller has seen the change yet (Exported: why)".to_owned()))]
    #[case::the_same_words_after_a_while("ParentMode", ("True", "Exported"), LATER, Progress::Done("why; unchanged after 5s: not known whether a controller saw the change".to_owned()))]
    #[case::a_new_condition("ParentMode", ("False", "NotSupported"), AT_ONCE, Progress::Refused("NotSupported: why".to_owned()))]
    fn a_condition_from_before_a_change_says_nothing_of_it(
        #[case] mode_before: &str,
        #[case] now: (&str, &str),
        #[case] since: Duration,
        #[case] expected: Progress,
    ) {
        let before = mk_pool(mode_before, "True", "Exported");
        let answered = mk_pool("EndpointMode", "True", "Exported");
        let change = Change::of(Some(&before), &answered);
        let pool = mk_pool("EndpointMode", now.0, now.1);
        assert_eq!(exported(&pool, &change, since), expected);
    }

    #[test]
    fn a_refusal_from_before_a_change_is_not_final() {
        let before = mk_pool("Mars", "False", "NotSupported");
        let after = mk_pool("EndpointMode", "False", "NotSupported");
        let change = Change::of(Some(&before), &after);
        assert_eq!(kind(&exported(&after, &change, AT_ONCE)), "waiting");
        assert_eq!(kind(&exported(&after, &change, LATER)), "refused");
    }

    #[test]
    fn a_pool_without_our_condition_was_not_seen_or_is_withdrawn() {
        let mut pool = mk_pool("EndpointMode", "True", "Exported");
        assert_eq!(kind(&withdrawn(&pool)), "waiting");
        pool.status = None;
        assert_eq!(kind(&exported(&pool, &mk_first(), LATER)), "waiting");
        assert_eq!(kind(&withdrawn(&pool)), "done");
    }
}
