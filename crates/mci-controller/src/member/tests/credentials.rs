//! Credentials that are refused, that do not suffice, and that are replaced.

use super::*;

/// Nothing but these updates of contact counts here.
fn contact(seen: &[Update]) -> Vec<&'static str> {
    let name_of = |update: &Update| match update {
        Update::Connected { .. } => Some("connected"),
        Update::Live => Some("live"),
        Update::Suspect => Some("suspect"),
        Update::Lost(fault) => Some(fault.reason()),
        Update::Denied(kinds) if !kinds.is_empty() => Some("denied"),
        _ => None,
    };
    seen.iter().filter_map(name_of).collect()
}

/// A member that is live on this server.
async fn live_on(script: &Arc<Script>) -> Bench {
    let mut bench = run_on(script);
    bench.until(|update| matches!(update, Update::Live)).await;
    bench
}

/// The server does not answer until its member is lost. Returns the updates from its return until the member is live.
async fn reconnect(bench: &mut Bench, script: &Script) -> Vec<Update> {
    script.hang.store(true, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Lost(_)))
        .await;
    script.hang.store(false, Ordering::SeqCst);
    bench.until(|update| matches!(update, Update::Live)).await
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_refused_once_cost_one_rebuild_and_no_loss() {
    let script = Arc::<Script>::default();
    let mut bench = live_on(&script).await;
    script.slips.store(1, Ordering::SeqCst);
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert_eq!(contact(&seen), ["connected", "live"]);
}

#[tokio::test(start_paused = true)]
async fn credentials_that_stay_refused_are_reported_and_tried_ever_more_rarely() {
    let script = Arc::<Script>::default();
    let mut bench = live_on(&script).await;
    script.unauthorised.store(true, Ordering::SeqCst);
    let refused_at = bench.clock.now();
    let seen = bench
        .until(|update| matches!(update, Update::Lost(_)))
        .await;
    assert_eq!(contact(&seen), ["AuthFailed"]);
    assert!(bench.clock.now().since(refused_at) <= Duration::from_secs(6));
    let before = script.probes.load(Ordering::SeqCst);
    let drained = async { while bench.updates.recv().await.is_some() {} };
    assert!(timeout(Duration::from_mins(10), drained).await.is_err());
    let tries = script.probes.load(Ordering::SeqCst) - before;
    assert!((10..200).contains(&tries), "{tries}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_not_accepted_ends_the_session_too() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    let accepted = Some("cluster-1".to_owned());
    bench
        .control
        .send_modify(|control| control.accepted = accepted);
    script.unauthorised.store(true, Ordering::SeqCst);
    let offered_at = bench.clock.now();
    offer(&bench);
    assert_eq!(bench.ended().await, End::Unauthorised);
    assert!(bench.clock.now().since(offered_at) <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_hidden_leaves_the_rest_at_work() {
    let script = Arc::<Script>::default();
    script.hidden.lock().push("/api/v1/services");
    let mut bench = start(script.clone());
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    let denied = seen.iter().find_map(|update| match update {
        Update::Denied(kinds) => Some(kinds.clone()),
        _ => None,
    });
    assert_eq!(denied, Some([Kind::Services].into()));
    // it stays so for long, and is admitted again
    sleep(Duration::from_mins(2)).await;
    script.hidden.lock().clear();
    let seen = bench
        .until(|update| matches!(update, Update::Denied(kinds) if kinds.is_empty()))
        .await;
    assert_eq!(contact(&seen), Vec::<&str>::new());
    assert!(bench.end.try_join_next().is_none(), "the session goes on");
}

#[tokio::test(start_paused = true)]
async fn another_cluster_behind_the_address_is_noticed() {
    let script = Arc::<Script>::default();
    let mut bench = live_on(&script).await;
    script.other.store(true, Ordering::SeqCst);
    let since = bench.clock.now();
    let wait = async {
        while let Some((update, _)) = bench.updates.recv().await {
            match update {
                Update::Connected { uid, .. } => return Some(uid),
                Update::Lost(_) => return None,
                _ => {}
            }
        }
        None
    };
    let found = timeout(Duration::from_mins(30), wait).await;
    assert_eq!(found, Ok(Some("cluster-2".to_owned())));
    assert!(bench.clock.now().since(since) <= Duration::from_mins(12));
}

#[tokio::test(start_paused = true)]
async fn new_credentials_take_over_only_if_they_may_read_all() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = live_on(&old).await;
    new.hidden.lock().push("/api/v1/namespaces");
    rotate(&bench, &new);
    bench
        .until(|update| matches!(update, Update::NewCredentials(Some(_))))
        .await;
    let replaced = bench.until(|update| matches!(update, Update::Connected { .. }));
    assert!(timeout(Duration::from_mins(1), replaced).await.is_err());
    assert!(new.probes.load(Ordering::SeqCst) > 0, "they were tried");
    new.hidden.lock().clear();
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert_eq!(contact(&seen), ["connected", "live"]);
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_fail_leave_the_old_in_use_and_are_tried_again() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = live_on(&old).await;
    new.unauthorised.store(true, Ordering::SeqCst);
    rotate(&bench, &new);
    sleep(Duration::from_secs(5)).await;
    // the connection breaks: the old ones make the next
    let seen = reconnect(&mut bench, &old).await;
    assert!(
        !seen
            .iter()
            .any(|update| matches!(update, Update::Refused(_))),
        "{seen:?}"
    );
    // the new ones come to work: they are taken up by themselves
    let probed = || new.probes.load(Ordering::SeqCst);
    new.unauthorised.store(false, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Connected { .. }))
        .await;
    bench.until(|update| matches!(update, Update::Live)).await;
    let before = probed();
    sleep(Duration::from_secs(30)).await;
    assert!(probed() >= before + 5, "the session probes the new server");
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_lead_elsewhere_leave_the_old_in_use() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = live_on(&old).await;
    new.other.store(true, Ordering::SeqCst);
    rotate(&bench, &new);
    let why = refusal(&mut bench).await;
    assert!(why.contains("another cluster"), "{why}");
    let seen = reconnect(&mut bench, &old).await;
    let connected = seen.iter().filter_map(|update| match update {
        Update::Connected { uid, .. } => Some(uid.as_str()),
        _ => None,
    });
    assert_eq!(connected.collect::<Vec<_>>(), ["cluster-1"]);
}

/// Why the new credentials are not used.
async fn refusal(bench: &mut Bench) -> String {
    let refused = |update: &Update| matches!(update, Update::NewCredentials(Some(_)));
    match bench.until(refused).await.pop() {
        Some(Update::NewCredentials(Some(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn new_credentials_take_over_only_if_they_may_watch_and_write_what_the_old_ones_may() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = live_on(&old).await;
    new.no_rights.store(true, Ordering::SeqCst);
    rotate(&bench, &new);
    let why = refusal(&mut bench).await;
    for right in ["watch services", "patch inferencepoolimports/status"] {
        assert!(why.contains(right), "{why}");
    }
    // what the old ones may not do either is no reason to keep them
    old.no_rights.store(true, Ordering::SeqCst);
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert_eq!(contact(&seen), ["connected", "live"]);
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_do_not_decode_are_reported() {
    let mut bench = live_on(&Arc::default()).await;
    bench.control.send_modify(|control| {
        control.credentials = Credentials::undecodable();
        control.version += 1;
    });
    let why = refusal(&mut bench).await;
    assert!(why.contains("do not decode"), "{why}");
}
