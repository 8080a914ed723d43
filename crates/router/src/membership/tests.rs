use std::time::Duration;

use discovery::Kind;
use futures::stream;
use kv_router::{Limits, Preset};
use moment::Clock;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::*;
use crate::{
    events::FirstRank,
    metrics::Metrics,
    pool::tests::{mk_member, mk_pool},
    service::Parts,
};

/// A membership that is told what happened by hand.
struct Running {
    updates: mpsc::Sender<Update>,
    service: Service,
    health: Health,
    warm: Warm,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Running {
    fn start() -> Self {
        Self::following(None)
    }

    fn following(events: Option<EventPorts>) -> Self {
        let service = Service::new(Parts {
            pool: Arc::new(mk_pool(Limits::default())),
            policy: kv_router::Policy {
                weights: Preset::Isthmus.weights(),
                temperature: 0.0,
                busy_tokens: None,
            },
            clock: Clock::start(),
            metrics: Metrics::default(),
            follows_events: false,
            routes: None,
        });
        let (updates, receiver) = mpsc::channel(8);
        let health = Health::new(&[]);
        let warm = Warm::new(health.clone());
        let membership = Membership {
            updates: stream::unfold(receiver, async |mut it| Some((it.recv().await?, it))).boxed(),
            service: service.clone(),
            events,
            ranks: 1,
            warm: warm.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(membership.run());
        Self {
            updates,
            service,
            health,
            warm,
            tasks,
        }
    }

    async fn send(&self, update: Update) {
        self.updates.send(update).await.unwrap();
    }

    async fn until_workers(&self, count: usize) {
        let seen = async {
            while self.service.pool().table().workers().len() != count {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(5), seen)
            .await
            .expect("the workers");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_while_there_is_a_worker() {
    let running = Running::start();
    assert!(!running.health.is_ready());
    running.send(Update::Listed(Kind::Pod)).await;
    running.send(Update::Members(Vec::new())).await;
    running
        .send(Update::Members(vec![mk_member("a", "1", 1, 0)]))
        .await;
    running.warm.until(true).await;
    assert!(running.health.is_ready());
    let failed = Update::Failed {
        kind: Kind::Pod,
        reason: "x",
        error: "x".to_owned(),
    };
    running.send(failed).await;
    let gone = Update::Gone {
        pool: "default/llama".to_owned(),
    };
    running.send(gone).await;
    running.warm.until(false).await;
    assert!(!running.health.is_ready());
    assert_eq!(running.service.pool().table().workers().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn slots_of_workers_that_went_are_used_again_and_match_nothing_of_theirs() {
    let running = Running::start();
    let mut slots = Vec::new();
    for life in ["1", "2", "3"] {
        running
            .send(Update::Members(vec![mk_member("a", life, 1, 0)]))
            .await;
        running.until_workers(1).await;
        slots.push(running.service.pool().table().slots()[0]);
        running.send(Update::Members(Vec::new())).await;
        running.until_workers(0).await;
        // as the sweep does
        running.service.pool().workers.index.sweep(100);
    }
    assert!(slots.iter().all(|slot| slot.index == 0), "{slots:?}");
    assert_eq!(
        slots.iter().map(|it| it.generation).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(running.service.pool().workers.index.stats().workers, 0);
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_source_alone() {
    let mut running = Running::start();
    running
        .send(Update::Members(vec![mk_member("a", "1", 1, 0)]))
        .await;
    running.until_workers(1).await;
    let waiting = timeout(Duration::from_mins(1), running.tasks.join_next()).await;
    assert!(waiting.is_err());
    drop(running.updates);
    assert!(running.tasks.join_next().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_once_it_knows_what_its_workers_have_cached_or_after_five_seconds() {
    let following = async || {
        let running = Running::following(Some(EventPorts {
            events: 5557,
            replay: None,
            first_rank: FirstRank::Fixed(0),
            ranks: 1,
        }));
        let member = mk_member("a", "1", 1, 0);
        running.send(Update::Members(vec![member])).await;
        running.until_workers(1).await;
        sleep(Duration::from_secs(1)).await;
        assert!(!running.health.is_ready());
        running
    };
    let start = Instant::now();
    let running = following().await;
    running.warm.until(true).await;
    assert_eq!(start.elapsed(), CATCH_UP);

    let start = Instant::now();
    let running = following().await;
    let pool = running.service.pool();
    for (state, is_ready) in [
        (StreamState::Replaying, false),
        (StreamState::NoEvents, true),
    ] {
        pool.table().workers()[0].ranks[0].events.set_state(state);
        pool.stream_changed.notify_one();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(running.health.is_ready(), is_ready, "{state:?}");
    }
    assert!(start.elapsed() < CATCH_UP);
}
