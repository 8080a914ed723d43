//! The page as HTML. Pure.
//!
//! Names and messages come from members, which may be hostile: [`Html`] writes literals as they are and everything else
//! escaped, and there is no third way.

use std::{borrow::Cow, collections::BTreeSet, fmt::Write};

use super::{
    DocsUrl, Filter, Listing, MAX_CLUSTERS,
    cells::{Cell, Mark, Role, cells},
    reasons::known,
};
use crate::{
    explain::Explanation,
    overview::{MemberView, Overview},
    text::{MAX_MESSAGE, clipped},
};

mod members;

/// What a page shows.
pub(super) struct View<'a> {
    pub(super) overview: &'a Overview,
    pub(super) listing: &'a Listing,
    /// In the listing's order; those that are gone are left out.
    pub(super) rows: &'a [Explanation],
    /// Whether all rows came in time.
    pub(super) is_whole: bool,
    pub(super) filter: &'a Filter,
    /// Part of the names of the clusters to show; empty: all.
    pub(super) clusters: &'a str,
    pub(super) docs: Option<&'a DocsUrl>,
    /// Of this answer alone: style and script bear it, and nothing else does.
    pub(super) nonce: &'a str,
}

/// HTML that is being written.
#[derive(Debug, Default)]
struct Html(String);

const TEMPLATE: &str = include_str!("page.html");
/// More clusters than these do not fit a table with a column each.
const MAX_COLUMNS: usize = 8;
/// Names in a list of clusters; the others are counted.
const MAX_NAMED: usize = 8;

/// Longest reason that is shown, in characters: ours are shorter.
const MAX_REASON: usize = 64;

/// The whole page.
pub(super) fn page(view: &View<'_>) -> String {
    let mut html = Html::default();
    let mut rest = TEMPLATE;
    // one pass: what is put in is never read as a place
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after.split_once("}}").unwrap_or((after, ""));
        html.raw(before);
        match place {
            "nonce" => html.text(view.nonce),
            "pool" => html.text(&view.filter.text),
            "clusters" => html.text(view.clusters),
            "checked" if view.filter.only_holes => html.raw("checked"),
            "version" => html.raw(env!("CARGO_PKG_VERSION")),
            "live" => live(&mut html, view),
            _ => {}
        }
        rest = after;
    }
    html.raw(rest);
    html.0
}

/// The part that the script replaces.
fn live(html: &mut Html, view: &View<'_>) {
    let overview = view.overview;
    let shown: Vec<&MemberView> = overview
        .clusters
        .iter()
        .filter(|member| member.name.as_str().contains(view.clusters))
        .take(MAX_CLUSTERS)
        .collect();
    let mut used = BTreeSet::new();
    banners(html, view);
    tiles(html, view);
    html.raw("<section aria-labelledby=pools><h2 id=pools>Pools</h2>");
    pools(html, view, &shown, &mut used);
    html.raw("</section>");
    members::section(html, view, &shown, &mut used);
    glossary(html, view, &used);
}

/// What holds of the whole controller and explains what does not happen.
fn banners(html: &mut Html, view: &View<'_>) {
    let overview = view.overview;
    let mut banner = |text: &'static str, anchor: &'static str| {
        html.raw("<p class=banner>");
        html.raw(text);
        html.raw(" ");
        heading(html, view.docs, "runbook", anchor);
        html.raw("</p>");
    };
    if !overview.gate_open {
        banner(
            "Nothing is planned or written yet: not every member is synced, and --initial-sync-timeout is not over. Pools \
             appear then.",
            "how-to-look",
        );
    }
    if overview.guard {
        banner(
            "Isolation guard: more than half of the members were lost at once, so withdrawals are held.",
            "mciisolationguard",
        );
    }
    if !view.is_whole {
        banner(
            "The controller is busy: some pools of this page are not shown.",
            "how-to-look",
        );
    }
    let mut trace = view.rows.iter().flat_map(|row| &row.trace);
    if trace.any(|rule| rule.rule == "dry-run") {
        banner("Dry run: writes are logged, not sent.", "how-to-look");
    }
}

