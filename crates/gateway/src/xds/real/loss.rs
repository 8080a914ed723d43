//! A pool whose endpoint picker is killed under load. The official suite takes away the picker of a pool that gets no requests.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use rstest::rstest;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use crate::fixture::{key, mk_ref, mk_rule};
use crate::world::World;

use super::bed::{Bed, EPP, LIMIT, POD_A, POD_B};
use super::epp::{Behaviour, Epp};

/// Requests at a time.
const CLIENTS: usize = 8;

/// Worker threads of Envoy. Each may send one request to a picker that is gone, and has to see that it fails.
const WORKERS: usize = 1;

/// How often Envoy may take the picker out. A health check that had connected before the picker ended, and that Envoy's main thread
/// sees after the first loss, brings it back once. Checks come each 2 s, so on an idle machine, where a connection is seen within
/// a millisecond, that is a chance of 1 in 2000.
const TIMES: u64 = 2;

/// So long after the picker's end nothing is lost any more.
const SETTLED: Duration = Duration::from_secs(3);

/// Rounds of the load once Envoy has taken the picker out.
const ROUNDS: usize = 3;

/// The statistic of Envoy that says how many pickers of the pool it uses.
const HEALTHY: &str = r#"envoy_cluster_membership_healthy{envoy_cluster_name="epp/ns/llm"}"#;

/// How often Envoy took a picker of the pool out for connections that failed.
const TAKEN_OUT: &str =
    r#"envoy_cluster_outlier_detection_ejections_enforced_total{envoy_cluster_name="epp/ns/llm"}"#;

/// A request without a body, one that Envoy holds in one piece, and one that it sends on in many.
const BODIES: [usize; 3] = [0, 1_000, 3_000_000];

/// The path of requests that begin after the picker was killed.
const LATE: &str = "/pool/late";

/// A picker in a runtime of its own: with that end its port and all its connections, as with a process.
pub(super) struct Killable {
    pub(super) epp: Epp,
    runtime: Runtime,
}

struct Outcome {
    status: u16,
    body: String,
}

/// What became of the requests around the end of a picker.
struct Outcomes {
    /// Begun before it, by all clients.
    early: Vec<Outcome>,
    /// Those of them that had no answer when it ended.
    in_flight: usize,
    /// How many had failed when it ended.
    failed: usize,
    /// Begun after it, one after the other, until Envoy has taken the picker out.
    alone: Vec<Outcome>,
    /// Begun after that, by all clients.
    after: Vec<Outcome>,
    /// How often Envoy took the picker out.
    times: u64,
}

// === impl Killable ===

impl Killable {
    pub(super) fn start(bed: &Bed, ip: Ipv4Addr, behaviour: Behaviour) -> Self {
        let epp = Epp::new(behaviour);
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let (service, address) = (epp.service(), bed.picker_at(ip));
        runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self { epp, runtime }
    }

    /// Returns when nothing of it runs any more.
    pub(super) async fn kill(self) {
        let end = move || self.runtime.shutdown_timeout(LIMIT);
        tokio::task::spawn_blocking(end).await.unwrap();
    }
}

async fn send(bed: &Bed, path: &str, bytes: usize) -> Outcome {
    let method = if bytes == 0 { "GET" } else { "POST" };
    let answer = bed.send(method, path, "", bytes).await;
    Outcome {
        status: answer.status,
        body: answer.body,
    }
}

/// Ends the picker when the load has reached it. The load ends at that moment, so what is lost then does not depend on how fast
/// this machine is: requests follow one after the other, each once Envoy's main thread has seen how the one before ended.
async fn lose_picker(bed: &Bed, picker: Killable) -> Outcomes {
    let (is_open, in_flight) = (Cell::new(true), Cell::new(0_usize));
    let failed = Cell::new(0_usize);
    let load = join_all((0..CLIENTS).map(|_| async {
        let mut outcomes = Vec::new();
        for bytes in BODIES.into_iter().cycle() {
            if !is_open.get() {
                break;
            }
            in_flight.set(in_flight.get() + 1);
            let outcome = send(bed, "/pool/early", bytes).await;
            in_flight.set(in_flight.get() - 1);
            failed.set(failed.get() + usize::from(outcome.status != 200));
            outcomes.push(outcome);
        }
        outcomes
    }));
    let kill = async {
        let before = picker.epp.asked();
        let rounds = 3 * BODIES.len() * CLIENTS;
        bed.wait("the load reaches the picker", || async {
            picker.epp.asked() > before + rounds
        })
        .await;
        is_open.set(false);
        let counts = (in_flight.get(), failed.get());
        picker.kill().await;
        counts
    };
    let (early, (in_flight, failed)) = tokio::join!(load, kill);

    let started = Instant::now();
    let mut alone = Vec::new();
    // those with bodies are lost where Envoy sends them to the picker, so they come first
    for bytes in BODIES.into_iter().rev().cycle() {
        let is_out = bed.envoy.statistic(HEALTHY).await == Some(0);
        if is_out && started.elapsed() >= SETTLED {
            break;
        }
        assert!(started.elapsed() < LIMIT, "Envoy uses the picker still");
        alone.push(send(bed, LATE, bytes).await);
    }
    // a worker hears of it after the main thread, but before it takes a request that follows another one
    alone.push(send(bed, LATE, 0).await);

    let after = join_all((0..CLIENTS).map(|_| async {
        let mut outcomes = Vec::new();
        for bytes in [BODIES; ROUNDS].into_iter().flatten() {
            outcomes.push(send(bed, LATE, bytes).await);
        }
        outcomes
    }));
    let after = after.await.into_iter().flatten().collect();
    let times = bed.envoy.statistic(TAKEN_OUT).await;
    Outcomes {
        times: times.expect("Envoy counts how often it takes a host out"),
        early: early.into_iter().flatten().collect(),
        in_flight,
        failed,
        alone,
        after,
    }
}

