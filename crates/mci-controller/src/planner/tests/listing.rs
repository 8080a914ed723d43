use std::pin::pin;

use futures::FutureExt;

use super::*;
use crate::{
    grid::{Filter, Listing},
    planner::kept::names_holes,
};

impl Planner {
    /// The first page.
    fn list(&self, only_holes: bool) -> Listing {
        let filter = Filter {
            only_holes,
            ..Filter::default()
        };
        let mut listing = pin!(self.directory.list(&filter));
        loop {
            if let Some(listing) = listing.as_mut().now_or_never() {
                return listing;
            }
        }
    }

    /// What is listed is what a recount of all plans says, and what waits to be planned again.
    pub(super) fn check_listed(&self) {
        let (all, only) = (self.list(false), self.list(true));
        assert_eq!(
            (all.total, all.with_holes),
            (all.keys.len(), only.keys.len())
        );
        for key in &all.keys {
            let is_known = self.plans.contains_key(key) || self.backlog.contains(key);
            assert!(is_known, "{key} is listed");
        }
        for (key, kept) in &self.plans {
            assert!(all.keys.contains(key), "{key} is not listed");
            let has_holes = names_holes(kept.plan()) || !kept.standings.none();
            assert_eq!(only.keys.contains(key), has_holes, "{key}");
        }
    }
}

#[test]
fn an_export_that_is_not_everywhere_yet_has_a_hole() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    let listing = bench.planner.list(true);
    assert_eq!((listing.keys, listing.with_holes), (vec![mk_key("llm")], 1));
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let mut bench = Bench::new(&["a", "b"]);
    for name in ["a", "b"] {
        bench.connect(name, Vec::new(), Vec::new());
    }
    bench.planner.world = world;
    bench.planner.plan_afresh();
    bench.plan(at(1_000));
    let listing = bench.planner.list(true);
    assert_eq!(
        (listing.keys, listing.with_holes, listing.total),
        (vec![], 0, 1)
    );
}

/// All are planned again now and then: what is shown meanwhile is no less.
#[test]
fn keys_that_wait_to_be_planned_again_are_listed_as_they_were() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let pools = mk_many();
    let all = pools.len();
    bench.connect("a", pools, Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    bench.plan(at(0));
    bench.planner.publish(at(0), wall());
    bench.planner.plan_afresh();
    bench.planner.publish(at(1_000), wall());
    assert!(bench.planner.plans.len() < all);
    let listing = bench.planner.list(true);
    assert_eq!((listing.total, listing.with_holes), (all, all));
}

/// As after the only member that exported it is gone.
#[test]
fn a_key_that_nothing_is_known_of_is_listed_no_more() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert_eq!(bench.planner.list(false).total, 1);
    bench.planner.world = mk_world(&["a", "b"]);
    bench.planner.plan_afresh();
    bench.planner.publish(at(1_000), wall());
    let listing = bench.planner.list(false);
    assert_eq!((listing.total, listing.with_holes), (0, 0));
}
