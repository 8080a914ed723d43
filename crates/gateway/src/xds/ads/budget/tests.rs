//! Budgets by themselves.

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::requests::{CountedBody, GRACE, REQUEST_LIMIT, ROOM_LIMIT};
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
    assert_eq!(second.set(31), Err(Full::Own));
    assert_eq!(second.set(30), Ok(()));
    // who has too much may have less, and gets no more
    assert_eq!(first.set(71), Err(Full::Own));
    assert_eq!(first.set(60), Ok(()));
    assert_eq!(second.set(40), Ok(()));
    assert_eq!(budgets.of(&mk_gateway("b")).names().set(100), Ok(()));
    drop(second);
    assert_eq!(first.set(100), Ok(()));
    let connections = [one.connection(), same.connection()];
    assert!(connections.iter().all(Result::is_ok));
    assert_eq!(one.connection().err(), Some(Full::Own));
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
    assert!(!budget.is_waited_for(&first));
    let mut large = Box::pin(turn(1 << 20)); // more than there ever is
    assert!(large.as_mut().now_or_never().is_none());
    assert!(budget.is_waited_for(&first));
    // the endpoints that Envoy needs to answer are sent
    let endpoints = Arc::clone(&budget).turn(Kind::Endpoints, 20 << 10);
    let endpoints = endpoints.now_or_never().unwrap();
    // it is not passed over
    let mut small = Box::pin(turn(100));
    assert!(small.as_mut().now_or_never().is_none());
    drop(first);
    let large = large.as_mut().now_or_never().unwrap();
    assert!(small.as_mut().now_or_never().is_none());
    drop(large);
    assert!(small.as_mut().now_or_never().is_some());
    assert!(!budget.is_waited_for(&endpoints));
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
    assert_eq!(budget.connection().err(), Some(Full::Common));
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
    let small = |budget: &Arc<Budget>| Arc::clone(budget).turn(Kind::Routes, 100).now_or_never();
    let of_other = small(&other).unwrap();
    let mut others = other.names();
    assert_eq!(others.set((40 << 10) - 200), Ok(()));
    let third = budgets.of(&mk_gateway("c"));
    let of_third = small(&third).unwrap();
    let turn = |kind: Kind| Box::pin(Arc::clone(&own).turn(kind, 20 << 10));
    let first = turn(Kind::Cluster).now_or_never().unwrap();
    let mut second = turn(Kind::Cluster);
    assert!(second.as_mut().now_or_never().is_none());
    assert!(other.is_waited_for(&of_other), "it has the memory");
    assert!(own.is_waited_for(&first), "it has the reserve");
    assert!(!third.is_waited_for(&of_third), "it has little");
    // the endpoints that Envoy needs to answer are sent
    let endpoints = turn(Kind::Endpoints).now_or_never();
    assert!(endpoints.is_some());
    drop(first);
    let second = second.as_mut().now_or_never().unwrap();
    assert!(!other.is_waited_for(&of_other));
    // memory that was given back is used as well
    let mut third = turn(Kind::Cluster);
    assert!(third.as_mut().now_or_never().is_none());
    drop((others, endpoints, of_other, of_third));
    assert!(third.as_mut().now_or_never().is_some());
    drop(second);
}

/// A request that is received, frame by frame.
struct Receiving {
    frames: mpsc::Sender<usize>,
    body: CountedBody,
    unread: Unread,
    close: CancellationToken,
}

impl Receiving {
    fn begin(budget: &Arc<Budget>) -> Self {
        let (frames, received) = mpsc::channel::<usize>(8);
        let body = ReceiverStream::new(received)
            .map(|bytes| Ok::<_, Status>(http_body::Frame::data(Bytes::from(vec![0; bytes]))));
        let body = tonic::body::Body::new(StreamBody::new(body));
        let close = CancellationToken::new();
        let unread = budget.unread(close.clone());
        let body = CountedBody::new(body, Arc::clone(budget), unread.clone());
        Self {
            frames,
            body,
            unread,
            close,
        }
    }

    /// Sends a frame of so many bytes, and reads it: how many have come, or why none; none while it waits.
    async fn receive(&mut self, bytes: usize) -> Option<Result<usize, Code>> {
        self.frames.try_send(bytes).unwrap();
        self.read().await
    }

    async fn read(&mut self) -> Option<Result<usize, Code>> {
        for _ in 0..8 {
            if let Some(read) = self.body.frame().now_or_never() {
                let read = read.expect("the body goes on");
                let bytes = read.map(|frame| frame.into_data().unwrap().len());
                return Some(bytes.map_err(|status| status.code()));
            }
            others_run().await;
        }
        None
    }
}

/// The tasks that can go on do so; no time passes.
async fn others_run() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
    others_run().await;
}

