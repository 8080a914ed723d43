//! From two looks at a pool to what has happened. Pure.

use std::collections::BTreeSet;

use super::{
    Reason,
    signs::{Signs, Verdict},
};
use crate::{name::ClusterName, plan::join_names};

/// What is news about a pool, compared with the last look.
pub(super) fn derive(old: &Signs, new: &Signs) -> Vec<(Reason, String)> {
    let mut news = Vec::new();
    if let Some(verdict) = &new.exported
        && old.exported.as_ref().map(Verdict::kind) != Some(verdict.kind())
        && let Some(reason) = exported(verdict)
    {
        news.push((reason, verdict.message.clone()));
    }
    let complaints: Vec<&str> = new
        .complaints
        .difference(&old.complaints)
        .map(String::as_str)
        .collect();
    if !complaints.is_empty() {
        news.push((Reason::InvalidExportAnnotation, complaints.join("; ")));
    }
    let mut joined = |reason,
                      old: &BTreeSet<ClusterName>,
                      new: &BTreeSet<ClusterName>,
                      say: &dyn Fn(String) -> String| {
        // all that are concerned are named, not only those that were added
        if new.difference(old).next().is_some() {
            news.push((reason, say(join_names(new.iter().map(ClusterName::as_str)))));
        }
    };
    joined(
        Reason::NamespaceMissing,
        &old.namespace_missing,
        &new.namespace_missing,
        &|names| {
            format!(
                "not imported where the namespace is missing or terminating: {names}; it follows when the namespace is there"
            )
        },
    );
    joined(
        Reason::ImportConflict,
        &old.conflicts,
        &new.conflicts,
        &|names| {
            format!(
                "an InferencePoolImport of this name belongs to somebody else and is left alone: {names}; rename the pool, or delete that import"
            )
        },
    );
    joined(
        Reason::ImportConflict,
        &old.contested,
        &new.contested,
        &|names| {
            format!(
                "somebody keeps undoing what is written into the InferencePoolImport, so it is written ever more rarely: {names}; end the other writer, which its managedFields name"
            )
        },
    );
    joined(
        Reason::ClusterUnreachable,
        &old.unreachable,
        &new.unreachable,
        &|names| format!("no contact, so changes are late there: {names}; what is there stays"),
    );
    if new.no_health_port && !old.no_health_port {
        let text = "the endpoint picker's Service has no port named health or grpc-health, so importing gateways cannot \
             check it: name one, or set the annotation isthmus.dev/health-port";
        news.push((Reason::HealthPortNotFound, text.to_owned()));
    }
    if new.crowded_out && !old.crowded_out {
        let text = "too many clusters export this pool: the oldest pools are listed in the imports, this one is not";
        news.push((Reason::TooManyExporters, text.to_owned()));
    }
    if new.status_full && !old.status_full {
        let text = "the pool's status has 32 parents already, so the condition Exported has no place there: remove those \
             of controllers that are gone";
        news.push((Reason::PoolStatusFull, text.to_owned()));
    }
    let rejected: Vec<&str> = new
        .rejected
        .iter()
        .filter(|(reason, count)| old.rejected.get(*reason) < Some(*count))
        .map(|(reason, _)| *reason)
        .collect();
    if !rejected.is_empty() {
        let text = format!(
            "addresses of the endpoint picker's Service are not passed on to other clusters: {}",
            rejected.join(", ")
        );
        news.push((Reason::AddressRejected, text));
    }
    news
}

/// The event of a verdict; a missing namespace and a bad annotation are told with more detail elsewhere, and a pool that
/// is alone in its ClusterSet has nothing to do about it.
fn exported(verdict: &Verdict) -> Option<Reason> {
    match verdict.reason.as_str() {
        "Exported" => Some(Reason::Exported),
        "PartiallyExported" => Some(Reason::PartiallyExported),
        "NotSupported" if !verdict.annotation => Some(Reason::NotSupported),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::mk_name;

    fn mk_verdict(reason: &str, message: &str) -> Verdict {
        Verdict {
            reason: reason.to_owned(),
            message: message.to_owned(),
            annotation: false,
        }
    }

    fn reasons(old: &Signs, new: &Signs) -> Vec<&'static str> {
        derive(old, new)
            .iter()
            .map(|(reason, _)| reason.name())
            .collect()
    }

    fn names(names: &[&str]) -> BTreeSet<ClusterName> {
        names.iter().map(|name| mk_name(name)).collect()
    }

    #[rstest]
    #[case("Exported", &["Exported"])]
    #[case("PartiallyExported", &["PartiallyExported"])]
    #[case("NotSupported", &["NotSupported"])]
    #[case("NoOtherMember", &[])]
    #[case("NamespaceMissing", &[])]
    fn verdicts_are_told_by_reason(#[case] reason: &str, #[case] told: &[&str]) {
        let new = Signs {
            exported: Some(mk_verdict(reason, "1/2")),
            ..Signs::default()
        };
        assert_eq!(reasons(&Signs::default(), &new), told);
        assert!(reasons(&new, &new).is_empty());
        let other_count = Signs {
            exported: Some(mk_verdict(reason, "2/3")),
            ..Signs::default()
        };
        assert!(reasons(&new, &other_count).is_empty());
    }

    #[test]
    fn a_set_of_members_is_told_when_it_grows_and_in_full() {
        let one = Signs {
            unreachable: names(&["c"]),
            ..Signs::default()
        };
        let two = Signs {
            unreachable: names(&["b", "c"]),
            ..Signs::default()
        };
        let news = derive(&one, &two);
        assert_eq!(news.len(), 1);
        assert!(news[0].1.contains("b,c"), "{news:?}");
        assert!(derive(&two, &one).is_empty());
    }

    #[test]
    fn every_sign_has_its_reason() {
        let new = Signs {
            uid: String::new(),
            exported: Some(mk_verdict("PartiallyExported", "0/4")),
            complaints: ["annotation x".to_owned()].into(),
            namespace_missing: names(&["a"]),
            conflicts: names(&["b"]),
            contested: names(&["d"]),
            unreachable: names(&["c"]),
            no_health_port: true,
            crowded_out: true,
            status_full: true,
            rejected: [("Unroutable", 1)].into(),
        };
        assert_eq!(
            reasons(&Signs::default(), &new),
            [
                "PartiallyExported",
                "InvalidExportAnnotation",
                "NamespaceMissing",
                "ImportConflict",
                "ImportConflict",
                "ClusterUnreachable",
                "HealthPortNotFound",
                "TooManyExporters",
                "PoolStatusFull",
                "AddressRejected",
            ]
        );
        assert!(reasons(&new, &new).is_empty());
        assert!(reasons(&new, &Signs::default()).is_empty());
    }
}
