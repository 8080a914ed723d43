use std::time::Duration;

use super::*;
use crate::fixture::key;
use crate::select::policy::{MetricsRule, OrderRule, Strategy};

const READY: Entry = Entry {
    is_local: false,
    fails_open: false,
    standing: Standing::Ready,
    unscraped: None,
};

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn mk_policy(strategy: Strategy) -> Policy {
    Policy {
        strategy,
        ..Policy::default()
    }
}

fn mk_ordered() -> Policy {
    mk_policy(Strategy::ActivePassive(OrderRule {
        order: vec!["east".to_owned(), "south".to_owned()],
        failback: Duration::from_secs(30),
    }))
}

fn mk_metrics() -> Policy {
    mk_policy(Strategy::MetricsBased(MetricsRule::default()))
}

/// One import with these clusters.
fn sync(selector: &mut Selector, policy: &Policy, clusters: &[(&str, Entry)]) {
    let named = clusters
        .iter()
        .map(|(name, entry)| ((*name).to_owned(), *entry));
    sync_named(selector, policy, named.collect());
}

fn sync_named(selector: &mut Selector, policy: &Policy, clusters: BTreeMap<String, Entry>) -> bool {
    selector.sync(Wanted::from([(key("llm"), (policy.clone(), clusters))]))
}

fn mk(policy: &Policy, names: &[&str]) -> Selector {
    let mut selector = Selector::default();
    let clusters: Vec<_> = names.iter().map(|name| (*name, READY)).collect();
    sync(&mut selector, policy, &clusters);
    selector.advance(at(0));
    selector
}

fn id(cluster: &str) -> ClusterId {
    ClusterId {
        import: key("llm"),
        cluster: cluster.to_owned(),
    }
}

fn probe(selector: &mut Selector, cluster: &str, succeeded: bool, now: Moment) -> bool {
    let cluster = id(cluster);
    let result = if succeeded {
        Ok(())
    } else {
        Err("no connection")
    };
    selector.record(Fact::Probed { cluster, result }, now)
}

fn scrape(selector: &mut Selector, cluster: &str, ready: f64, queue: f64, now: Moment) {
    let load = PoolLoad {
        ready,
        queue,
        kv: 0.0,
    };
    let cluster = id(cluster);
    selector.record(
        Fact::Scraped {
            cluster,
            result: Ok(load),
        },
        now,
    );
}

