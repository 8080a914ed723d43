//! From two looks at a pool to what has happened. Pure.

use std::collections::BTreeSet;

use super::{
    Reason,
    signs::{Signs, Verdict},
};
use crate::{name::ClusterName, plan::join_names};

/// Something that happened to a pool.
#[derive(Debug)]
pub(super) struct News {
    pub(super) reason: Reason,
    /// Tells apart what bears the same reason.
    pub(super) subject: &'static str,
    pub(super) note: String,
}

/// Subject of an import that is ours, and that somebody keeps undoing.
const CONTESTED: &str = "contested";

/// Tells what is news about a pool, compared with what was told of it. `tell` returns whether it takes a piece of news;
/// what it does not take stays news for as long as it stands. Returns what is told of now.
pub(super) fn derive(old: &Signs, mut new: Signs, mut tell: impl FnMut(News) -> bool) -> Signs {
    let mut tell = |reason, subject, note| {
        tell(News {
            reason,
            subject,
            note,
        })
    };
    new.exported = match new.exported {
        Some(verdict) if old.exported.as_ref().map(Verdict::kind) != Some(verdict.kind()) => {
            let news = exported(&verdict);
            let told = verdict.written
                | news.is_none_or(|reason| tell(reason, "", verdict.message.clone()));
            if told {
                Some(verdict)
            } else {
                old.exported.clone()
            }
        }
        // while it moves, what it last said stands
        verdict => verdict.or_else(|| old.exported.clone()),
    };
    // all are named, not only those that were added: this may overtake one that names those
    if !new.complaints.is_subset(&old.complaints) {
        let all: Vec<&str> = new.complaints.iter().map(String::as_str).collect();
        if !tell(Reason::InvalidExportAnnotation, "", all.join("; ")) {
            new.complaints
                .retain(|complaint| old.complaints.contains(complaint));
        }
    }
    let mut joined = |(reason, subject),
                      old: &BTreeSet<ClusterName>,
                      new: &mut BTreeSet<ClusterName>,
                      say: fn(&str) -> String| {
        // all that are concerned are named, not only those that were added
        if new.difference(old).next().is_some() {
            let names = join_names(new.iter().map(ClusterName::as_str));
            if !tell(reason, subject, say(&names)) {
                new.retain(|name| old.contains(name));
            }
        }
    };
    joined(
        (Reason::NamespaceMissing, ""),
        &old.namespace_missing,
        &mut new.namespace_missing,
        say_namespace_missing,
    );
    joined(
        (Reason::ImportConflict, ""),
        &old.conflicts,
        &mut new.conflicts,
        say_conflicts,
    );
    joined(
        (Reason::ImportConflict, CONTESTED),
        &old.contested,
        &mut new.contested,
        say_contested,
    );
    joined(
        (Reason::ClusterUnreachable, ""),
        &old.unreachable,
        &mut new.unreachable,
        say_unreachable,
    );
    let mut held = |reason, old: bool, new: &mut bool, text: &str| {
        if *new && !old {
            *new = tell(reason, "", text.to_owned());
        }
    };
    held(
        Reason::HealthPortNotFound,
        old.no_health_port,
        &mut new.no_health_port,
        "the endpoint picker's Service has no port named health or grpc-health, so importing gateways cannot check it: \
         name one, or set the annotation isthmus.dev/health-port",
    );
    held(
        Reason::TooManyExporters,
        old.crowded_out,
        &mut new.crowded_out,
        "too many clusters export this pool: the oldest pools are listed in the imports, this one is not",
    );
    held(
        Reason::PoolStatusFull,
        old.status_full,
        &mut new.status_full,
        "the pool's status has 32 parents already, so the condition Exported has no place there: remove those of \
         controllers that are gone",
    );
    let rejected = rejected(old, &new);
    if !rejected.is_empty() && !tell(Reason::AddressRejected, "", say_rejected(&rejected)) {
        for (reason, count) in &mut new.rejected {
            *count = (*count).min(old.rejected.get(reason).copied().unwrap_or_default());
        }
    }
    new
}

