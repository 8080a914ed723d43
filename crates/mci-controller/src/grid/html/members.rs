//! The members: those with a problem first.

use std::{borrow::Cow, collections::BTreeSet};

use super::{Html, MAX_COLUMNS, View, reason_link};
use crate::{
    overview::MemberView,
    text::{MAX_MESSAGE, clipped},
};

/// Inventory objects without a member that are shown.
const MAX_UNUSED: usize = 50;

pub(super) fn section<'a>(
    html: &mut Html,
    view: &'a View<'_>,
    shown: &[&'a MemberView],
    used: &mut BTreeSet<Cow<'a, str>>,
) {
    html.raw("<section aria-labelledby=members><h2 id=members>Members</h2>");
    let overview = view.overview;
    if overview.clusters.is_empty() && overview.unused.is_empty() {
        html.raw(
            "<p class=empty>There is no member yet. To add one: <code>kubectl mci join CLUSTER --context CONTEXT</code>, or a \
             labelled Secret with its kubeconfig.</p></section>",
        );
        return;
    }
    let (ill, well): (Vec<&MemberView>, Vec<&MemberView>) =
        shown.iter().copied().partition(|one| has_problem(one));
    let reasons = ill.iter().map(|one| Cow::Borrowed(one.active.reason));
    used.extend(reasons);
    let unused = overview.unused.iter().take(MAX_UNUSED);
    used.extend(unused.clone().map(|one| Cow::Borrowed(one.active.reason)));
    if !ill.is_empty() || !overview.unused.is_empty() {
        head(html);
        for member in ill {
            row(html, member);
        }
        for unused in unused {
            html.raw("<tr><th scope=row>");
            html.text(clipped(&unused.name, MAX_MESSAGE));
            html.raw("<small>no member: ");
            html.text(clipped(&unused.source, MAX_MESSAGE));
            html.raw("</small></th><td data-of=state><i class=h aria-hidden=true></i> ");
            reason_link(html, unused.active.reason);
            html.raw("<small>");
            html.text(clipped(&unused.detail, MAX_MESSAGE));
            html.raw("</small></td><td colspan=4></td></tr>");
        }
        html.raw("</tbody></table>");
    }
    if !well.is_empty() {
        let few = shown.len() <= MAX_COLUMNS;
        html.raw(if few {
            "<details id=well open><summary>"
        } else {
            "<details id=well><summary>"
        });
        html.text(&format!("{} in contact, without a problem", well.len()));
        html.raw("</summary>");
        head(html);
        for member in well {
            row(html, member);
        }
        html.raw("</tbody></table></details>");
    }
    html.raw("</section>");
}

/// Whether there is something to say of it besides its counts.
pub(super) fn has_problem(member: &MemberView) -> bool {
    member.active.reason != "Active"
        || member.unusable_credentials.is_some()
        || member.denied.is_some()
        || member.queue.breaker_open
        || !member.complaints.is_empty()
        || member.flavour.is_some_and(|flavour| flavour != "Superset")
}

fn head(html: &mut Html) {
    html.raw(
        "<table class=members><thead><tr><th scope=col>Member</th><th scope=col>State</th><th scope=col>Last contact</th>\
         <th scope=col>Exports</th><th scope=col>Imports</th><th scope=col>Waiting writes</th></tr></thead><tbody>",
    );
}

fn row(html: &mut Html, member: &MemberView) {
    html.raw("<tr><th scope=row>");
    html.text(member.name.as_str());
    html.raw("<small>");
    html.text(clipped(&member.source, MAX_MESSAGE));
    html.raw("</small></th><td data-of=state><i class=");
    html.raw(match (member.active.reason, member.active.status) {
        ("Active", _) => "i",
        ("Connecting", _) | (_, true) => "w",
        (_, false) => "h",
    });
    html.raw(" aria-hidden=true></i> ");
    reason_link(html, member.active.reason);
    notes(html, member);
    html.raw("</td><td data-of=\"last contact\">");
    if member.up {
        html.raw("now");
    } else {
        html.text(&ago(member.silent.as_secs()));
    }
    let counts = member.counts;
    html.raw("</td><td data-of=exports>");
    html.text(&format!(
        "{} of {} pools",
        counts.exported_pools, counts.pools
    ));
    html.raw("</td><td data-of=imports>");
    html.text(&counts.imports.to_string());
    let late = counts.entries_not_ready + counts.entries_unknown;
    if late > 0 {
        html.raw("<small>");
        html.text(&format!(
            "{late} of {} entries not ready",
            late + counts.entries_ready
        ));
        html.raw("</small>");
    }
    let queue = member.queue;
    html.raw("</td><td data-of=\"waiting writes\">");
    html.text(&queue.keys.to_string());
    if queue.keys > 0 {
        html.raw("<small>");
        html.text(&format!(
            "oldest {}, {} of {} in flight",
            ago(queue.oldest.as_secs()),
            queue.in_flight,
            queue.limit
        ));
        html.raw("</small>");
    }
    html.raw("</td></tr>");
}

/// Why it is not active, and what else is to be known of it.
fn notes(html: &mut Html, member: &MemberView) {
    let mut note = |about: &'static str, text: &str| {
        html.raw("<small>");
        html.raw(about);
        html.text(clipped(text, MAX_MESSAGE));
        html.raw("</small>");
    };
    let complaints = (!member.complaints.is_empty()).then(|| member.complaints.join("; "));
    if member.active.reason != "Active" {
        note("", &member.explanation());
    }
    if member.queue.breaker_open {
        note("", "no write gets through: one is tried at a time");
    }
    let notes = [
        (
            "kinds that are not kept in full: ",
            member.over_limit.as_deref(),
        ),
        (
            "the newest credentials are not used: ",
            member.unusable_credentials.as_deref(),
        ),
        ("missing rights: ", member.denied.as_deref()),
        ("its object at home: ", complaints.as_deref()),
        ("its profile: ", member.hint.as_deref()),
        (
            "its import CRD: ",
            member.flavour.filter(|flavour| *flavour != "Superset"),
        ),
    ];
    for (about, text) in notes {
        if let Some(text) = text {
            note(about, text);
        }
    }
}

/// A duration in its largest unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
