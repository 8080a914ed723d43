//! How far an export is, by the pool's condition. Pure.

use std::time::Duration;

use crd::{
    Condition, RoutingMode,
    annotations::{EXPORT, EXPORT_MODE, MCI_CONTROLLER},
    conditions,
    inference_pool::InferencePool,
};
use kube::ResourceExt;
use mci_model::export::{Export, parse_export};

use super::{ModeName, Reach};

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
    /// The mode that its annotation requests; none means the controller's default.
    mode: Option<RoutingMode>,
    /// Whether only the mode has changed.
    is_of_mode: bool,
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
        let export = |pool: &InferencePool| pool.annotations().get(EXPORT).cloned();
        let changed = before.map(asked) != Some(asked(after));
        Self {
            changed,
            condition: exported_condition(after).cloned(),
            mode: match parse_export(after.annotations()) {
                Export::Requested(request) => request.mode,
                _ => None,
            },
            is_of_mode: changed && before.map(export) == Some(export(after)),
        }
    }

    /// Whether entries in other clusters show a change of mode; none if there is no entry to compare.
    fn is_carried(&self, reach: Option<&Reach>) -> Option<bool> {
        let mode = self.mode.filter(|_| self.is_of_mode)?;
        let entries = &reach?.entries;
        (!entries.is_empty()).then(|| entries.iter().all(|entry| entry.mode == mode))
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
pub(super) fn exported(
    pool: &InferencePool,
    change: &Change,
    reach: Option<&Reach>,
    since: Duration,
) -> Progress {
    let Some(condition) = exported_condition(pool) else {
        return Progress::Waiting(
            "no controller has seen it yet: is its cluster a member, and a controller running (kubectl mci check)?"
                .to_owned(),
        );
    };
    let mut message = condition.message.clone();
    let mut text = format!("{}: {message}", condition.reason);
    let carried = change.is_carried(reach);
    if let (Some(false), Some(mode)) = (carried, change.mode) {
        return Progress::Waiting(format!(
            "not all other clusters have it in {} yet ({text})",
            mode.name()
        ));
    }
    let is_unsure = change.changed && carried.is_none();
    if is_unsure && change.condition.as_ref() == Some(condition) {
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
        (_, "NotSupported" | "NotAllowed") => Progress::Refused(text),
        _ => Progress::Waiting(text),
    }
}

/// The result of a finished export (`text`) with the state of its entries in other clusters; none if these were not
/// read. Clusters that could not be read are reported, and the command does not wait for them.
pub(super) fn usable(text: String, reach: Option<&Reach>) -> Progress {
    let Some(reach) = reach else {
        return Progress::Done(text);
    };
    let all = reach.entries.len();
    let unusable = reach.unusable();
    let mut text = if all == 0 {
        format!("{text}\nno entry of it was seen in another cluster")
    } else {
        format!("{text}\nusable in {}/{all}", all - unusable.len())
    };
    if !unusable.is_empty() {
        text.push_str(": ");
        text.push_str(&unusable.join("; "));
    }
    for problem in &reach.unseen {
        text.push_str("\nnot seen: ");
        text.push_str(problem);
    }
    if unusable.is_empty() {
        Progress::Done(text)
    } else {
        Progress::Waiting(text.replace('\n', ", "))
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
    use crate::export::reach::EntryView;

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
    #[case("False", "NotAllowed", "refused")]
    fn an_export_is_done_refused_or_on_its_way(
        #[case] status: &str,
        #[case] reason: &str,
        #[case] expected: &str,
    ) {
        let pool = mk_pool("EndpointMode", status, reason);
        assert_eq!(kind(&exported(&pool, &mk_first(), None, AT_ONCE)), expected);
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
        assert_eq!(exported(&pool, &change, None, since), expected);
    }

    #[test]
    fn a_refusal_from_before_a_change_is_not_final() {
        let before = mk_pool("Mars", "False", "NotSupported");
        let after = mk_pool("EndpointMode", "False", "NotSupported");
        let change = Change::of(Some(&before), &after);
        assert_eq!(kind(&exported(&after, &change, None, AT_ONCE)), "waiting");
        assert_eq!(kind(&exported(&after, &change, None, LATER)), "refused");
    }

    #[test]
    fn a_pool_without_our_condition_was_not_seen_or_is_withdrawn() {
        let mut pool = mk_pool("EndpointMode", "True", "Exported");
        assert_eq!(kind(&withdrawn(&pool)), "waiting");
        pool.status = None;
        assert_eq!(kind(&exported(&pool, &mk_first(), None, LATER)), "waiting");
        assert_eq!(kind(&withdrawn(&pool)), "done");
    }

    fn mk_reach(entries: &[(RoutingMode, Result<(), &str>)]) -> Reach {
        let entries = entries
            .iter()
            .enumerate()
            .map(|(at, (mode, ready))| EntryView {
                cluster: format!("c{at}"),
                mode: *mode,
                ready: ready.map_err(ToOwned::to_owned),
            });
        Reach {
            entries: entries.collect(),
            unseen: Vec::new(),
        }
    }

    /// The condition does not change at all.
    #[rstest]
    #[case::the_entries_have_it(&[RoutingMode::EndpointMode], Progress::Done("why".to_owned()))]
    #[case::one_has_it_not(&[RoutingMode::EndpointMode, RoutingMode::ParentMode], Progress::Waiting("not all other clusters have it in EndpointMode yet (Exported: why)".to_owned()))]
    #[case::there_is_none(&[], Progress::Waiting("no controller has seen the change yet (Exported: why)".to_owned()))]
    fn a_change_of_mode_is_seen_in_the_entries(
        #[case] modes: &[RoutingMode],
        #[case] expected: Progress,
    ) {
        let before = mk_pool("ParentMode", "True", "Exported");
        let after = mk_pool("EndpointMode", "True", "Exported");
        let change = Change::of(Some(&before), &after);
        let entries: Vec<_> = modes.iter().map(|mode| (*mode, Ok(()))).collect();
        let reach = mk_reach(&entries);
        let found = exported(&after, &change, Some(&reach), AT_ONCE);
        assert_eq!(found, expected);
    }

    #[test]
    fn an_export_that_nobody_can_use_is_waited_for() {
        let done = || "exported to 2/2".to_owned();
        assert_eq!(usable(done(), None), Progress::Done(done()));
        let text = "exported to 2/2\nno entry of it was seen in another cluster".to_owned();
        assert_eq!(usable(done(), Some(&mk_reach(&[]))), Progress::Done(text));
        let mode = RoutingMode::EndpointMode;
        let good = mk_reach(&[(mode, Ok(())), (mode, Ok(()))]);
        let text = "exported to 2/2\nusable in 2/2".to_owned();
        assert_eq!(usable(done(), Some(&good)), Progress::Done(text));
        let bad = mk_reach(&[(mode, Ok(())), (mode, Err("BackendNotFound: no Service"))]);
        let text = "exported to 2/2, usable in 1/2: c1 BackendNotFound: no Service".to_owned();
        assert_eq!(usable(done(), Some(&bad)), Progress::Waiting(text));
    }
}
