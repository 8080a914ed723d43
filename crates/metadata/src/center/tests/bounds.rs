use rstest::rstest;
use xxhash_rust::xxh64::xxh64;

use super::*;

#[test]
fn requests_are_bounded_and_those_that_end_make_room() {
    let center = Center::new(Limits {
        requests: 3,
        ..Limits::default()
    });
    let full = || Err(Fault::Limit(Bound::Requests));
    center.add(mk_add("x", 1, 1), false, at_ms(0)).unwrap();
    center
        .pick(&mk_pick("r", 1), &mut mk_rng(), at_ms(0))
        .unwrap();
    let batch = |seq, puts, deletes| {
        center
            .batch(mk_batch(seq, true, puts, deletes), at_ms(0))
            .map(|_| ())
    };
    assert_eq!(batch(1, vec![put("a", 1, 1), put("b", 1, 1)], &[]), full());
    assert_eq!(center.sizes().requests, 2, "no put was applied");
    assert_eq!(
        batch(1, vec![put("a", 1, 1), put("r", 1, 1)], &[]),
        Ok(()),
        "r is a reservation"
    );
    assert_eq!(center.add(mk_add("y", 1, 1), false, at_ms(0)), full());
    let picks = center.pick(&mk_pick("s", 1), &mut mk_rng(), at_ms(0));
    assert_eq!(picks.map(|_| ()), full());
    assert_eq!(
        batch(2, vec![put("c", 1, 1), put("d", 1, 1)], &[]),
        Ok(()),
        "as many as go"
    );
    center.remove(&id("x"), false, at_ms(0)).unwrap();
    assert_eq!(center.add(mk_add("y", 1, 1), false, at_ms(0)), Ok(()));
    assert_eq!(loads(&center), [(1, 3, 3)]);
}

#[test]
fn a_refused_batch_keeps_the_lease() {
    let center = Center::new(Limits {
        requests: 1,
        ..Limits::default()
    });
    center
        .batch(mk_batch(1, true, vec![put("x", 1, 1)], &[]), at_ms(0))
        .unwrap();
    let more = mk_batch(2, false, vec![put("y", 1, 1)], &[]);
    center.batch(more, at_ms(9_000)).unwrap_err();
    sweep_seconds(&center, 9, 18);
    assert_eq!(loads(&center), [(1, 1, 1)]);
}

#[rstest]
#[case::requests(Limits { requests: 4, ..Limits::default() }, Bound::Requests)]
#[case::endpoints(Limits { endpoints: 1, ..Limits::default() }, Bound::Endpoints)]
fn a_refused_batch_ends_what_it_ends_and_may_come_again(
    #[case] limits: Limits,
    #[case] bound: Bound,
) {
    let center = Center::new(limits);
    let three = ["x", "y", "z"].map(|it| put(it, 1, 1)).to_vec();
    let begin = mk_batch(1, true, three, &[]);
    center.batch(begin, at_ms(0)).unwrap();
    let rng = &mut mk_rng();
    center.pick(&mk_pick("r", 1), rng, at_ms(0)).unwrap();
    let many = |ids: &[&str]| ids.iter().map(|it| put(it, 2, 5)).collect::<Vec<_>>();
    let more = mk_batch(2, false, many(&["r", "a", "b", "c"]), &["x"]);
    assert_eq!(center.batch(more, at_ms(1)), Err(Fault::Limit(bound)));
    assert_eq!(loads(&center), [(1, 3, 102)], "the delete counts");
    assert_eq!(center.sizes().reservations, 1, "r is not confirmed");
    let all = mk_batch(2, true, many(&["r", "y", "a", "b", "c"]), &[]);
    assert_eq!(
        center.batch(all, at_ms(2)),
        Err(Fault::Limit(bound)),
        "the same number is not stale"
    );
    assert_eq!(loads(&center), [(1, 2, 101)], "what was left out is gone");
    let fits = mk_batch(2, true, vec![put("a", 1, 5)], &["r"]);
    assert_eq!(center.batch(fits, at_ms(3)).map(|it| it.resync), Ok(false));
    assert_eq!(loads(&center), [(1, 1, 5)]);
}

