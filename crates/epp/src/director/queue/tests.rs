use std::{sync::atomic::AtomicU32, time::Duration};

use bytes::Bytes;
use scheduling::{Booking, Registry, Snapshot};
use tokio::{task::yield_now, time::sleep};

use super::*;
use crate::{extproc::Answer, extproc::Route, fixtures::mk_member};

/// A pool of one endpoint, saturated while so many requests are there.
struct Pool {
    snapshot: Snapshot,
    limit: AtomicU32,
    regime: Mutex<Regime>,
}

impl Pool {
    fn new(limit: u32) -> Self {
        let member = mk_member("a", "10.0.0.1:80".parse().unwrap());
        Self {
            snapshot: Registry::default().update(vec![member], Moment::START),
            limit: AtomicU32::new(limit),
            regime: Mutex::new(Regime::Serving),
        }
    }

    fn in_flight(&self) -> u32 {
        self.snapshot.members()[0].endpoint.load().in_flight()
    }
}

impl Dispatch<&'static str> for Pool {
    fn saturation(&self) -> f64 {
        f64::from(self.in_flight()) / f64::from(self.limit.load(Ordering::Relaxed))
    }

    fn regime(&self) -> Regime {
        *self.regime.lock()
    }

    fn pick(&self, name: &'static str) -> Picking {
        let endpoint = Arc::clone(&self.snapshot.members()[0].endpoint);
        let transit = Duration::ZERO;
        Picking::Made(Ok(Box::new(Answer {
            route: Route {
                destination: Some(Bytes::from_static(name.as_bytes())),
                ..Route::default()
            },
            endpoints: [Arc::clone(&endpoint)].into_iter().collect(),
            booking: Booking::new(endpoint, 0, None, Moment::START, transit),
            tap: None,
            transcoder: None,
            session: None,
            prefix: None,
            learned: None,
            llm: None,
            staged: None,
            scheduling: Duration::ZERO,
        })))
    }
}

struct Bed {
    queue: Queue<&'static str>,
    pool: Arc<Pool>,
    clock: Clock,
    _running: tokio::task::JoinSet<()>,
}

impl Bed {
    fn start(limit: u32) -> Self {
        let queue = Queue::new(Config::default());
        let (pool, clock) = (Arc::new(Pool::new(limit)), Clock::start());
        let mut running = tokio::task::JoinSet::new();
        let (same, of) = (Queue(Arc::clone(&queue.0)), Arc::clone(&pool));
        running.spawn(async move { same.run(&*of, clock).await });
        Self {
            queue,
            pool,
            clock,
            _running: running,
        }
    }

    fn push(&self, name: &'static str, priority: i32) -> Waiting<&'static str> {
        let place = Request {
            priority,
            fairness_id: "f".into(),
            bytes: 1,
            ttl: None,
        };
        self.queue.push(place, name, self.clock.now()).ok().unwrap()
    }
}

fn made(picking: Picking) -> Result<Box<Answer>, Reject> {
    match picking {
        Picking::Made(made) => made,
        Picking::Asked(_) | Picking::Staged(_) => panic!("nobody else is asked"),
    }
}

fn name(answer: &Picking) -> &[u8] {
    let Picking::Made(answer) = answer else {
        panic!("nobody else is asked")
    };
    answer.as_ref().unwrap().route.destination.as_ref().unwrap()
}

#[tokio::test(start_paused = true)]
async fn requests_go_on_as_others_end_the_important_ones_first() {
    let bed = Bed::start(1);
    let first = bed.push("first", 0).await;
    let (low, high) = (bed.push("low", -1), bed.push("high", 1));
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!((bed.pool.in_flight(), bed.queue.len()), (1, 2));
    drop(first);
    bed.queue.wake();
    let high = high.await;
    assert_eq!((name(&high), bed.queue.len()), (&b"high"[..], 1));
    drop(high);
    bed.queue.wake();
    assert_eq!(name(&low.await), b"low");
    assert_eq!((bed.pool.in_flight(), bed.queue.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_leaves_the_queue_and_gives_its_pick_back() {
    let bed = Bed::start(1);
    let first = bed.push("first", 0).await;
    drop(bed.push("gone", 0));
    assert_eq!(bed.queue.len(), 0);
    let picked_and_gone = bed.push("picked and gone", 0);
    drop(first);
    bed.queue.wake();
    while bed.queue.len() > 0 {
        yield_now().await;
    }
    drop(picked_and_gone);
    assert_eq!(bed.pool.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_told_so() {
    let bed = Bed::start(1);
    let _first = bed.push("first", 0).await;
    let start = tokio::time::Instant::now();
    assert_eq!(
        made(bed.push("late", 0).await).unwrap_err(),
        Reject::Expired { empty: false }
    );
    assert_eq!(start.elapsed().as_secs(), 60);
    *bed.pool.regime.lock() = Regime::Empty;
    let waiting = bed.push("late too", 0);
    assert_eq!(
        made(waiting.await).unwrap_err(),
        Reject::Expired { empty: true }
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_and_a_larger_one_takes_more() {
    let bed = Bed::start(1);
    let _first = bed.push("first", 0).await;
    let limited = |max_requests| Config {
        max_requests: Some(max_requests),
        ..Config::default()
    };
    bed.queue.reconfigure(limited(1));
    let _second = bed.push("second", 0);
    let place = || Request {
        priority: 0,
        fairness_id: "f".into(),
        bytes: 1,
        ttl: None,
    };
    let refused = bed.queue.push(place(), "third", bed.clock.now());
    assert!(matches!(refused, Err(Reject::QueueFull(_))));
    bed.queue.reconfigure(limited(2));
    let _third = bed
        .queue
        .push(place(), "third", bed.clock.now())
        .ok()
        .unwrap();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(bed.queue.len(), 2);
}
