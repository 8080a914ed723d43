//! Which cluster of an import gets requests, as the selection says it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use moment::{Clock, Moment};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fixture::{add_policy, key};
use crate::metrics::ObserveMetrics;
use crate::model::{build, policies};
use crate::observe::{FACTS, Observers};
use crate::select::inputs::{self, Surroundings};
use crate::select::{ClusterId, Fact, OrderRule, Policy, Selector, Strategy};
use crate::world::World;

use super::bed::{Bed, LIMIT, REMOTE_EPP, REMOTE_POD, SECOND_EPP};
use super::epp::Behaviour;
use super::loss::Killable;

/// The import of `east` and `south`, each with an endpoint picker of its own.
fn two(world: &mut World) {
    let import = world.imports.get_mut(&key("llm")).unwrap();
    let mut south = import.clusters[0].clone();
    south.name = "south".into();
    south.picker.as_mut().unwrap().addresses = vec![SECOND_EPP.to_string()];
    import.clusters.push(south);
}

/// First `east`, then `south`.
fn ordered(world: &mut World) {
    two(world);
    let policy = Policy {
        strategy: Strategy::ActivePassive(OrderRule {
            order: vec!["east".to_owned(), "south".to_owned()],
            failback: Duration::from_secs(30),
        }),
        ..Policy::default()
    };
    add_policy(world, policy);
}

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

/// The selector takes over how requests are shared.
fn begin(bed: &mut Bed, selector: &mut Selector) {
    let (models, _) = build(&bed.world, &bed.settings);
    let imports = models[0].imports.iter();
    let imports = imports.map(|(key, import)| (key.clone(), import.as_ref()));
    let policies = policies::of_imports(&bed.world);
    selector.sync(inputs::wanted(&imports.collect(), &policies, &bed.world));
    selector.advance(at(0));
    publish(bed, selector);
}

fn publish(bed: &mut Bed, selector: &Selector) {
    bed.selection = Some(selector.selection());
    bed.publish();
}

/// Two probes of the cluster, which is what its health needs.
fn probe(selector: &mut Selector, cluster: &str, result: Result<(), &'static str>, now: Moment) {
    for _ in 0..2 {
        let cluster = ClusterId {
            import: key("llm"),
            cluster: cluster.to_owned(),
        };
        selector.record(Fact::Probed { cluster, result }, now);
    }
}

/// Until Envoy has what was published.
async fn settle(bed: &Bed) {
    bed.wait("Envoy has it all", || async {
        let connected = bed.proxies.connected();
        !connected.is_empty() && connected.iter().all(|proxy| proxy.current)
    })
    .await;
}