/// A time limit in the route puts a hop in front of the pool.
fn mk_change(fails_open: bool, limit: Option<&str>) -> impl FnOnce(&mut World) {
    let limit = limit.map(ToOwned::to_owned);
    move |world| {
        let picker = &mut world.pools.get_mut(&key("llm")).unwrap().picker;
        picker.as_mut().unwrap().fail_open = fails_open;
        let mut rule = mk_rule("/pool", vec![mk_ref("pool", "llm", 1)]);
        rule.request_timeout = limit;
        world.routes.get_mut(&key("pool")).unwrap().rules = vec![rule];
    }
}

#[rstest]
#[case::pool(None)]
#[case::behind_a_hop(Some("20s"))]
#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_open_loses_only_what_its_picker_had(#[case] limit: Option<&str>) {
    let bed = Bed::start(mk_change(true, limit)).await;
    let picker = Killable::start(&bed, EPP, bed.at(POD_B));
    bed.wait("the picker picks", || async {
        bed.get("/pool").await;
        picker.epp.asked() > 0
    })
    .await;
    let Outcomes {
        early,
        in_flight,
        failed,
        alone,
        after,
        times,
    } = lose_picker(&bed, picker).await;
    assert_eq!(failed, 0, "the picker was there");
    let lost = |outcomes: &[Outcome]| -> Vec<u16> {
        let statuses = outcomes.iter().map(|one| one.status);
        statuses.filter(|status| *status != 200).collect()
    };
    let (lost_early, lost_alone) = (lost(&early), lost(&alone));
    // after a loss Envoy takes it out, and nothing more is lost unless it brings it back
    let most = usize::try_from(times).unwrap() * WORKERS;
    assert!(
        lost_alone.len() <= most && times <= TIMES,
        "of {in_flight} in flight {lost_early:?}, then {lost_alone:?}; taken out {times} times"
    );
    for one in &after {
        assert_eq!(one.status, 200, "{}", one.body);
    }
    let ours = [POD_A, POD_B].map(|pod| pod.to_string());
    let all = early.iter().chain(&alone).chain(&after);
    for one in all.filter(|one| one.status == 200) {
        let pod = one.body.split(' ').next().unwrap_or_default();
        assert!(ours.iter().any(|ours| ours == pod), "{}", one.body);
    }
}

#[rstest]
#[case::pool(None)]
#[case::behind_a_hop(Some("20s"))]
#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_closed_sends_nothing_to_pods_once_its_picker_is_gone(
    #[case] limit: Option<&str>,
) {
    let bed = Bed::start(mk_change(false, limit)).await;
    let picker = Killable::start(&bed, EPP, bed.at(POD_B));
    bed.until("/pool", 200).await;
    bed.seen.take();
    let Outcomes {
        early,
        in_flight: _,
        failed,
        alone,
        after,
        times: _,
    } = lose_picker(&bed, picker).await;
    assert_eq!(failed, 0, "the picker was there");
    for one in &early {
        assert!(
            [200, 503].contains(&one.status),
            "{} {}",
            one.status,
            one.body
        );
    }
    for one in alone.iter().chain(&after) {
        assert_eq!(one.status, 503, "{}", one.body);
    }
    let served = early.iter().filter(|one| one.status == 200);
    assert!(served.count() > 2 * CLIENTS);
    let paths = bed.seen.take_paths();
    assert!(!paths.iter().any(|path| path == LATE), "a pod was reached");
}
