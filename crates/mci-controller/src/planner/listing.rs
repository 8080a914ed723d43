//! Which keys there are, a page at a time, for people.

use crd::conditions;

use super::{Planner, kept::Kept};
use crate::{
    grid::{Filter, Listing, PAGE_SIZE},
    name::Key,
    plan::{ImportPlan, PoolPlan},
};

// === impl Planner ===

impl Planner {
    /// The keys that are planned, or wait for it. One pass over them, and over the imports of each: some 10 ms for 100
    /// members with 2000 exported pools each.
    pub(crate) fn list(&self, filter: &Filter) -> Listing {
        let mut listing = Listing::default();
        let mut matching: Vec<&Key> = Vec::new();
        let waiting = self.backlog.keys().map(|key| (key, None));
        let waiting = waiting.filter(|(key, _)| !self.plans.contains_key(key));
        let planned = self.plans.iter().map(|(key, kept)| (key, Some(kept)));
        for (key, kept) in planned.chain(waiting) {
            let has_holes = kept.is_some_and(has_holes);
            listing.total += 1;
            listing.with_holes += usize::from(has_holes);
            if (has_holes || !filter.only_holes) && holds(key, &filter.text) {
                matching.push(key);
            }
        }
        listing.matching = matching.len();
        listing.pages = matching.len().div_ceil(PAGE_SIZE).max(1);
        listing.page = filter.page.clamp(1, listing.pages);
        let by_name = |one: &&Key, other: &&Key| one.text().cmp(&other.text());
        let start = (listing.page - 1) * PAGE_SIZE;
        // what is before the page need not be sorted
        if start > 0 && start < matching.len() {
            matching.select_nth_unstable_by(start, by_name);
        }
        let mut rest = matching.split_off(start.min(matching.len()));
        if rest.len() > PAGE_SIZE {
            rest.select_nth_unstable_by(PAGE_SIZE, by_name);
            rest.truncate(PAGE_SIZE);
        }
        rest.sort_unstable_by(by_name);
        listing.keys = rest.into_iter().cloned().collect();
        listing
    }
}

/// Whether `namespace/name` contains the text.
fn holds(key: &Key, text: &str) -> bool {
    text.is_empty() || key.to_string().contains(text)
}

/// Whether some exporter is not ready, or some importer not as planned.
fn has_holes(kept: &Kept) -> bool {
    let is_true = |one: &crd::Condition| one.status == "True";
    let incomplete = kept.plan.pools.values().any(|pool| match pool {
        PoolPlan::NoEntry => false,
        PoolPlan::Exported { condition, .. } => !is_true(condition),
    });
    let mut last = None;
    incomplete
        || !kept.standings.none()
        || kept.plan.imports.values().any(|import| {
            let ImportPlan::Present(planned) = import else {
                return false;
            };
            // most members share one plan
            let address = std::sync::Arc::as_ptr(planned);
            if last.replace(address) == Some(address) {
                return false;
            }
            planned.status.clusters.iter().any(|entry| {
                [conditions::READY, conditions::REACHABLE]
                    .into_iter()
                    .filter_map(|type_| conditions::find(&entry.conditions, type_))
                    .any(|condition| !is_true(condition))
            })
        })
}
