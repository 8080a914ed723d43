//! A member's tasks against a scripted API server, on paused time.

use std::sync::atomic::Ordering;

use tokio::time::timeout;

use self::bench::{Bench, Script, offer, rotate, run_on, start};
use super::*;
use crate::index::update::{AnyKind, Change, Kind};

mod bench;
mod credentials;
mod parents;

#[tokio::test(start_paused = true)]
async fn a_member_is_live_once_every_kind_is_listed() {
    let mut bench = start(Arc::default());
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert!(matches!(&seen[0], Update::Connected { uid, .. } if uid == "cluster-1"));
    let listed = |update: &Update| match update {
        Update::PoolsListed { crd, .. } => {
            assert_eq!(
                *crd,
                crate::index::facts::CrdCheck::Serving {
                    uid: "crd-1".to_owned()
                }
            );
            true
        }
        Update::Services(Change::Listed(_))
        | Update::SlicesListed { .. }
        | Update::Namespaces(Change::Listed(_))
        | Update::Imports(Change::Listed(_)) => true,
        _ => false,
    };
    assert_eq!(
        seen.iter().filter(|update| listed(update)).count(),
        Kind::ALL.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_is_lost_within_13_seconds() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.hang.store(true, Ordering::SeqCst);
    let silent_since = bench.clock.now();
    bench
        .until(|update| matches!(update, Update::Suspect))
        .await;
    let end = bench.ended().await;
    let lost = End::Lost {
        fault: Fault::ConnectionLost,
        was_live: true,
    };
    assert_eq!(end, lost);
    let took = bench.clock.now().since(silent_since);
    assert!(took <= Duration::from_secs(13), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_late_answer_is_no_loss() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.hang.store(true, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Suspect))
        .await;
    script.hang.store(false, Ordering::SeqCst);
    bench.until(|update| matches!(update, Update::Live)).await;
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_reported_as_such() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.unauthorised.store(true, Ordering::SeqCst);
    assert_eq!(bench.ended().await, End::Unauthorised);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_never_answers_is_given_ten_seconds() {
    let script = Arc::<Script>::default();
    script.hang.store(true, Ordering::SeqCst);
    let mut bench = start(script);
    let end = bench.ended().await;
    assert!(matches!(
        end,
        End::Lost {
            was_live: false,
            ..
        }
    ));
    assert!(bench.clock.now().since(Moment::default()) <= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_that_is_not_found_only_a_list_shows_that_a_kind_is_missing() {
    let script = Arc::<Script>::default();
    script.no_watches.store(true, Ordering::SeqCst);
    let mut bench = start(script.clone());
    let missing = |update: &Update| matches!(update, Update::NotServed(_));
    let mut seen = bench.until(|update| matches!(update, Update::Live)).await;
    let list = |update: &Update| {
        matches!(
            update,
            Update::PoolsListed { .. } | Update::Imports(Change::Listed(_))
        )
    };
    let mut lists = [0, 0];
    while lists.iter().any(|count| *count < 3) {
        seen.extend(bench.until(list).await);
        match seen.last() {
            Some(Update::PoolsListed { .. }) => lists[0] += 1,
            _ => lists[1] += 1,
        }
    }
    assert!(!seen.iter().any(missing), "{seen:?}");
    script.no_kinds.store(true, Ordering::SeqCst);
    let mut not_served = Vec::new();
    while not_served.len() < 2 {
        let seen = bench.until(missing).await;
        if let Some(Update::NotServed(kind)) = seen.last()
            && !not_served.contains(kind)
        {
            not_served.push(*kind);
        }
    }
    not_served.sort_unstable();
    assert_eq!(not_served, [Kind::Pools, Kind::Imports]);
}

#[tokio::test(start_paused = true)]
async fn a_list_under_a_terminating_crd_is_reported_as_doubtful() {
    let script = Arc::<Script>::default();
    script.crd_terminating.store(true, Ordering::SeqCst);
    let mut bench = start(script);
    let seen = bench
        .until(|update| matches!(update, Update::PoolsListed { .. }))
        .await;
    let Some(Update::PoolsListed { crd, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!(*crd, crate::index::facts::CrdCheck::Doubtful);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_index_has_accepted_the_cluster() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    offer(&bench);
    bench.until(|update| matches!(update, Update::Live)).await;
    let accept = |bench: &Bench, uid: &str| {
        let accepted = Some(uid.to_owned());
        bench
            .control
            .send_modify(|control| control.accepted = accepted);
    };
    accept(&bench, "another");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(script.writes.load(Ordering::SeqCst), 0);
    accept(&bench, "cluster-1");
    sleep(Duration::from_secs(3)).await;
    assert!(script.writes.load(Ordering::SeqCst) > 0);
}

#[tokio::test(start_paused = true)]
async fn pools_are_listed_again_once_their_crd_stands() {
    let script = Arc::<Script>::default();
    script.crd_terminating.store(true, Ordering::SeqCst);
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.crd_terminating.store(false, Ordering::SeqCst);
    let seen = bench
        .until(|update| matches!(update, Update::PoolsListed { .. }))
        .await;
    let Some(Update::PoolsListed { crd, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_ne!(*crd, crate::index::facts::CrdCheck::Doubtful);
}

#[tokio::test(start_paused = true)]
async fn endpoint_slices_are_selected_by_the_epps_of_interest() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    assert_eq!(
        *script.slice_lists.lock(),
        Vec::<String>::new(),
        "nothing is exported: nothing is listed"
    );
    let mut wanted = crate::index::interest::Interest::default();
    for name in ["epp", "epp2"] {
        wanted.epps.insert(crate::fixtures::mk_key(name));
        let interest = Some(wanted.clone());
        bench
            .control
            .send_modify(|control| control.interest = interest);
        bench
            .until(|update| match update {
                Update::SlicesListed { scope, .. } => *scope == wanted.scope(),
                _ => false,
            })
            .await;
    }
    // what is watched already is not listed again; what is no longer needed is dropped
    wanted.epps.remove(&crate::fixtures::mk_key("epp2"));
    for interest in [wanted, crate::index::interest::Interest::default()] {
        let interest = Some(interest);
        bench
            .control
            .send_modify(|control| control.interest = interest);
        sleep(Duration::from_secs(1)).await;
    }
    bench
        .until(|update| matches!(update, Update::SlicesListed { scope, .. } if scope.is_empty()))
        .await;
    let lists = script.slice_lists.lock().clone();
    assert_eq!(lists.len(), 2, "{lists:?}");
    assert!(
        lists[0].contains("labelSelector=kubernetes.io%2Fservice-name+in+%28epp%29"),
        "{lists:?}"
    );
    assert!(lists[1].contains("%28epp%2Cepp2%29"), "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_kept_in_full_is_listed_again_after_a_minute_then_after_two() {
    for (kind, listed) in [
        (
            Kind::Pools,
            (|update| matches!(update, Update::PoolsListed { .. })) as fn(&Update) -> bool,
        ),
        (Kind::Services, |update| {
            matches!(update, Update::Services(Change::Listed(_)))
        }),
        (Kind::Slices, |update| {
            matches!(update, Update::SlicesListed { .. })
        }),
        (Kind::Namespaces, |update| {
            matches!(update, Update::Namespaces(Change::Listed(_)))
        }),
        (Kind::Imports, |update| {
            matches!(update, Update::Imports(Change::Listed(_)))
        }),
    ] {
        let mut bench = start(Arc::default());
        bench.until(|update| matches!(update, Update::Live)).await;
        let set = |partial: BTreeSet<AnyKind>| {
            bench
                .control
                .send_modify(|control| control.partial = partial);
        };
        set([kind.into()].into());
        for minutes in [1, 2] {
            let before = bench.clock.now();
            bench.until(listed).await;
            let took = bench.clock.now().since(before);
            let expected = Duration::from_mins(minutes);
            assert!(
                took >= expected && took < expected + Duration::from_secs(5),
                "{kind:?}: {took:?}"
            );
        }
        bench
            .control
            .send_modify(|control| control.partial = BTreeSet::new());
        sleep(Duration::from_mins(9)).await;
        while let Ok((update, _)) = bench.updates.try_recv() {
            assert!(!listed(&update), "{kind:?}: it fits");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_given_up_and_the_others_are_not() {
    let script = Arc::<Script>::default();
    script.endless.store(true, Ordering::SeqCst);
    let mut bench = start(script.clone());
    let over = |update: &Update| matches!(update, Update::OverLimit(_));
    let mut seen = bench.until(over).await;
    let kind = AnyKind::from(Kind::Services);
    assert!(matches!(seen.last(), Some(Update::OverLimit(one)) if *one == kind));
    // the end of such a list is no evidence
    script.endless.store(false, Ordering::SeqCst);
    seen.extend(bench.until(|update| matches!(update, Update::Live)).await);
    let listed = |update: &Update| matches!(update, Update::Services(Change::Listed(_)));
    assert!(!seen.iter().any(listed));
    assert_eq!(seen.iter().filter(|update| over(update)).count(), 1);
    let others = |update: &&Update| matches!(update, Update::Namespaces(Change::Listed(_)));
    assert_eq!(seen.iter().filter(others).count(), 1);
}