fn tiles(html: &mut Html, view: &View<'_>) {
    let overview = view.overview;
    let up = overview.clusters.iter().filter(|one| one.up).count();
    let ill = overview
        .clusters
        .iter()
        .filter(|one| members::has_problem(one));
    let ill = ill.count() + overview.unused.len();
    html.raw("<dl class=tiles>");
    let mut tile = |name: &'static str, value: String, is_bad: bool| {
        html.raw(if is_bad {
            "<div class=bad><dt>"
        } else {
            "<div><dt>"
        });
        html.raw(name);
        html.raw("</dt><dd>");
        html.text(&value);
        html.raw("</dd></div>");
    };
    let role = if overview.leader {
        "leads"
    } else {
        "stands by"
    };
    tile("this controller", role.to_owned(), false);
    let members = overview.clusters.len();
    tile(
        "members in contact",
        format!("{up} of {members}"),
        up < members,
    );
    tile("members with a problem", ill.to_string(), ill > 0);
    tile("exported pools", view.listing.total.to_string(), false);
    let holes = view.listing.with_holes;
    tile("pools with holes", holes.to_string(), holes > 0);
    let conflicts = overview.conflicts;
    tile("conflicts", conflicts.to_string(), conflicts > 0);
    html.raw("</dl>");
}

fn pools<'a>(
    html: &mut Html,
    view: &'a View<'_>,
    shown: &[&MemberView],
    used: &mut BTreeSet<Cow<'a, str>>,
) {
    let members = &view.overview.clusters;
    let matching = members
        .iter()
        .filter(|one| one.name.as_str().contains(view.clusters));
    let matching = matching.count();
    if shown.len() < members.len() {
        html.raw("<p class=muted>");
        html.text(&format!(
            "{} of {} clusters are shown, {matching} match; at most {MAX_CLUSTERS} are. Filter by name to see others.",
            shown.len(),
            members.len()
        ));
        html.raw("</p>");
    }
    if view.rows.is_empty() {
        html.raw("<p class=empty>");
        html.raw(if view.listing.total == 0 {
            "No pool is exported yet. To export one: <code>kubectl annotate inferencepool NAME \
             inference.networking.x-k8s.io/export=ClusterSet</code>, or <code>kubectl mci export NAME</code>."
        } else {
            "No pool matches the filter."
        });
        html.raw("</p>");
        return;
    }
    legend(html);
    let columns = shown.len() <= MAX_COLUMNS;
    html.raw(if columns {
        "<table class=grid><thead><tr><th scope=col>Pool</th>"
    } else {
        "<table class=\"grid dense\"><thead><tr><th scope=col>Pool</th>"
    });
    if columns {
        for member in shown {
            html.raw("<th scope=col>");
            html.text(member.name.as_str());
            html.raw("</th>");
        }
    } else {
        html.raw("<th scope=col>Clusters, by name</th>");
    }
    html.raw("</tr></thead><tbody>");
    for row in view.rows {
        html.raw("<tr><th scope=row>");
        title(html, row);
        html.raw("</th>");
        let names = shown.iter().map(|member| member.name.as_str());
        let cells = cells(row, names);
        used.extend(
            cells
                .iter()
                .filter_map(|cell| cell.reason.clone())
                .map(Cow::Owned),
        );
        if columns {
            for (member, cell) in shown.iter().zip(&cells) {
                column(html, member, cell);
            }
        } else {
            html.raw("<td>");
            strip(html, shown, &cells);
            html.raw("</td>");
        }
        html.raw("</tr>");
    }
    html.raw("</tbody></table>");
    pager(html, view);
}

fn legend(html: &mut Html) {
    html.raw("<p class=legend>");
    for (role, mark, text) in [
        (Role::Exports, Mark::Whole, "exports it"),
        (Role::Imports, Mark::Whole, "imports it"),
        (Role::Imports, Mark::Waiting, "on its way, or as last seen"),
        (Role::Imports, Mark::Hole, "a hole"),
        (Role::None, Mark::Absent, "nothing, as it should be"),
    ] {
        html.raw("<span><i class=");
        html.raw(class(role, mark));
        html.raw(" aria-hidden=true></i> ");
        html.raw(text);
        html.raw("</span> ");
    }
    html.raw("</p>");
}

