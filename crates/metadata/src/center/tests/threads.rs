use std::{
    collections::BTreeSet,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use rand::RngExt;

use super::*;

const ROUNDS: u64 = 300;

/// What one endpoint picker does in one round, over few ids and endpoints so that calls meet.
fn round(center: &Center, picker: u64, round: u64, now: Now, rng: &mut StdRng) {
    let name = |it: u64| format!("r{picker}-{it}");
    let request = rng.random_range(0..20);
    let endpoint = rng.random_range(1..6);
    let mut pick = mk_pick(&name(request), 5);
    pick.prompt_hash = vec![request, request + 1].into();
    // Refusals are part of it.
    let _ = center.pick(&pick, rng, now);
    let puts = vec![
        put(&name(request), endpoint, 7),
        put(&name(request + 20), endpoint, 9),
    ];
    let batch = Batch {
        instance: format!("epp-{picker}").parse().unwrap(),
        epoch: 1 + round / 100,
        lease_ms: 1000,
        ..mk_batch(1 + round, rng.random_bool(0.3), puts, &[&name(request + 1)])
    };
    let _ = center.batch(batch, now);
    let unowned = format!("u{}", rng.random_range(0..20));
    let _ = center.add(mk_add(&unowned, endpoint, 3), false, now);
    let _ = center.remove(&id(&unowned), true, now);
    if round.is_multiple_of(50) {
        center.end_leases(&"epp-0".parse().unwrap(), u64::MAX, now);
    }
}

#[test]
fn nothing_is_left_or_lost_where_calls_meet_sweeps() {
    let center = &Center::new(Limits {
        requests: 60,
        request_expire: Duration::from_secs(3),
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    });
    let (clock, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let now = || at_ms(clock.load(Ordering::Relaxed));
    thread::scope(|scope| {
        let sweeper = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                clock.fetch_add(250, Ordering::Relaxed);
                center.sweep(now());
                for load in center.loads(&cluster("c")).unwrap_or_default() {
                    assert!(load.queued_req_num <= 60 + 8, "{load:?}");
                }
            }
        });
        let pickers: Vec<_> = (0..4)
            .map(|picker| {
                scope.spawn(move || {
                    let rng = &mut StdRng::seed_from_u64(picker);
                    (0..ROUNDS).for_each(|it| round(center, picker, it, now(), rng));
                })
            })
            .collect();
        for picker in pickers {
            picker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        sweeper.join().unwrap();
    });
    let now = clock.load(Ordering::Relaxed) + 100_000;
    center.sweep(at_ms(now));
    let sizes = center.sizes();
    assert_eq!(
        (sizes.requests, sizes.reservations, sizes.leases),
        (0, 0, 0),
        "{sizes:?}"
    );
    center.add(mk_add("last", 1, 3), false, at_ms(now)).unwrap();
    let sizes = center.sizes();
    let of_cluster = &sizes.by_cluster[0];
    assert_eq!(
        (of_cluster.requests, of_cluster.prefill),
        (1, 3),
        "{sizes:?}"
    );
    center.remove(&id("last"), true, at_ms(now)).unwrap();
    center.sweep(at_ms(now + 100_000));
    let Sizes {
        endpoints,
        clusters,
        cache_entries,
        ..
    } = center.sizes();
    assert_eq!((endpoints, clusters, cache_entries), (0, 0, 0));
}

#[test]
fn picks_of_one_prompt_at_the_same_time_go_to_one_endpoint() {
    const THREADS: u64 = 8;

    let center = &Center::new(Limits {
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    });
    for prompt in 0..200 {
        let ready = &Barrier::new(THREADS.try_into().unwrap());
        let picked: BTreeSet<_> = thread::scope(|scope| {
            let pick = |thread| {
                let mut pick = mk_pick(&format!("r{prompt}-{thread}"), 64);
                pick.prompt_hash = vec![prompt].into();
                (pick.params.load_aware_enable, pick.params.candidate_percent) = (false, 0);
                let rng = &mut StdRng::seed_from_u64(thread);
                ready.wait();
                center.pick(&pick, rng, at_ms(0)).unwrap().picks[0].ip
            };
            let picks: Vec<_> = (0..THREADS)
                .map(|it| scope.spawn(move || pick(it)))
                .collect();
            picks.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(picked.len(), 1, "prompt {prompt} went to {picked:?}");
    }
}