/// `east 500, south! 0`: shares by cluster, `!` unhealthy, `~` draining, a number behind `@` the priority above 0.
fn shown(selector: &Selector) -> String {
    let selection = selector.selection();
    let names = ["east", "north", "south"].iter();
    let texts = names.filter_map(|name| {
        let Assigned {
            weight,
            priority,
            health,
        } = selection.of(&key("llm"), name)?;
        let mark = match health {
            Health::Healthy => "",
            Health::Unhealthy => "!",
            Health::Draining => "~",
        };
        let rank = match priority {
            0 => String::new(),
            priority => format!("@{priority}"),
        };
        Some(format!("{name}{mark} {weight}{rank}"))
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[test]
fn dead_cluster_gets_nothing_after_two_probes_and_is_back_after_two_more() {
    let mut selector = mk(&Policy::default(), &["east", "south"]);
    assert_eq!(shown(&selector), "east 500, south 500");
    assert!(!probe(&mut selector, "south", false, at(1)));
    assert!(probe(&mut selector, "south", false, at(2)));
    assert_eq!(shown(&selector), "east 1000, south! 0");
    assert!(!probe(&mut selector, "south", true, at(3)));
    assert!(probe(&mut selector, "south", true, at(4)));
    assert_eq!(shown(&selector), "east 500, south 500");
}

#[test]
fn clusters_that_are_not_ready_or_drain_get_nothing_and_are_no_last_resort() {
    let mut selector = mk(&Policy::default(), &["east", "north", "south"]);
    let entry = |standing| Entry { standing, ..READY };
    let clusters = [
        ("east", READY),
        ("north", entry(Standing::NotReady)),
        ("south", entry(Standing::Draining)),
    ];
    sync(&mut selector, &Policy::default(), &clusters);
    assert!(selector.advance(at(1)));
    let expected = "east 1000, north! 0, south~ 0";
    assert_eq!(shown(&selector), expected);
    for second in 2..4 {
        probe(&mut selector, "east", false, at(second));
    }
    assert_eq!(shown(&selector), expected);
}

#[test]
fn health_is_kept_over_changes_of_the_import_and_forgotten_without_a_choice() {
    let mut selector = mk(&Policy::default(), &["east", "south"]);
    for second in 1..3 {
        probe(&mut selector, "south", false, at(second));
    }
    let three = [("east", READY), ("north", READY), ("south", READY)];
    sync(&mut selector, &Policy::default(), &three);
    selector.advance(at(3));
    assert_eq!(shown(&selector), "east 500, north 500, south! 0");
    sync(&mut selector, &Policy::default(), &three[2..]);
    selector.advance(at(4));
    let shown = selector.show(at(4));
    assert_eq!(shown["ns/llm"]["clusters"]["south"]["healthy"], true);
    selector.sync(Wanted::new());
    assert!(!probe(&mut selector, "south", false, at(5)));
}

#[test]
fn requests_fail_over_at_once_and_return_after_the_failback_time() {
    let mut selector = mk(&mk_ordered(), &["east", "south"]);
    assert_eq!(shown(&selector), "east 1000, south 1000@1");
    for second in 1..3 {
        probe(&mut selector, "east", false, at(second));
    }
    assert_eq!(shown(&selector), "east! 0@1, south 1000");
    for second in 3..5 {
        probe(&mut selector, "east", true, at(second));
    }
    let waiting = "east 1000@1, south 1000";
    assert_eq!(shown(&selector), waiting);
    assert!(!selector.advance(at(33)));
    assert_eq!(shown(&selector), waiting);
    assert!(selector.advance(at(34)));
    assert_eq!(shown(&selector), "east 1000, south 1000@1");
}

#[test]
fn a_flap_while_requests_wait_to_return_begins_the_failback_time_again() {
    let mut selector = mk(&mk_ordered(), &["east", "south"]);
    for (second, succeeded) in [
        (1, false),
        (2, false),
        (3, true),
        (4, true),
        (20, false),
        (21, false),
        (22, true),
        (23, true),
    ] {
        probe(&mut selector, "east", succeeded, at(second));
    }
    selector.advance(at(52));
    assert_eq!(shown(&selector), "east 1000@1, south 1000");
    selector.advance(at(53));
    assert_eq!(shown(&selector), "east 1000, south 1000@1");
}

/// After all were down, the first that is back serves until another has been healthy for long enough.
#[test]
fn requests_stay_where_they_are_while_another_cluster_flaps() {
    let mut selector = mk(&mk_ordered(), &["east", "south"]);
    for cluster in ["east", "south"] {
        for second in 1..3 {
            probe(&mut selector, cluster, false, at(second));
        }
    }
    let steps = [
        ("south", true, 10),
        ("east", true, 11),
        ("east", false, 20),
        ("east", true, 30),
    ];
    for (cluster, succeeded, second) in steps {
        for _ in 0..2 {
            probe(&mut selector, cluster, succeeded, at(second));
        }
        let shares = shown(&selector);
        assert!(shares.ends_with("south 1000"), "at {second} s: {shares}");
    }
    selector.advance(at(59));
    assert_eq!(shown(&selector), "east 1000@1, south 1000");
    selector.advance(at(60));
    assert_eq!(shown(&selector), "east 1000, south 1000@1");
}

#[test]
fn cluster_that_is_ready_or_there_again_waits_as_well() {
    let waiting = Entry {
        standing: Standing::NotReady,
        ..READY
    };
    let south = ("south", READY);
    for meanwhile in [vec![("east", waiting), south], vec![south]] {
        let mut selector = mk(&mk_ordered(), &["east", "south"]);
        assert_eq!(shown(&selector), "east 1000, south 1000@1");
        sync(&mut selector, &mk_ordered(), &meanwhile);
        selector.advance(at(1));
        sync(&mut selector, &mk_ordered(), &[("east", READY), south]);
        selector.advance(at(2));
        assert_eq!(shown(&selector), "east 1000@1, south 1000");
        selector.advance(at(31));
        assert_eq!(shown(&selector), "east 1000@1, south 1000");
        selector.advance(at(32));
        assert_eq!(shown(&selector), "east 1000, south 1000@1");
    }
}

#[test]
fn growing_queue_takes_a_clusters_share_within_ten_seconds() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    assert_eq!(shown(&selector), "east 500, south 500");
    let mut published = 0;
    scrape(&mut selector, "east", 4.0, 0.0, at(0));
    scrape(&mut selector, "south", 4.0, 0.0, at(0));
    selector.advance(at(0));
    for second in 1..=10 {
        scrape(&mut selector, "east", 4.0, 0.0, at(second));
        // Score 4 against 0.4: nine parts of ten go to the first in the end.
        scrape(&mut selector, "south", 4.0, 45.0, at(second));
        published += u32::from(selector.advance(at(second)));
    }
    let selection = selector.selection();
    let share = selection.of(&key("llm"), "south").unwrap().weight;
    assert!((190..250).contains(&share), "{share}");
    assert!((3..10).contains(&published), "{published}");
}

/// A gateway that begins knows no metrics yet.
#[test]
fn first_metrics_are_taken_as_they_are_and_later_ones_slowly() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    scrape(&mut selector, "east", 1.0, 0.0, at(1));
    selector.advance(at(1));
    assert_eq!(shown(&selector), "east 500, south 500");
    scrape(&mut selector, "south", 19.0, 0.0, at(2));
    assert!(selector.advance(at(2)));
    assert_eq!(shown(&selector), "east 50, south 950");
    scrape(&mut selector, "east", 19.0, 0.0, at(3));
    selector.advance(at(3));
    let shares = shown(&selector);
    assert!(shares.starts_with("east 1"), "{shares}");
}

#[test]
fn metrics_that_come_too_late_for_a_start_are_followed_slowly() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    selector.advance(at(5));
    scrape(&mut selector, "east", 1.0, 0.0, at(6));
    scrape(&mut selector, "south", 19.0, 0.0, at(6));
    selector.advance(at(6));
    let shares = shown(&selector);
    assert!(shares.starts_with("east 4"), "{shares}");
}

