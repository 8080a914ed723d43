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

/// Requests that each client may lose: the one that the picker had, and some that Envoy sends to it until its main thread has
/// taken it out, which takes a while where the machine is busy. Without that all of the load would be lost.
const LOST_OF_EACH: usize = 5;

/// From the end of the picker until no request may be lost.
const SETTLED: Duration = Duration::from_secs(3);

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
    /// It began after the picker was killed.
    is_late: bool,
    status: u16,
    body: String,
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

/// One request of each size; late ones have a path of their own.
async fn send_each(bed: &Bed, is_late: bool) -> Vec<Outcome> {
    let path = if is_late { LATE } else { "/pool/early" };
    let mut outcomes = Vec::new();
    for bytes in BODIES {
        let method = if bytes == 0 { "GET" } else { "POST" };
        let answer = bed.send(method, path, "", bytes).await;
        outcomes.push(Outcome {
            is_late,
            status: answer.status,
            body: answer.body,
        });
    }
    outcomes
}

/// All outcomes until [`SETTLED`] after the end of the picker, which ends when the load has reached it, and those after that.
async fn lose_picker(bed: &Bed, picker: Killable) -> (Vec<Outcome>, Vec<Outcome>) {
    let killed: Cell<Option<Instant>> = Cell::new(None);
    let settled = || killed.get().is_some_and(|at| at.elapsed() > SETTLED);
    let load = join_all((0..CLIENTS).map(|_| async {
        let started = Instant::now();
        let mut outcomes = Vec::new();
        while !settled() {
            assert!(started.elapsed() < LIMIT, "the picker is not reached");
            outcomes.extend(send_each(bed, killed.get().is_some()).await);
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
        picker.kill().await;
        killed.set(Some(Instant::now()));
    };
    let (load, ()) = tokio::join!(load, kill);
    let after = join_all((0..CLIENTS).map(|_| send_each(bed, true))).await;
    let flat = |lists: Vec<Vec<Outcome>>| lists.into_iter().flatten().collect();
    (flat(load), flat(after))
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
    let (during, after) = lose_picker(&bed, picker).await;
    let lost: Vec<u16> = during
        .iter()
        .map(|one| one.status)
        .filter(|status| *status != 200)
        .collect();
    assert!(
        lost.len() <= LOST_OF_EACH * CLIENTS,
        "{} lost: {lost:?}",
        lost.len()
    );
    assert!(during.iter().any(|one| one.is_late && one.status == 200));
    for one in &after {
        assert_eq!(one.status, 200, "{}", one.body);
    }
    let ours = [POD_A, POD_B].map(|pod| pod.to_string());
    for one in during.iter().chain(&after).filter(|one| one.status == 200) {
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
    let (during, after) = lose_picker(&bed, picker).await;
    for one in during.iter().chain(&after) {
        let wanted = if one.is_late { &[503][..] } else { &[200, 503] };
        assert!(wanted.contains(&one.status), "{} {}", one.status, one.body);
    }
    let early = during
        .iter()
        .filter(|one| !one.is_late && one.status == 200);
    assert!(early.count() > 2 * CLIENTS);
    let paths = bed.seen.take_paths();
    assert!(!paths.iter().any(|path| path == LATE), "a pod was reached");
}
