use futures::{FutureExt, stream};
use prometheus_client::{encoding::text::encode, registry::Registry};
use scheduling::EndpointId;

use super::*;

/// What came of some updates.
struct After {
    pool: Pool,
    readiness: Readiness,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    page: String,
}

fn mk_member(name: &str) -> Member {
    Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: name.into(),
            rank: 0,
            uid: name.into(),
        },
        address: "10.0.0.1:8000".parse().unwrap(),
        engine: "".into(),
        labels: Arc::default(),
    }
}

fn mk_gone() -> Update {
    Update::Gone {
        pool: "ns/llm".to_owned(),
    }
}

fn mk_failed() -> Update {
    Update::Failed {
        kind: Kind::Pod,
        reason: "ConnectionLost",
        error: "down".to_owned(),
    }
}

async fn after(updates: Vec<Update>) -> After {
    after_with(updates, std::future::ready(()).boxed()).await
}

async fn after_with(updates: Vec<Update>, rest: BoxFuture<'static, ()>) -> After {
    let mut registry = Registry::default();
    let (sender, snapshots) = watch::channel(None);
    let (pool, readiness) = (Pool::default(), Readiness::new());
    readiness.set(Part::Metrics, true);
    let membership = Membership {
        updates: stream::iter(updates).boxed(),
        pool: pool.clone(),
        readiness: readiness.clone(),
        metrics: Metrics::register(&mut registry),
        snapshots: sender,
        clock: Clock::start(),
        rest,
    };
    membership.run().await;
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    After {
        pool,
        readiness,
        snapshots,
        page,
    }
}

impl After {
    fn has(&self, line: &str) -> bool {
        self.page.lines().any(|one| one == line)
    }

    fn members(&self) -> Option<usize> {
        let members = self
            .snapshots
            .borrow()
            .as_ref()
            .map(|snapshot| snapshot.endpoints().len());
        assert_eq!(members.unwrap_or(0), self.pool.snapshot().endpoints().len());
        members
    }
}

#[tokio::test(start_paused = true)]
async fn members_make_it_ready_even_if_there_are_none() {
    let listed = Update::Listed(Kind::Pool);
    let known = after(vec![listed.clone()]).await;
    assert_eq!((known.members(), known.readiness.is_ready()), (None, false));
    assert!(
        known.has("epp_discovery_synced{kind=\"InferencePool\"} 1"),
        "{}",
        known.page
    );
    let none = after(vec![listed, Update::Members(vec![])]).await;
    assert_eq!((none.members(), none.readiness.is_ready()), (Some(0), true));
}

#[tokio::test(start_paused = true)]
async fn members_alone_do_not_make_it_ready() {
    let updates = vec![Update::Members(vec![mk_member("a")])];
    let known = after_with(updates, std::future::pending().boxed()).await;
    assert_eq!(
        (known.members(), known.readiness.is_ready()),
        (Some(1), false)
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_counted_and_costs_no_member() {
    let odd = Update::Odd {
        kind: Kind::File,
        name: "a".to_owned(),
        error: "odd".to_owned(),
    };
    let failed = after(vec![
        Update::Members(vec![mk_member("a")]),
        mk_failed(),
        odd,
    ])
    .await;
    assert_eq!(
        (failed.members(), failed.readiness.is_ready()),
        (Some(1), true)
    );
    for kind in ["Pod", "file"] {
        let line = format!("epp_discovery_errors_total{{kind=\"{kind}\"}} 1");
        assert!(failed.has(&line), "{}", failed.page);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_gone_has_no_members_and_is_not_ready() {
    let updates = vec![
        Update::Listed(Kind::Pod),
        Update::Members(vec![mk_member("a")]),
        mk_gone(),
    ];
    let gone = after(updates).await;
    assert_eq!(
        (gone.members(), gone.readiness.is_ready()),
        (Some(0), false)
    );
    assert!(
        gone.has("epp_discovery_synced{kind=\"Pod\"} 0"),
        "{}",
        gone.page
    );
    let never = after(vec![mk_gone()]).await;
    assert_eq!(
        never.members(),
        None,
        "the scraper's first round waits for members"
    );
}

#[tokio::test(start_paused = true)]
async fn a_source_that_ends_ends_the_task() {
    assert!(after(vec![]).now_or_never().is_some());
}