/// Two Gateways.
fn mk_two() -> [Arc<Budget>; 2] {
    let budgets = mk_budgets();
    ["a", "b"].map(|name| budgets.of(&mk_gateway(name)))
}

/// All are in the middle of a request when there is no room left: one after the other is received to its end.
#[tokio::test(start_paused = true)]
async fn requests_wait_for_room() {
    let [budget, _] = mk_two();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Receiving::begin(&budget));
    for one in [&mut a, &mut b] {
        assert_eq!(one.receive(50).await, Some(Ok(50)));
    }
    // it is larger than all that there is for several
    assert_eq!(a.receive(3_000).await, Some(Ok(3_000)));
    // what it had is free for others
    assert_eq!(c.receive(50).await, Some(Ok(50)));
    assert_eq!(b.receive(60).await, None);
    assert_eq!(c.receive(60).await, None);
    assert_eq!(a.receive(1_000).await, Some(Ok(1_000)));
    a.unread.clear();
    assert_eq!(b.read().await, Some(Ok(60)));
    assert_eq!(c.read().await, None);
    // one that goes away leaves its room to others
    drop(b);
    assert_eq!(c.read().await, Some(Ok(60)));
    assert_eq!(a.receive(110).await, None);
    c.unread.clear();
    assert_eq!(a.read().await, Some(Ok(110)));
}

/// Neither one that is received for ever nor one that waits for it is waited for longer than the limits, of whichever Gateway it is.
#[tokio::test(start_paused = true)]
async fn a_request_without_room_ends_in_time() {
    let [one, another] = mk_two();
    let [mut slow, mut next] = [&one, &another].map(Receiving::begin);
    assert_eq!(slow.receive(101).await, Some(Ok(101)));
    let mut last = Receiving::begin(&one);
    assert_eq!(next.receive(101).await, None);
    assert_eq!(last.receive(101).await, None);
    pass(REQUEST_LIMIT - Duration::from_millis(1)).await;
    assert_eq!(slow.read().await, None);
    pass(Duration::from_millis(2)).await;
    assert_eq!(slow.read().await, Some(Err(Code::ResourceExhausted)));
    drop(slow);
    // its time begins when it has the place
    assert_eq!(next.read().await, Some(Ok(101)));
    pass(REQUEST_LIMIT - Duration::from_millis(1)).await;
    assert_eq!(next.receive(101).await, Some(Ok(101)));
    assert_eq!(last.read().await, None);
    next.unread.clear();
    assert_eq!(last.read().await, Some(Ok(101)));
    // the next request of the stream has its own time
    last.unread.clear();
    pass(2 * ROOM_LIMIT).await;
    assert_eq!(last.receive(101).await, Some(Ok(101)));
    assert_eq!(next.receive(101).await, None);
    pass(ROOM_LIMIT + Duration::from_millis(1)).await;
    assert_eq!(next.read().await, Some(Err(Code::ResourceExhausted)));
}

/// The client takes no responses, so that nobody reads its request.
#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_polls_ends_with_its_connection() {
    let [budget, other] = mk_two();
    let [mut held, mut read] = [(); 2].map(|()| Receiving::begin(&budget));
    assert_eq!(read.receive(101).await, Some(Ok(101)));
    read.unread.clear();
    assert_eq!(held.receive(101).await, Some(Ok(101)));
    let mut waiting = Receiving::begin(&other);
    assert_eq!(waiting.receive(101).await, None);
    pass(REQUEST_LIMIT + GRACE / 2).await;
    assert!(!held.close.is_cancelled());
    pass(GRACE).await;
    assert!(held.close.is_cancelled());
    assert!(!read.close.is_cancelled(), "its request was read");
    pass(ROOM_LIMIT - REQUEST_LIMIT).await;
    assert!(waiting.close.is_cancelled());
}

/// Others have all the memory that they can have.
#[tokio::test(start_paused = true)]
async fn a_request_of_any_size_passes_without_memory() {
    let limits = Limits {
        names: usize::MAX,
        ..mk_limits()
    };
    let budgets = Budgets::new(limits);
    let mut shares = Vec::new();
    for name in ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"] {
        let mut share = budgets.of(&mk_gateway(name)).names();
        let sizes = (0..30).rev().map(|power| 1_usize << power);
        for bytes in sizes {
            let _ = share.set(share.has + bytes);
        }
        shares.push(share);
    }
    let budget = budgets.of(&mk_gateway("a"));
    assert_eq!(budget.names().set(2_000), Err(Full::Common));
    let mut large = Receiving::begin(&budget);
    for _ in 0..4 {
        assert_eq!(large.receive(MIB).await, Some(Ok(MIB)));
    }
}