/// The pool's name and what its exporters' conditions say.
fn title(html: &mut Html, row: &Explanation) {
    html.raw("<a href=\"debug/explain/");
    html.text(&row.key);
    html.raw("\">");
    match row.key.split_once('/') {
        Some((namespace, name)) => {
            html.raw("<span class=muted>");
            html.text(namespace);
            html.raw("/</span><wbr>");
            html.text(name);
        }
        None => html.text(&row.key),
    }
    html.raw("</a>");
    let exported = row.exporters.iter();
    let mut exported = exported.filter_map(|one| Some((one, one.exported.as_ref()?)));
    for (exporter, exported) in exported.by_ref().take(MAX_NAMED) {
        html.raw("<small>");
        html.text(&exporter.cluster);
        html.raw(": ");
        html.text(clipped(&exported.message, MAX_MESSAGE));
        html.raw("</small>");
    }
    let others = exported.count();
    if others > 0 {
        html.raw("<small>");
        more(html, others);
        html.raw("</small>");
    }
}

fn column(html: &mut Html, member: &MemberView, cell: &Cell) {
    html.raw("<td data-cluster=\"");
    html.text(member.name.as_str());
    html.raw("\"><i class=");
    html.raw(class(cell.role, cell.mark));
    html.raw(" aria-hidden=true></i> ");
    html.raw(role(cell.role));
    if let Some(reason) = &cell.reason {
        html.raw("<br>");
        reason_link(html, reason);
    }
    if let Some(note) = &cell.note {
        html.raw("<small>");
        html.text(clipped(note, MAX_MESSAGE));
        html.raw("</small>");
    }
    html.raw("</td>");
}

/// A square for each cluster, and in words what is not whole.
fn strip(html: &mut Html, shown: &[&MemberView], cells: &[Cell]) {
    html.raw("<div class=strip aria-hidden=true>");
    let mut groups: Vec<(&Cell, Vec<&str>)> = Vec::new();
    let mut exporting = Vec::new();
    let mut importing = 0_usize;
    for (member, cell) in shown.iter().zip(cells) {
        let name = member.name.as_str();
        html.raw("<i class=");
        html.raw(class(cell.role, cell.mark));
        html.raw(" title=\"");
        html.text(name);
        html.raw(": ");
        let reason = cell.reason.as_deref().unwrap_or(role(cell.role));
        html.text(clipped(reason, MAX_REASON));
        html.raw("\"></i>");
        match (cell.role, cell.mark) {
            (Role::Exports, _) => exporting.push(name),
            (Role::Imports, Mark::Whole) => importing += 1,
            _ => {}
        }
        if cell.reason.is_some() {
            let same = |(of, _): &&mut (&Cell, Vec<&str>)| {
                of.reason == cell.reason && of.mark == cell.mark && of.note == cell.note
            };
            match groups.iter_mut().find(same) {
                Some((_, names)) => names.push(name),
                None => groups.push((cell, vec![name])),
            }
        }
    }
    html.raw("</div><ul class=words><li>exported by ");
    names(html, &exporting);
    html.text(&format!(", imported in {importing}"));
    html.raw("</li>");
    groups.sort_by_key(|(cell, _)| std::cmp::Reverse(cell.mark));
    for (cell, of) in groups {
        html.raw("<li><i class=");
        html.raw(class(cell.role, cell.mark));
        html.raw(" aria-hidden=true></i> ");
        reason_link(html, cell.reason.as_deref().unwrap_or_default());
        html.raw(": ");
        names(html, &of);
        if let Some(note) = &cell.note {
            html.raw(" <small>");
            html.text(clipped(note, MAX_MESSAGE));
            html.raw("</small>");
        }
        html.raw("</li>");
    }
    html.raw("</ul>");
}

/// Names, joined by commas; past some they are counted.
fn names(html: &mut Html, names: &[&str]) {
    if names.is_empty() {
        html.raw("none");
    }
    for (at, name) in names.iter().take(MAX_NAMED).enumerate() {
        html.raw(if at == 0 { "" } else { ", " });
        html.text(name);
    }
    more(html, names.len().saturating_sub(MAX_NAMED));
}

