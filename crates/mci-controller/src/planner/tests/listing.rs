use super::*;
use crate::grid::{Filter, PAGE_SIZE};

fn names(listing: &crate::grid::Listing) -> Vec<String> {
    listing.keys.iter().map(ToString::to_string).collect()
}

/// `a` exports these; `b` has imports of none yet.
fn mk_bench(pools: &[String]) -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    let pools = pools.iter().map(|name| mk_pool(name, Some("ClusterSet")));
    bench.connect("a", pools.collect(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.planner.tick(at(0));
    while {
        bench.planner.publish(at(0), wall());
        bench.planner.is_behind()
    } {}
    bench
}

#[test]
fn pools_are_listed_by_name_a_page_at_a_time() {
    let pools: Vec<String> = (0..PAGE_SIZE * 2 + 3)
        .map(|n| format!("llm-{n:02}"))
        .collect();
    let bench = mk_bench(&pools);
    let ask = |page| {
        bench.planner.list(&Filter {
            page,
            ..Filter::default()
        })
    };
    let mut all = Vec::new();
    for page in 1..=3 {
        let listing = ask(page);
        assert_eq!(
            (listing.page, listing.pages, listing.total),
            (page, 3, pools.len())
        );
        all.extend(names(&listing));
    }
    let expected: Vec<String> = pools.iter().map(|name| format!("{NS}/{name}")).collect();
    assert_eq!(all, expected);
    assert_eq!(
        (ask(0).page, ask(9).page),
        (1, 3),
        "what is out of range is the nearest"
    );
}

#[test]
fn a_filter_lets_through_what_contains_it() {
    let bench = mk_bench(&["llama".to_owned(), "qwen".to_owned()]);
    let filter = |text: &str| Filter {
        text: text.to_owned(),
        ..Filter::default()
    };
    let listing = bench.planner.list(&filter("l/qw"));
    assert_eq!(
        (names(&listing), listing.matching, listing.total),
        (vec![format!("{NS}/qwen")], 1, 2)
    );
    let listing = bench.planner.list(&filter("other"));
    assert_eq!((names(&listing).len(), listing.pages), (0, 1));
}

#[test]
fn an_export_that_is_not_everywhere_yet_has_a_hole() {
    let bench = mk_bench(&["llm".to_owned()]);
    let only = Filter {
        only_holes: true,
        ..Filter::default()
    };
    let listing = bench.planner.list(&only);
    assert_eq!(
        (names(&listing), listing.with_holes),
        (vec![format!("{NS}/llm")], 1)
    );
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
    let listing = bench.planner.list(&only);
    assert_eq!(
        (names(&listing), listing.with_holes, listing.total),
        (Vec::new(), 0, 1)
    );
}