#[test]
fn an_instance_whose_lease_is_over_gives_way_in_any_cluster() {
    let center = Center::new(Limits {
        instances: 1,
        ..Limits::default()
    });
    let begin = |name: &str, instance: &str| {
        let batch = Batch {
            cluster: cluster(name),
            instance: instance.parse().unwrap(),
            ..mk_batch(1, true, vec![], &[])
        };
        center.batch(batch, at_ms(0)).map(|_| ())
    };
    for instance in ["a", "b"] {
        begin("c", instance).unwrap();
        center.end_leases(&instance.parse().unwrap(), 1, at_ms(0));
    }
    assert_eq!(begin("d", "e"), Ok(()));
}

#[test]
fn endpoints_of_a_cluster_are_bounded() {
    let center = Center::new(Limits {
        endpoints: 2,
        ..Limits::default()
    });
    let full = || Err(Fault::Limit(Bound::Endpoints));
    let three = vec![put("a", 1, 1), put("b", 2, 1), put("c", 3, 1)];
    let refused = center.batch(mk_batch(1, true, three, &[]), at_ms(0));
    assert_eq!(refused.map(|_| ()), full());
    assert_eq!(center.loads(&cluster("c")), Some(vec![]), "all or none");
    center.add(mk_add("x", 1, 1), false, at_ms(0)).unwrap();
    center.add(mk_add("y", 2, 1), false, at_ms(0)).unwrap();
    assert_eq!(center.add(mk_add("z", 3, 1), false, at_ms(0)), full());
    assert_eq!(center.sizes().requests, 2);
    let other = Add {
        cluster: cluster("d"),
        ..mk_add("z", 3, 1)
    };
    assert_eq!(center.add(other, false, at_ms(0)), Ok(()));
}

#[test]
fn clusters_are_bounded_and_one_kept_for_its_cache_gives_way() {
    let center = Center::new(Limits {
        clusters: 1,
        ..Limits::default()
    });
    let save = |name, now| {
        let save = Save {
            cluster: cluster(name),
            ..mk_save(1, vec![1])
        };
        center.save(&save, now)
    };
    save("c", at_ms(0)).unwrap();
    assert_eq!(
        save("d", at_ms(659_999)),
        Err(Fault::Limit(Bound::Clusters))
    );
    assert_eq!(save("d", at_ms(660_000)), Ok(()));
    assert_eq!(center.sizes().clusters, 1);
    assert_eq!(center.loads(&cluster("c")), None);
}

#[test]
fn live_leases_are_bounded() {
    let center = Center::new(Limits {
        instances: 1,
        ..Limits::default()
    });
    let begin = |instance: &str, now| {
        let instance = instance.parse().unwrap();
        center
            .batch(
                Batch {
                    instance,
                    ..mk_batch(1, true, vec![], &[])
                },
                now,
            )
            .map(|_| ())
    };
    begin("a", at_ms(0)).unwrap();
    assert_eq!(begin("b", at_ms(0)), Err(Fault::Limit(Bound::Instances)));
    for second in 1..=5 {
        let now = at_ms(second * 60_000);
        center.sweep(now);
        assert_eq!(begin(&format!("after-{second}"), now), Ok(()));
    }
}

#[test]
fn early_deletes_are_bounded() {
    let center = Center::new(Limits::default());
    for request in 0..150_000 {
        center
            .remove(&id(&format!("r{request}")), false, at_ms(0))
            .unwrap();
    }
    let is_kept = |request: &u32| {
        let before = center.sizes().requests;
        center
            .add(mk_add(&format!("r{request}"), 1, 1), false, at_ms(1))
            .unwrap();
        center.sizes().requests == before
    };
    let kept = (0..150_000).filter(is_kept).count();
    assert!((99_000..=100_000).contains(&kept), "{kept}");
}

#[test]
fn the_cache_index_stays_within_its_memory() {
    let limits = Limits {
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    };
    let center = Center::new(limits);
    for endpoint in 1..=40u8 {
        let hash = |chunk: u16| xxh64(&chunk.to_le_bytes(), endpoint.into());
        let hashes: Vec<_> = (0..1000).map(hash).collect();
        let save = mk_save(endpoint, hashes);
        center.save(&save, at_ms(0)).unwrap();
    }
    let sizes = center.sizes();
    assert!(sizes.cache_bytes <= 1 << 20, "{sizes:?}");
    assert!(
        sizes.cache_entries > 10_000 && sizes.cache_evictions > 10_000,
        "{sizes:?}"
    );
    center.sweep(Now {
        at: at_ms(0).at + ONE_HOUR + Duration::from_secs(2),
        unix_ns: 0,
    });
    assert_eq!(center.sizes().cache_entries, 0);
}