/// What was told of a pool, or was to be told, and is over with this look at it, wholly or in part: reason and subject.
pub(super) fn over(old: &Signs, new: &Signs) -> Vec<(Reason, &'static str)> {
    let silent = |verdict: &Verdict| {
        // the new verdict is not told, so that nothing overtakes the old one
        old.exported.as_ref().map(Verdict::kind) != Some(verdict.kind())
            && (verdict.written || exported(verdict).is_none())
    };
    let joined = |old: &BTreeSet<ClusterName>, new: &BTreeSet<ClusterName>| !old.is_subset(new);
    let kinds_of = |signs: &Signs| -> BTreeSet<&'static str> {
        let kinds = signs.rejected.iter().filter(|(_, count)| **count > 0);
        kinds.map(|(reason, _)| *reason).collect()
    };
    let ends = [
        (
            Reason::Exported,
            "",
            new.exported.as_ref().is_some_and(silent),
        ),
        (
            Reason::InvalidExportAnnotation,
            "",
            !old.complaints.is_subset(&new.complaints),
        ),
        (
            Reason::NamespaceMissing,
            "",
            joined(&old.namespace_missing, &new.namespace_missing),
        ),
        (
            Reason::ImportConflict,
            "",
            joined(&old.conflicts, &new.conflicts),
        ),
        (
            Reason::ImportConflict,
            CONTESTED,
            joined(&old.contested, &new.contested),
        ),
        (
            Reason::ClusterUnreachable,
            "",
            joined(&old.unreachable, &new.unreachable),
        ),
        (
            Reason::HealthPortNotFound,
            "",
            old.no_health_port && !new.no_health_port,
        ),
        (
            Reason::TooManyExporters,
            "",
            old.crowded_out && !new.crowded_out,
        ),
        (
            Reason::PoolStatusFull,
            "",
            old.status_full && !new.status_full,
        ),
        (
            Reason::AddressRejected,
            "",
            !kinds_of(old).is_subset(&kinds_of(new)),
        ),
    ];
    let over = ends.into_iter().filter(|(_, _, is_over)| *is_over);
    over.map(|(reason, subject, _)| (reason, subject)).collect()
}

/// This was to be told and will not be, since not all of it is so any more: what is left of it is news.
pub(super) fn untell(told: &mut Signs, reason: Reason, subject: &str) {
    match reason {
        Reason::InvalidExportAnnotation => told.complaints.clear(),
        Reason::NamespaceMissing => told.namespace_missing.clear(),
        Reason::ImportConflict if subject == CONTESTED => told.contested.clear(),
        Reason::ImportConflict => told.conflicts.clear(),
        Reason::ClusterUnreachable => told.unreachable.clear(),
        Reason::AddressRejected => told.rejected.clear(),
        // nothing is left of these
        Reason::Exported
        | Reason::PartiallyExported
        | Reason::NotSupported
        | Reason::HealthPortNotFound
        | Reason::TooManyExporters
        | Reason::PoolStatusFull
        | Reason::Member(_)
        | Reason::IsolationGuard => {}
    }
}

/// Why addresses are left out, all of it, where more are than before.
fn rejected(old: &Signs, new: &Signs) -> Vec<&'static str> {
    let mut found = new.rejected.iter();
    if found.any(|(reason, count)| old.rejected.get(reason) < Some(count)) {
        new.rejected.keys().copied().collect()
    } else {
        Vec::new()
    }
}

fn say_rejected(reasons: &[&str]) -> String {
    format!(
        "addresses of the endpoint picker's Service are not passed on to other clusters: {}",
        reasons.join(", ")
    )
}

fn say_namespace_missing(names: &str) -> String {
    format!(
        "not imported where the namespace is missing or terminating: {names}; it follows when the namespace is there"
    )
}

fn say_conflicts(names: &str) -> String {
    format!(
        "an InferencePoolImport of this name belongs to somebody else and is left alone: {names}; rename the pool, or delete that import"
    )
}

fn say_contested(names: &str) -> String {
    format!(
        "somebody keeps undoing what is written into the InferencePoolImport, so it is written ever more rarely: {names}; end the other writer, which its managedFields name"
    )
}

fn say_unreachable(names: &str) -> String {
    format!("no contact, so changes are late there: {names}; what is there stays")
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
mod tests;
