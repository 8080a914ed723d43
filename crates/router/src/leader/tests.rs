use std::sync::Arc;

use kv_router::{Limits, Policy, Preset};
use lease::ByHand;
use processor_api::RouteRequest;
use rstest::rstest;
use tokio::{task::JoinSet, time::sleep};

use super::*;
use crate::{
    metrics::Metrics,
    pool::tests::{mk_member, mk_pool},
    service,
};

/// A Router whose lease is moved by hand.
struct Router {
    clock: Clock,
    lease: ByHand,
    follower: Follower,
    stop: CancellationToken,
    begun: Arc<std::sync::atomic::AtomicU32>,
    tasks: JoinSet<()>,
}

impl Router {
    fn start() -> Self {
        let clock = Clock::start();
        let pool = Arc::new(mk_pool(Limits::default()));
        pool.replace(&[mk_member("a", "1", 1, 0)], 1);
        let service = Service::new(service::Parts {
            pool,
            policy: Policy {
                weights: Preset::Isthmus.weights(),
                temperature: 0.0,
                busy_tokens: None,
            },
            clock,
            metrics: Metrics::default(),
            follows_events: false,
            routes: None,
        });
        let health = Health::new(&[LEADER]);
        let warm = Warm::new(health.clone());
        let calls = Calls::new(service.clone(), None, None);
        let follower = Follower::new(warm, health, calls, service, &mut Registry::default());
        let (lease, claim) = ByHand::new(clock);
        let stop = CancellationToken::new();
        let begun = Arc::<std::sync::atomic::AtomicU32>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (follower, stop, begun) = (follower.clone(), stop.clone(), Arc::clone(&begun));
            let begin = move |stop: CancellationToken| {
                begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                (async move { stop.cancelled().await }, claim.clone())
            };
            async move { contend(begin, &follower, &stop).await }
        });
        Self {
            clock,
            lease,
            follower,
            stop,
            begun,
            tasks,
        }
    }

    fn begun(&self) -> u32 {
        self.begun.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn bookings(&self) -> usize {
        self.follower.service.pool().workers.loads.bookings()
    }
}

#[tokio::test(start_paused = true)]
async fn only_who_has_workers_contends_and_only_who_leads_is_ready() {
    let router = Router::start();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(router.begun(), 0);
    router.follower.warm.set(true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (router.begun(), router.follower.health.is_ready()),
        (1, false)
    );
    router.lease.hold(Duration::from_mins(1));
    sleep(Duration::from_secs(1)).await;
    assert!(router.follower.health.is_ready());
    assert_eq!(router.follower.leads.get(), 1);
    router.lease.give_up();
    sleep(Duration::from_secs(1)).await;
    assert!(!router.follower.health.is_ready());
    assert_eq!(router.follower.leads.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_workers_gives_up_after_a_while() {
    let router = Router::start();
    router.follower.warm.set(true);
    router.lease.hold(Duration::from_mins(10));
    sleep(Duration::from_secs(1)).await;
    router.follower.warm.set(false);
    sleep(PATIENCE.mul_f64(0.9)).await;
    router.follower.warm.set(true);
    sleep(PATIENCE * 2).await;
    assert_eq!(router.begun(), 1, "workers were back in time");
    router.follower.warm.set(false);
    sleep(PATIENCE * 2).await;
    assert_eq!(router.follower.leads.get(), 0);
    router.follower.warm.set(true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(router.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn bookings_of_an_earlier_time_are_over_for_a_leader() {
    let router = Router::start();
    router.follower.warm.set(true);
    let request = RouteRequest {
        token_ids: (0..40).collect(),
        ..RouteRequest::default()
    };
    let service = &router.follower.service;
    let route = || service.route(&request, router.clock.now(), &mut rand::rng());
    route().unwrap();
    assert_eq!(router.bookings(), 1);
    router.lease.hold(Duration::from_mins(1));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(router.bookings(), 0);
    route().unwrap();
    router.lease.hold(Duration::from_mins(1));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(router.bookings(), 1, "the term goes on");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_the_contention() {
    let mut router = Router::start();
    router.follower.warm.set(true);
    router.lease.hold(Duration::from_mins(10));
    sleep(Duration::from_secs(1)).await;
    router.stop.cancel();
    let ended = timeout(Duration::from_secs(5), router.tasks.join_next()).await;
    ended.expect("it ends").unwrap().unwrap();
}

#[rstest]
#[case(
    Source::Pool { namespace: "llm".into(), name: "llama".into() },
    Some("router-llm-llama.isthmus.dev")
)]
#[case(
    Source::Selector {
        namespace: "llm".into(),
        selector: "app=x".parse().unwrap(),
        ports: "8000".parse().unwrap(),
    },
    Some("router-llm-standalone-")
)]
#[case(Source::File { path: "e".into(), watch: true }, None)]
fn the_lease_is_that_of_the_pool(#[case] source: Source, #[case] begin: Option<&str>) {
    let lease = LeaseName::of(&source);
    match (lease, begin) {
        (Ok(lease), Some(begin)) => {
            assert_eq!(lease.namespace, "llm");
            assert!(lease.name.starts_with(begin), "{}", lease.name);
        }
        (Err(error), None) => assert!(error.to_string().contains("a file of workers"), "{error}"),
        (lease, begin) => panic!("{lease:?} and not {begin:?}"),
    }
}
