//! Budgets by themselves.

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::requests::{CountedBody, REQUEST_LIMIT};
use super::*;

const MIB: usize = 1 << 20;

fn mk_limits() -> Limits {
    Limits {
        connections: 10,
        of_gateway: 2,
        names: 100,
        requests: 100,
        responses: 128 << 10,
        memory: 300 * MIB,
        reserve: 128 << 10,
        answer: Duration::ZERO,
    }
}

fn mk_budgets() -> Budgets {
    Budgets::new(mk_limits())
}

fn mk_gateway(name: &str) -> Key {
    Key::new("ns", name)
}

/// The limit of memory in the chart is 1 GiB. The sum is in the documents.
#[test]
fn all_gateways_leave_memory_for_the_rest_of_the_program() {
    let bytes = Limits::default().bytes();
    assert!(bytes < 700 << 20, "{bytes}");
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway.md");
    let pages = std::fs::read_to_string(pages).unwrap();
    let said = format!("| all of this, for all Gateways | {} MiB", bytes >> 20);
    assert!(pages.contains(&said), "{said}");
}

#[test]
fn all_of_a_gateway_have_one_budget_and_others_another() {
    let budgets = mk_budgets();
    let (one, same) = (budgets.of(&mk_gateway("a")), budgets.of(&mk_gateway("a")));
    let (mut first, mut second) = (one.names(), same.names());
    assert_eq!(first.set(70), Ok(()));
    assert_eq!(second.set(31), Err(Full));
    assert_eq!(second.set(30), Ok(()));
    // who has too much may have less, and gets no more
    assert_eq!(first.set(71), Err(Full));
    assert_eq!(first.set(60), Ok(()));
    assert_eq!(second.set(40), Ok(()));
    assert_eq!(budgets.of(&mk_gateway("b")).names().set(100), Ok(()));
    drop(second);
    assert_eq!(first.set(100), Ok(()));
    let connections = [one.connection(), same.connection()];
    assert!(connections.iter().all(Result::is_ok));
    assert_eq!(one.connection().err(), Some(Full));
    drop((one, same, first, connections));
    // nobody holds it: it is forgotten, and begins anew
    let anew = budgets.of(&mk_gateway("a"));
    assert_eq!(anew.names().set(100), Ok(()));
    budgets.of(&mk_gateway("c"));
    assert!(budgets.by_gateway.lock().len() <= 2);
}

#[test]
fn responses_wait_in_order_until_others_are_answered() {
    let budget = mk_budgets().of(&mk_gateway("a"));
    let turn = |bytes: usize| Arc::clone(&budget).turn(Kind::Cluster, bytes);
    let first = turn(20 << 10).now_or_never().unwrap();
    assert!(!budget.is_waited_for());
    let mut large = Box::pin(turn(1 << 20)); // more than there ever is
    assert!(large.as_mut().now_or_never().is_none());
    assert!(budget.is_waited_for());
    // the endpoints that Envoy needs to answer are sent
    let endpoints = Arc::clone(&budget).turn(Kind::Endpoints, 20 << 10);
    assert!(endpoints.now_or_never().is_some());
    // it is not passed over
    let mut small = Box::pin(turn(100));
    assert!(small.as_mut().now_or_never().is_none());
    drop(first);
    let large = large.as_mut().now_or_never().unwrap();
    assert!(small.as_mut().now_or_never().is_none());
    drop(large);
    assert!(small.as_mut().now_or_never().is_some());
    assert!(!budget.is_waited_for());
}

/// Whoever has the certificates of some Gateways and takes all that can be had leaves some for the next one.
#[test]
fn memory_of_all_gateways_is_bounded_and_each_leaves_some_for_the_next() {
    let limits = Limits {
        names: usize::MAX,
        memory: 90 * MIB,
        ..mk_limits()
    };
    let budgets = Budgets::new(limits);
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let all = names.map(|name| budgets.of(&mk_gateway(name)));
    let mut shares = Vec::new();
    let mut had = Vec::new();
    for budget in &all {
        let mut share = budget.names();
        let has = (1..=90)
            .take_while(|mib| share.set(mib * MIB).is_ok())
            .count();
        let used = budgets.common.memory.used();
        assert!(used <= limits.memory, "{used}");
        had.push(has);
        shares.push(share);
    }
    // two thirds of what the others have not, to whole MiB
    assert_eq!(had, [60, 20, 6, 2, 1, 0, 0]);
    // something smaller is there all the same
    let mut small = all.last().unwrap().names();
    assert_eq!(small.set(MIB / 2), Ok(()));
    // and all of it once it was given back
    drop(shares);
    assert_eq!(small.set(59 * MIB), Ok(()));
    drop(small);
    assert_eq!(budgets.common.memory.used(), 0);
}

