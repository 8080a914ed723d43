use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::select::policy::{MetricsRule, Strategy};

const NOW: Moment = Moment::from_millis(100_000);

/// `name[+-][o][l]`: healthy or not, fails open, local. Without metrics.
fn mk(text: &str) -> Candidate<'_> {
    let at = text.find(['+', '-']).unwrap();
    let (name, flags) = text.split_at(at);
    Candidate {
        name,
        is_local: flags.contains('l'),
        fails_open: flags.contains('o'),
        healthy: flags.contains('+'),
        is_current: false,
        recovered: None,
        score: None,
    }
}

fn mk_all(texts: &str) -> Vec<Candidate<'_>> {
    texts.split_whitespace().map(mk).collect()
}

fn mk_ordered(order: &[&str]) -> Policy {
    Policy {
        strategy: Strategy::ActivePassive(OrderRule {
            order: order.iter().map(|&name| name.to_owned()).collect(),
            failback: Duration::from_secs(30),
        }),
        ..Policy::default()
    }
}

fn mk_metrics() -> Policy {
    Policy {
        strategy: Strategy::MetricsBased(MetricsRule::default()),
        ..Policy::default()
    }
}

/// Those that serve, by priority.
fn order(policy: &Policy, candidates: &[Candidate<'_>]) -> String {
    let targets = target(policy, candidates, NOW);
    let mut served: Vec<_> = candidates
        .iter()
        .zip(&targets)
        .filter(|(_, target)| target.serves)
        .map(|(one, target)| (target.priority, one.name))
        .collect();
    served.sort_unstable();
    let names: Vec<_> = served.iter().map(|(_, name)| *name).collect();
    names.join(" ")
}

#[rstest]
#[case::healthy_ones("a+ b- c+", "0.5 0 0.5")]
#[case::none_healthy_and_one_fails_open("a- b-o c-", "0 1 0")]
#[case::none_healthy("a- b-", "0.5 0.5")]
#[case::healthy_before_one_that_fails_open("a+ b-o", "1 0")]
#[case::nobody("", "")]
fn health_based_gives_equal_shares(#[case] candidates: &str, #[case] expected: &str) {
    let candidates = mk_all(candidates);
    for policy in [Policy::default(), mk_metrics()] {
        let targets = target(&policy, &candidates, NOW);
        let shares: Vec<_> = targets.iter().map(|one| one.share.to_string()).collect();
        assert_eq!(shares.join(" "), expected);
        let served: Vec<_> = targets.iter().map(|one| one.share > 0.0).collect();
        let serves: Vec<_> = targets.iter().map(|one| one.serves).collect();
        assert_eq!(served, serves);
    }
}

#[rstest]
#[case::by_name(&[], "b+ a+", "a b")]
#[case::the_local_one_before_unnamed_ones(&[], "a+ z+l", "z a")]
#[case::as_ordered(&["b", "gone", "a"], "a+ b+ z+l", "b a z")]
#[case::unhealthy_ones_do_not_serve(&["b", "a"], "a+ b- c+", "a c")]
#[case::none_healthy(&["b", "a"], "a- b- c-", "b a c")]
#[case::none_healthy_and_one_fails_open(&["b", "a"], "a- b- c-o", "c")]
fn active_passive_goes_by_the_order(
    #[case] names: &[&str],
    #[case] candidates: &str,
    #[case] expected: &str,
) {
    assert_eq!(order(&mk_ordered(names), &mk_all(candidates)), expected);
}

#[test]
fn requests_return_only_to_a_cluster_that_has_been_healthy_for_the_failback_time() {
    let policy = mk_ordered(&["a", "b"]);
    let mut candidates = mk_all("a+ b+ c+");
    let since = |seconds: u64| Some(Moment::from_millis(100_000 - seconds * 1000));
    for (seconds, expected) in [(0, "b c a"), (29, "b c a"), (30, "a b c")] {
        candidates[0].recovered = since(seconds);
        assert_eq!(order(&policy, &candidates), expected, "{seconds} s");
    }
    // One that waits is better than none.
    candidates[0].recovered = since(1);
    candidates[1].healthy = false;
    candidates[2].recovered = since(2);
    assert_eq!(order(&policy, &candidates), "a c");
    // The one that serves now stays before another that came back later.
    candidates[1].healthy = true;
    candidates[1].recovered = since(1);
    assert_eq!(order(&policy, &candidates), "a b c");
    candidates[2].is_current = true;
    assert_eq!(order(&policy, &candidates), "c a b");
    candidates[1].healthy = false;
    // Only the order waits.
    let shares = target(&Policy::default(), &candidates, NOW);
    for at in [0, 2] {
        assert!((shares[at].share - 0.5).abs() < 1e-9, "{shares:?}");
    }
}

#[test]
fn priorities_stay_within_those_of_envoy() {
    let names: Vec<String> = (0..256).map(|at| format!("c{at:03}+")).collect();
    let candidates: Vec<_> = names.iter().map(|name| mk(name)).collect();
    let targets = target(&mk_ordered(&[]), &candidates, NOW);
    assert_eq!(targets[126].priority, 126);
    assert_eq!(targets[255].priority, 127);
}

#[rstest]
#[case::ready_endpoints(8.0, 0.0, 0.0, 8.0)]
#[case::half_full_caches(8.0, 0.0, 0.5, 4.0)]
#[case::full_caches(8.0, 0.0, 1.0, 0.4)]
#[case::the_target_queue_halves(8.0, 5.0, 0.0, 4.0)]
#[case::none_ready(0.0, 0.0, 0.0, 0.0)]
#[case::too_many(1e308, 0.0, 0.0, 10_000.0)]
#[case::no_numbers(f64::NAN, f64::NAN, f64::NAN, 0.0)]
#[case::endless_queue(2.0, f64::INFINITY, 0.0, 2.0 / 200_001.0)]
fn score_is_free_capacity(
    #[case] ready: f64,
    #[case] queue: f64,
    #[case] kv: f64,
    #[case] expected: f64,
) {
    let score = PoolLoad { ready, queue, kv }.score(5.0);
    assert!((score - expected).abs() < 1e-9, "{score}");
}

#[rstest]
#[case::by_score(&[Some(3.0), Some(1.0)], &[0.75, 0.25])]
#[case::unknown_is_the_mean(&[Some(3.0), None, Some(1.0)], &[0.5, 1.0 / 3.0, 1.0 / 6.0])]
#[case::none_known(&[None, None], &[0.5, 0.5])]
#[case::no_capacity_anywhere(&[Some(0.0), Some(0.0)], &[0.5, 0.5])]
fn metrics_based_shares_follow_scores(#[case] scores: &[Option<f64>], #[case] expected: &[f64]) {
    let mut candidates = mk_all("a+ b+ c+");
    candidates.truncate(scores.len());
    for (one, score) in candidates.iter_mut().zip(scores) {
        one.score = *score;
    }
    let shares = target(&mk_metrics(), &candidates, NOW);
    for (target, expected) in shares.iter().zip(expected) {
        assert!((target.share - expected).abs() < 1e-9, "{shares:?}");
    }
}

#[test]
fn score_of_an_unhealthy_cluster_is_no_part_of_the_mean() {
    let mut candidates = mk_all("a+ b+ c-");
    candidates[0].score = Some(2.0);
    candidates[2].score = Some(1000.0);
    let shares = target(&mk_metrics(), &candidates, NOW);
    assert!((shares[1].share - 0.5).abs() < 1e-9, "{shares:?}");
}

proptest! {
    #[test]
    fn shares_of_the_serving_clusters_are_the_whole(
        all in prop::collection::vec(
            (any::<bool>(), any::<bool>(), prop::option::of(0.0..1e6)), 1..20,
        ),
        metrics in any::<bool>(),
    ) {
        let names: Vec<String> = (0..all.len()).map(|at| format!("c{at}")).collect();
        let candidates: Vec<_> = names.iter().zip(&all).map(|(name, (healthy, fails_open, score))| Candidate {
            name, is_local: false, fails_open: *fails_open, healthy: *healthy, is_current: false, recovered: None, score: *score,
        }).collect();
        let policy = if metrics { mk_metrics() } else { Policy::default() };
        let targets = target(&policy, &candidates, NOW);
        let sum: f64 = targets.iter().map(|one| one.share).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9, "{targets:?}");
        let any_healthy = candidates.iter().any(|one| one.healthy);
        for (one, target) in candidates.iter().zip(&targets) {
            prop_assert!(target.serves || target.share == 0.0);
            prop_assert!(!any_healthy || target.serves == one.healthy);
        }
    }
}