#[test]
fn old_metrics_are_not_used() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    for second in 1..60 {
        scrape(&mut selector, "east", 8.0, 0.0, at(second));
        if second < 30 {
            scrape(&mut selector, "south", 2.0, 0.0, at(second));
        }
        selector.advance(at(second));
        if second == 29 {
            let shares = shown(&selector);
            assert_eq!(shares, "east 800, south 200");
        }
    }
    let selection = selector.selection();
    let share = selection.of(&key("llm"), "south").unwrap().weight;
    assert!(share >= 440, "counts as the mean of the others: {share}");
}

#[test]
fn cluster_that_is_healthy_again_begins_with_the_least_share() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    for second in 1..3 {
        probe(&mut selector, "south", false, at(second));
    }
    assert_eq!(shown(&selector), "east 1000, south! 0");
    for second in 10..12 {
        probe(&mut selector, "south", true, at(second));
    }
    let selection = selector.selection();
    let share = selection.of(&key("llm"), "south").unwrap().weight;
    assert!((20..150).contains(&share), "{share}");
    for second in 12..42 {
        selector.advance(at(second));
    }
    let selection = selector.selection();
    let share = selection.of(&key("llm"), "south").unwrap().weight;
    assert!((440..=500).contains(&share), "{share}");
}

#[test]
fn page_says_why_and_the_reasons_follow_the_state() {
    let mut selector = mk(&mk_ordered(), &["east", "south"]);
    let why = |selector: &Selector, now| {
        let shown = selector.show(now);
        let clusters = &shown["ns/llm"]["clusters"];
        ["east", "south"].map(|name| clusters[name]["why"].as_str().unwrap().to_owned())
    };
    let [east, south] = why(&selector, at(0));
    assert!(east.contains("first healthy"), "{east}");
    assert!(south.contains("before it"), "{south}");
    for second in 1..3 {
        probe(&mut selector, "east", false, at(second));
    }
    assert_eq!(why(&selector, at(2))[0], "its probes fail");
    for second in 3..5 {
        probe(&mut selector, "east", true, at(second));
    }
    let [east, _] = why(&selector, at(5));
    assert!(east.contains("failbackSeconds"), "{east}");
}

/// Status says it, and nothing else than a Secret or a Service may have changed.
#[test]
fn clusters_whose_metrics_are_not_read_any_more_are_a_change() {
    let mut selector = mk(&mk_metrics(), &["east", "south"]);
    let mut sync = |unscraped| {
        let south = Entry { unscraped, ..READY };
        let clusters = [("east".to_owned(), READY), ("south".to_owned(), south)];
        sync_named(&mut selector, &mk_metrics(), clusters.into())
    };
    assert!(!sync(None));
    assert!(sync(Some("it has no credential")));
    assert!(!sync(Some("it has no credential")));
    assert!(sync(None));
}
