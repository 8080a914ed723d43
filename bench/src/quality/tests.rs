use std::time::Duration;

use super::*;

/// A pool of four small engines, near what it can do with prompts that are computed anew.
fn run(policy: Policy, seed: u64) -> Outcome {
    let trace = Trace::generate(Workload::Mixed, 1500, 20.0, seed);
    simulate(&trace, &mk(policy)).unwrap()
}

fn mk(policy: Policy) -> Setup {
    Setup {
        endpoints: 4,
        engine: EngineModel::default(),
        policy,
        delay: Duration::ZERO,
        transit: Duration::ZERO,
        seed: 1,
    }
}

/// The seeds are fixed, so that it holds or does not. At the 99th percentile are long prompts that nobody has cached, which
/// no choice makes faster: it is only to be no worse.
#[test]
fn the_default_profile_beats_chance_and_turns_by_a_fifth_of_the_median_and_a_quarter_more_cached() {
    for seed in [1, 2] {
        let ours = run(Policy::default_profile(), seed);
        for other in [Policy::random(), Policy::round_robin()] {
            let name = other.name;
            let other = run(other, seed);
            let of = |one: &Outcome| {
                (
                    one.first_token_ms(0.5),
                    one.first_token_ms(0.99),
                    one.cached(),
                )
            };
            let ((p50, p99, cached), theirs) = (of(&ours), of(&other));
            let shown = format!("seed {seed}: ours {:?}, {name} {theirs:?}", of(&ours));
            assert!(p50 <= 0.8 * theirs.0, "{shown}");
            assert!(p99 <= theirs.1, "{shown}");
            assert!(cached >= 1.25 * theirs.2, "{shown}");
        }
    }
}

#[test]
fn the_same_trace_and_setup_give_the_same() {
    let of = || {
        let one = run(Policy::default_profile(), 3);
        [
            one.first_token_ms(0.5),
            one.first_token_ms(0.999),
            one.cached(),
            one.spread(),
            one.bunching(),
        ]
    };
    assert_eq!(of().map(f64::to_bits), of().map(f64::to_bits));
}

/// Picks are forgotten when a scrape begins before their requests arrive, unless the way is known. Some unevenness is left in
/// any case: a tenth of a second has four requests for each.
#[test]
fn a_measured_way_keeps_picks_from_bunching() {
    let trace = Trace::generate(Workload::Short, 3000, 400.0, 1);
    let delay = Duration::from_millis(80);
    let bunching = |transit| {
        let setup = Setup {
            endpoints: 10,
            delay,
            transit,
            ..mk(Policy::default_profile())
        };
        simulate(&trace, &setup).unwrap().bunching()
    };
    let (measured, without) = (bunching(delay), bunching(Duration::ZERO));
    let above_even = (measured - 1.0) / (without - 1.0);
    assert!(above_even <= 0.75, "{measured} and {without}");
}
