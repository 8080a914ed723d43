//! An exporting cluster that changes its mode while requests are sent.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use moment::Moment;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::fixture::key;
use crate::world::{ImportedCluster, World};

use super::bed::{Bed, LIMIT, POD_B, REMOTE_EPP, REMOTE_POD};
use super::imports::{LATE, mk_parent, set_entries};

/// Number of changes, half of them to each mode.
const CHANGES: usize = 24;

/// Number of clients, each of which sends one request after another.
const CLIENTS: usize = 4;

/// A change is complete for a client that got so many answers in a row of the new mode.
const IN_A_ROW: usize = 5;

/// So many failures in a row set a cluster aside.
const TRIED: u64 = 5;

/// Envoy's counter of requests to the import that it has tried again.
const RETRIES: &str = r#"envoy_cluster_upstream_rq_retry{envoy_cluster_name="import/ns/llm"} "#;

/// An edge tries a request again that a hop could not serve, which would hide most losses: none may need it.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_mode_costs_no_request_and_no_second_attempt() {
    let mut bed = Bed::start(|_| {}).await;
    let by_picker = bed.world.imports[&key("llm")].clusters[0].clone();
    let by_gateway = mk_parent(&bed, "east", POD_B, &[]);
    let pick = bed.at(REMOTE_POD);
    let _epp = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/import", 200).await;
    let before = second_attempts(&bed).await;
    let modes = [
        (by_gateway, POD_B, "pods/ns/llm/east"),
        (by_picker, REMOTE_POD, "parent/ns/llm/east"),
    ];
    for (nth, (entry, pod, former)) in modes.iter().cycle().take(CHANGES).enumerate() {
        change_entries(&mut bed, vec![entry.clone()]);
        join_all((0..CLIENTS).map(|_| follow(&bed, *pod, || true))).await;
        // Some changes come while Envoy still has the clusters of the mode before, and some after.
        if nth % 4 < 2 {
            end_formers(&mut bed);
            let is_gone = || !has_cluster(&bed, former);
            join_all((0..CLIENTS).map(|_| follow(&bed, *pod, is_gone))).await;
        }
        assert_eq!(second_attempts(&bed).await, before, "after {nth} changes");
    }
}

/// A Gateway that has just begun is not reached by all at once, and Envoy may know it as unhealthy from before. So it is with an
/// endpoint picker. Until Envoy can use the new mode, the former one takes what that cannot serve.
#[tokio::test(flavor = "multi_thread")]
async fn former_mode_serves_until_the_new_one_can_be_used() {
    let mut bed = Bed::start(|_| {}).await;
    let by_picker = bed.world.imports[&key("llm")].clusters[0].clone();
    let by_gateway = mk_parent(&bed, "east", LATE, &[]);
    let pick = bed.at(REMOTE_POD);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/import", 200).await;
    let mut pending = by_gateway.clone();
    pending.parents[0].addresses.clear();
    change_entries(&mut bed, vec![pending]);
    for _ in 0..IN_A_ROW {
        let answer = bed.post("/import", 100).await;
        assert_eq!(answer.body, format!("{REMOTE_POD} 100"), "{answer:?}");
    }
    change_entries(&mut bed, vec![by_gateway]);
    serves_on(&bed, REMOTE_POD).await;
    bed.pod(LATE).await;
    follow(&bed, LATE, || true).await;
    epp.stop.cancel();
    let picker = bed.picker_at(REMOTE_EPP);
    bed.wait("the picker has ended", || async {
        TcpStream::connect(picker).await.is_err()
    })
    .await;
    change_entries(&mut bed, vec![by_picker]);
    serves_on(&bed, LATE).await;
    let pick = bed.at(REMOTE_POD);
    let _epp = bed.epp(REMOTE_EPP, pick).await;
    follow(&bed, REMOTE_POD, || true).await;
}

/// A cluster that joins comes with a new hop, and one that leaves takes it away.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_joins_or_leaves_costs_no_request_and_no_second_attempt() {
    let mut bed = Bed::start(|_| {}).await;
    let east = mk_parent(&bed, "east", REMOTE_POD, &[]);
    let south = mk_parent(&bed, "south", POD_B, &[]);
    set_entries(&mut bed.world, vec![east.clone()]);
    bed.publish();
    bed.until("/import", 200).await;
    let before = second_attempts(&bed).await;
    for nth in 0..CHANGES {
        let (entries, pod) = if nth % 2 == 0 {
            (vec![east.clone(), south.clone()], POD_B)
        } else {
            (vec![east.clone()], REMOTE_POD)
        };
        let joins = entries.len() > 1;
        set_entries(&mut bed.world, entries);
        bed.publish();
        let in_a_row = if joins { 1 } else { IN_A_ROW };
        join_all((0..CLIENTS).map(|_| follow_until(&bed, pod, in_a_row, || true))).await;
        assert_eq!(second_attempts(&bed).await, before, "after {nth} changes");
    }
}

/// As if the time of all former modes were over.
fn end_formers(bed: &mut Bed) {
    let over = Moment::START.plus(Duration::from_mins(10));
    bed.world.formers.expire(over);
    bed.publish();
}

/// As the index follows an import.
fn change_entries(bed: &mut Bed, entries: Vec<ImportedCluster>) {
    let World {
        imports, formers, ..
    } = &mut bed.world;
    let import = imports.get_mut(&key("llm")).unwrap();
    let before = import.clone();
    import.clusters = entries;
    formers.follow(&key("llm"), Some(&before), Some(import), Moment::START);
    bed.publish();
}

/// Sends requests until the new mode was tried for some. The pod of the former mode must answer each.
async fn serves_on(bed: &Bed, pod: Ipv4Addr) {
    let (started, before) = (Instant::now(), second_attempts(bed).await);
    while second_attempts(bed).await < before + TRIED {
        let answer = bed.post("/import", 100).await;
        assert_eq!(answer.body, format!("{pod} 100"), "{answer:?}");
        let passed = started.elapsed();
        assert!(passed < LIMIT, "the new mode is not tried");
    }
}

/// Sends requests until the change is complete, and `is_done`. Each must be answered.
async fn follow(bed: &Bed, pod: Ipv4Addr, is_done: impl Fn() -> bool) {
    follow_until(bed, pod, IN_A_ROW, is_done).await;
}

/// The same until so many answers in a row are of the pod.
async fn follow_until(
    bed: &Bed,
    pod: Ipv4Addr,
    wanted_in_a_row: usize,
    is_done: impl Fn() -> bool,
) {
    let (started, wanted) = (Instant::now(), format!("{pod} 100"));
    let mut in_a_row = 0;
    while in_a_row < wanted_in_a_row || !is_done() {
        let answer = bed.post("/import", 100).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        in_a_row = if answer.body == wanted {
            in_a_row + 1
        } else {
            0
        };
        let passed = started.elapsed();
        assert!(passed < LIMIT, "{pod} after {passed:?}: {answer:?}");
    }
}

fn has_cluster(bed: &Bed, name: &str) -> bool {
    let connected = bed.proxies.connected();
    let mut clusters = connected.iter().map(|proxy| &proxy.acknowledged["cds"]);
    clusters.any(|clusters| clusters.contains_key(name))
}

/// How many requests to the import Envoy has tried again.
async fn second_attempts(bed: &Bed) -> u64 {
    let count = bed.envoy.statistic(RETRIES).await;
    count.expect("Envoy counts second attempts")
}