/// Connections, names, requests and responses of a Gateway are of the same memory.
#[test]
fn all_kinds_are_of_the_memory() {
    let limits = Limits {
        memory: 3 * CONNECTION,
        names: usize::MAX,
        ..mk_limits()
    };
    let budgets = Budgets::new(limits);
    let budget = budgets.of(&mk_gateway("a"));
    let used = || budgets.common.memory.used();
    let connection = budget.connection().unwrap();
    assert_eq!(used(), CONNECTION);
    let mut names = budget.names();
    assert_eq!(names.set(1_000), Ok(()));
    assert_eq!(used(), CONNECTION + 1_000);
    let turn = Arc::clone(&budget).turn(Kind::Routes, 1_000);
    let turn = turn.now_or_never().unwrap();
    assert_eq!(used(), CONNECTION + 3_000);
    let mut requests = Share::of(&budget.requests);
    assert_eq!(requests.set(100), Ok(()));
    assert_eq!(used(), CONNECTION + 3_000 + 100 * DECODED);
    // where there is too little for one, nothing of it is taken
    assert_eq!(budget.connection().err(), Some(Full));
    assert_eq!(budget.connections.used.load(Ordering::Relaxed), 1);
    drop((connection, names, turn, requests));
    assert_eq!(used(), 0);
    assert!(budget.connection().is_ok());
}

/// Others have the memory. One response after the other is sent all the same.
#[test]
fn responses_without_memory_are_sent_from_the_reserve() {
    let limits = Limits {
        names: usize::MAX,
        responses: MIB,
        memory: 60 << 10,
        ..mk_limits()
    };
    let budgets = Budgets::new(limits);
    let (other, own) = (budgets.of(&mk_gateway("a")), budgets.of(&mk_gateway("b")));
    let mut others = other.names();
    assert_eq!(others.set(40 << 10), Ok(()));
    let turn = |kind: Kind| Box::pin(Arc::clone(&own).turn(kind, 20 << 10));
    let first = turn(Kind::Cluster).now_or_never().unwrap();
    let mut second = turn(Kind::Cluster);
    assert!(second.as_mut().now_or_never().is_none());
    assert!(other.is_waited_for(), "who does not answer is cut off");
    // the endpoints that Envoy needs to answer are sent
    let endpoints = turn(Kind::Endpoints).now_or_never();
    assert!(endpoints.is_some());
    drop(first);
    let second = second.as_mut().now_or_never().unwrap();
    assert!(!other.is_waited_for());
    // memory that was given back is used as well
    let mut third = turn(Kind::Cluster);
    assert!(third.as_mut().now_or_never().is_none());
    drop((others, endpoints));
    assert!(third.as_mut().now_or_never().is_some());
    drop(second);
}

/// A request that is received, frame by frame.
struct Receiving {
    frames: mpsc::Sender<usize>,
    body: CountedBody,
    unread: Unread,
}

impl Receiving {
    fn begin(budget: &Arc<Budget>) -> Self {
        let (frames, received) = mpsc::channel::<usize>(8);
        let body = ReceiverStream::new(received)
            .map(|bytes| Ok::<_, Status>(http_body::Frame::data(Bytes::from(vec![0; bytes]))));
        let body = tonic::body::Body::new(StreamBody::new(body));
        let unread = budget.unread();
        let body = CountedBody::new(body, Arc::clone(budget), unread.clone());
        Self {
            frames,
            body,
            unread,
        }
    }