/// Its endpoint picker would answer: only what the gateway says keeps requests from it.
#[tokio::test(flavor = "multi_thread")]
async fn unhealthy_cluster_gets_no_request() {
    let mut bed = Bed::start(two).await;
    let pick = bed.at(REMOTE_POD);
    let east = bed.epp(REMOTE_EPP, pick.clone()).await;
    let south = bed.epp(SECOND_EPP, pick).await;
    bed.wait("both clusters are asked", || async {
        bed.get("/import").await;
        east.asked() > 0 && south.asked() > 0
    })
    .await;
    let mut selector = Selector::default();
    begin(&mut bed, &mut selector);
    probe(&mut selector, "east", Err("no connection"), at(1));
    publish(&mut bed, &selector);
    settle(&bed).await;
    let before = (east.asked(), south.asked());
    for _ in 0..20 {
        assert_eq!(bed.post("/import", 100).await.status, 200);
    }
    assert_eq!((east.asked(), south.asked()), (before.0, before.1 + 20));
    probe(&mut selector, "east", Ok(()), at(2));
    publish(&mut bed, &selector);
    bed.wait("requests are back", || async {
        bed.get("/import").await;
        east.asked() > before.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_endpoint_picker_is_noticed_and_no_request_fails() {
    let mut bed = Bed::start(two).await;
    let pick = bed.at(REMOTE_POD);
    let east = bed.epp(REMOTE_EPP, pick.clone()).await;
    let south = bed.epp(SECOND_EPP, pick).await;
    let mut selector = Selector::default();
    begin(&mut bed, &mut selector);
    bed.wait("both clusters are asked", || async {
        bed.get("/import").await;
        east.asked() > 0 && south.asked() > 0
    })
    .await;
    let (sender, mut facts) = mpsc::channel(FACTS);
    let metrics = ObserveMetrics::register(&mut Registry::default());
    let (mut observers, clock) = (Observers::new(sender, metrics), Clock::start());
    {
        let (models, _) = build(&bed.world, &bed.settings);
        let imports = models[0].imports.iter();
        let imports = imports.map(|(key, import)| (key.clone(), import.as_ref()));
        let around = Surroundings {
            world: &bed.world,
            endpoints: &bed.endpoints,
            pools: BTreeMap::new(),
            health_service: "health",
            deny: &bed.settings.deny_cidrs,
        };
        let jobs = inputs::jobs(&imports.collect(), &BTreeMap::new(), &around);
        assert_eq!(jobs.len(), 2);
        observers.sync(jobs);
    }
    east.stop.cancel();
    let detect = async {
        loop {
            assert_eq!(bed.post("/import", 100).await.status, 200);
            let wait = Duration::from_millis(50);
            let Ok(fact) = timeout(wait, facts.recv()).await else {
                continue;
            };
            if selector.record(fact.unwrap(), clock.now()) {
                return;
            }
        }
    };
    timeout(LIMIT, detect).await.expect("it is noticed in time");
    let shares = selector.selection();
    let share = |cluster| shares.of(&key("llm"), cluster).unwrap().weight;
    assert_eq!((share("east"), share("south")), (0, 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_over_to_the_next_cluster_of_the_order_and_return_later() {
    let mut bed = Bed::start(ordered).await;
    let pick = bed.at(REMOTE_POD);
    let east = Killable::start(&bed, REMOTE_EPP, pick.clone());
    let south = bed.epp(SECOND_EPP, pick.clone()).await;
    let mut selector = Selector::default();
    begin(&mut bed, &mut selector);
    settle(&bed).await;
    bed.wait("the first cluster answers", || async {
        bed.get("/import").await;
        east.epp.asked() > 0
    })
    .await;
    let before = south.asked();
    for _ in 0..10 {
        assert_eq!(bed.post("/import", 1000).await.status, 200);
    }
    assert_eq!(south.asked(), before, "the second one stands by");

    // It dies, and nobody has noticed yet.
    east.kill().await;
    for bytes in [0, 1000, 300_000] {
        let answer = bed.post("/import", bytes).await;
        assert_eq!(answer.status, 200, "{bytes} bytes: {answer:?}");
    }
    assert!(south.asked() >= before + 3);
    probe(&mut selector, "east", Err("no connection"), at(2));
    publish(&mut bed, &selector);
    settle(&bed).await;
    assert_eq!(bed.post("/import", 1000).await.status, 200);

    // It is back, and has to stay healthy for a while.
    let again = bed.epp(REMOTE_EPP, pick).await;
    probe(&mut selector, "east", Ok(()), at(10));
    selector.advance(at(39));
    publish(&mut bed, &selector);
    settle(&bed).await;
    for _ in 0..10 {
        assert_eq!(bed.post("/import", 1000).await.status, 200);
    }
    assert_eq!(again.asked(), 0);
    selector.advance(at(40));
    publish(&mut bed, &selector);
    bed.wait("requests are back", || async {
        assert_eq!(bed.post("/import", 1000).await.status, 200);
        again.asked() > 0
    })
    .await;
    settle(&bed).await;
    let before = south.asked();
    for _ in 0..10 {
        assert_eq!(bed.post("/import", 1000).await.status, 200);
    }
    assert_eq!(south.asked(), before);
}

/// The picker has them all and has answered none, so each can be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn requests_at_an_endpoint_picker_that_is_killed_are_answered_by_the_next_cluster() {
    const IN_FLIGHT: usize = 40;
    let mut bed = Bed::start(ordered).await;
    let pick = bed.at(REMOTE_POD);
    let east = Killable::start(&bed, REMOTE_EPP, pick.clone());
    let south = bed.epp(SECOND_EPP, pick).await;
    let mut selector = Selector::default();
    begin(&mut bed, &mut selector);
    settle(&bed).await;
    bed.wait("the first cluster answers", || async {
        bed.get("/import").await.status == 200 && east.epp.asked() > 0
    })
    .await;
    east.epp.set(Behaviour::Hang);
    let (before, stood_by) = (east.epp.asked(), south.asked());
    let load = join_all((0..IN_FLIGHT).map(|_| bed.post("/import", 1000)));
    let kill = async {
        bed.wait("all requests are at the first picker", || async {
            east.epp.asked() == before + IN_FLIGHT
        })
        .await;
        assert_eq!(south.asked(), stood_by);
        east.kill().await;
    };
    let (answers, ()) = tokio::join!(load, kill);
    for answer in &answers {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(south.asked(), stood_by + IN_FLIGHT);
}