fn more(html: &mut Html, count: usize) {
    if count > 0 {
        html.text(&format!(" +{count} more"));
    }
}

fn pager(html: &mut Html, view: &View<'_>) {
    let Listing {
        page,
        pages,
        matching,
        ..
    } = *view.listing;
    if pages < 2 {
        return;
    }
    html.raw("<nav class=pager aria-label=Pages>");
    let mut link = |to: usize, text: &'static str| {
        html.raw("<a href=\"");
        html.text(&query(view, to));
        html.raw("\">");
        html.raw(text);
        html.raw("</a> ");
    };
    if page > 1 {
        link(page - 1, "← previous");
    }
    if page < pages {
        link(page + 1, "next →");
    }
    html.text(&format!("page {page} of {pages}, {matching} pools"));
    html.raw("</nav>");
}

/// The same view of another page.
fn query(view: &View<'_>, page: usize) -> String {
    let mut query = form_urlencoded::Serializer::for_suffix("?".to_owned(), 1);
    if !view.filter.text.is_empty() {
        query.append_pair("pool", &view.filter.text);
    }
    if !view.clusters.is_empty() {
        query.append_pair("cluster", view.clusters);
    }
    if view.filter.only_holes {
        query.append_pair("only", "holes");
    }
    query.append_pair("page", &page.to_string());
    query.finish()
}

/// What the reasons on this page mean.
fn glossary(html: &mut Html, view: &View<'_>, used: &BTreeSet<Cow<'_, str>>) {
    let mut known = used.iter().filter_map(|reason| known(reason)).peekable();
    if known.peek().is_none() {
        return;
    }
    html.raw("<section aria-labelledby=reasons><h2 id=reasons>Reasons</h2><dl class=glossary>");
    for reason in known {
        html.raw("<dt id=\"reason-");
        html.raw(reason.name);
        html.raw("\">");
        html.raw(reason.name);
        html.raw("</dt><dd>");
        html.raw(reason.meaning);
        html.raw(" ");
        heading(html, view.docs, reason.page, reason.anchor);
        html.raw("</dd>");
    }
    html.raw("</dl></section>");
}

/// Where the documentation has more: a link, if it is published.
fn heading(html: &mut Html, docs: Option<&DocsUrl>, page: &'static str, anchor: &'static str) {
    if let Some(docs) = docs {
        html.raw("<a rel=noreferrer href=\"");
        html.text(&docs.heading(page, anchor));
        html.raw("\">");
    }
    html.raw("<code>docs/");
    html.raw(page);
    html.raw(".md#");
    html.raw(anchor);
    html.raw("</code>");
    if docs.is_some() {
        html.raw("</a>");
    }
}

/// A reason, with a link to its explanation below if there is one.
fn reason_link(html: &mut Html, reason: &str) {
    match known(reason) {
        Some(reason) => {
            html.raw("<a href=\"#reason-");
            html.raw(reason.name);
            html.raw("\">");
            html.raw(reason.name);
            html.raw("</a>");
        }
        None => html.text(clipped(reason, MAX_REASON)),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::None => "",
        Role::Imports => "imports",
        Role::Exports => "exports",
    }
}

fn class(role: Role, mark: Mark) -> &'static str {
    match (mark, role) {
        (Mark::Absent, _) => "a",
        (Mark::Whole, Role::Exports) => "e",
        (Mark::Whole, _) => "i",
        (Mark::Waiting, _) => "w",
        (Mark::Hole, _) => "h",
    }
}

// === impl Html ===

impl Html {
    /// A literal.
    fn raw(&mut self, literal: &'static str) {
        self.0.push_str(literal);
    }

    /// Anything else: it is never read as HTML, inside of quotes or outside, and does not turn the text around it.
    fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' | '<' | '>' | '"' | '\'' | '`' | '=' => {
                    // writing to a String cannot fail
                    let _ = write!(self.0, "&#{};", u32::from(c));
                }
                // direction and invisible characters: a name could look like another
                '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}' => {
                    self.0.push('\u{fffd}');
                }
                c if c.is_control() => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
    }
}