    /// Sends a frame of so many bytes, and reads it: how many have come, or why none; none while it waits.
    fn receive(&mut self, bytes: usize) -> Option<Result<usize, Code>> {
        self.frames.try_send(bytes).unwrap();
        self.read()
    }

    fn read(&mut self) -> Option<Result<usize, Code>> {
        let read = self.body.frame().now_or_never()?;
        let read = read.expect("the body goes on");
        let bytes = read.map(|frame| frame.into_data().unwrap().len());
        Some(bytes.map_err(|status| status.code()))
    }
}

fn mk_budget_of_requests(memory: usize) -> (Budgets, Arc<Budget>) {
    let limits = Limits {
        memory,
        ..mk_limits()
    };
    let budgets = Budgets::new(limits);
    let budget = budgets.of(&mk_gateway("a"));
    (budgets, budget)
}

/// All are in the middle of a request when there is no room left: one after the other is received to its end.
#[tokio::test(start_paused = true)]
async fn requests_wait_for_room() {
    let (_budgets, budget) = mk_budget_of_requests(300 * MIB);
    let [mut a, mut b, mut c] = [(); 3].map(|()| Receiving::begin(&budget));
    for one in [&mut a, &mut b] {
        assert_eq!(one.receive(50), Some(Ok(50)));
    }
    // it is larger than all that there is for several
    assert_eq!(a.receive(3_000), Some(Ok(3_000)));
    // what it had is free for others
    assert_eq!(c.receive(50), Some(Ok(50)));
    assert_eq!(b.receive(60), None);
    assert_eq!(c.receive(60), None);
    assert_eq!(a.receive(1_000), Some(Ok(1_000)));
    a.unread.clear();
    assert_eq!(b.read(), Some(Ok(60)));
    assert_eq!(c.read(), None);
    // one that goes away leaves its room to others
    drop(b);
    assert_eq!(c.read(), Some(Ok(60)));
    assert_eq!(a.receive(110), None);
    c.unread.clear();
    assert_eq!(a.read(), Some(Ok(110)));
}

/// Neither one that is received for ever nor one that waits for it is waited for longer than the limit.
#[tokio::test(start_paused = true)]
async fn a_request_without_room_ends_in_time() {
    let (_budgets, budget) = mk_budget_of_requests(300 * MIB);
    let [mut slow, mut other] = [(); 2].map(|()| Receiving::begin(&budget));
    assert_eq!(slow.receive(101), Some(Ok(101)));
    tokio::time::advance(REQUEST_LIMIT / 2).await;
    assert_eq!(other.receive(101), None);
    tokio::time::advance(REQUEST_LIMIT / 2 - Duration::from_millis(1)).await;
    assert_eq!(slow.read(), None);
    tokio::time::advance(Duration::from_millis(2)).await;
    assert_eq!(slow.read(), Some(Err(Code::ResourceExhausted)));
    drop(slow);
    assert_eq!(other.read(), Some(Ok(101)));
    // the next request of the stream has its own time
    other.unread.clear();
    tokio::time::advance(2 * REQUEST_LIMIT).await;
    assert_eq!(other.receive(101), Some(Ok(101)));
}

/// Others have the memory.
#[tokio::test(start_paused = true)]
async fn a_request_without_memory_waits_for_it() {
    let (budgets, budget) = mk_budget_of_requests(150 * MIB);
    let other = budgets.of(&mk_gateway("b"));
    let taken = Taken::of(&other.memory, 50 * MIB).unwrap();
    let mut one = Receiving::begin(&budget);
    assert_eq!(one.receive(101), None);
    drop(taken);
    // even all of it is too little for a request of any size
    assert_eq!(one.read(), None);
    tokio::time::advance(REQUEST_LIMIT + Duration::from_millis(1)).await;
    assert_eq!(one.read(), Some(Err(Code::ResourceExhausted)));

    let (budgets, budget) = mk_budget_of_requests(220 * MIB);
    let other = budgets.of(&mk_gateway("b"));
    let taken = Taken::of(&other.memory, 50 * MIB).unwrap();
    let mut one = Receiving::begin(&budget);
    assert_eq!(one.receive(101), None);
    drop(taken);
    assert_eq!(one.read(), Some(Ok(101)));
}
