//! The control channel of the real Envoy: both ends show certificates, and probes see whether it serves.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::fixture::{add_route, key, mk_listener, mk_ref, mk_route, mk_rule};
use crate::metrics::Denied;
use crate::world::World;

use super::bed::{Bed, Channel, Edges, free_port};
use super::credentials::Credentials;
use super::envoy::Envoy;

/// All that both ends show and trust is replaced while Envoy runs: it reads its files again.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_reads_its_renewed_certificate_and_authority() {
    let mut bed = Bed::launch(
        |_| {},
        Channel::Secure(Credentials::new("uid-gw")),
        Edges::Good,
    )
    .await;
    bed.wait("Envoy is ready", || async {
        bed.probe().await == Some(200)
    })
    .await;
    bed.until("/", 200).await;
    let connected = bed.proxies.connected();
    assert!(connected[0].authenticated, "{connected:?}");

    if let Some(credentials) = &mut bed.credentials {
        credentials.replace();
    }
    bed.restart_ads().await;
    let rule = mk_rule("/renewed", vec![mk_ref("service", "nothing", 1)]);
    add_route(&mut bed.world, mk_route("renewed", vec![rule]));
    bed.publish();
    // the route leads nowhere, which only the new configuration says
    bed.until("/renewed", 500).await;
    let connected = bed.proxies.connected();
    assert_eq!(connected.len(), 1, "{connected:?}");
    assert_eq!(connected[0].gateway, key("gw"));
    assert!(bed.envoy.child.try_wait().unwrap().is_none(), "Envoy runs");
}

/// Envoy takes a first answer that it refuses for an answer; ready it is all the same only with an edge.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_that_refuses_its_edges_is_not_ready_until_it_has_one() {
    let mut bed = Bed::launch(|_| {}, Channel::Shared, Edges::Spoiled).await;
    bed.wait("Envoy refuses the edge", || async { bed.refused() > 0 })
        .await;
    bed.wait("Envoy has all else", || async {
        bed.proxies.connected()[0].current
    })
    .await;
    stays_unready(&bed.envoy).await;

    bed.edges = Edges::Good;
    bed.publish();
    bed.wait("Envoy is ready", || async {
        bed.probe().await == Some(200)
    })
    .await;
    assert_eq!(bed.get("/").await.status, 200);
    assert_eq!(bed.refused(), 0);
}

/// It would be ready by itself within milliseconds.
async fn stays_unready(envoy: &Envoy) {
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert_eq!(envoy.probe().await, None);
        sleep(Duration::from_millis(50)).await;
    }
}

/// As in a rolling update whose new Envoys refuse one of two edges: the old one is not replaced.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_that_refuses_what_another_serves_is_not_ready() {
    let port = free_port().await;
    let two = |world: &mut World| {
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        let mut second = mk_listener("second", port, None);
        second.from = gateway.listeners[0].from.clone();
        gateway.listeners.push(second);
    };
    let mut bed = Bed::launch(two, Channel::Shared, Edges::Good).await;
    bed.wait("Envoy is ready", || async {
        bed.probe().await == Some(200)
    })
    .await;
    bed.edges = Edges::SpoiledOf(port);
    bed.publish();
    bed.wait(
        "Envoy refuses the new edge, and serves on the old one",
        || async { bed.refused() == 1 },
    )
    .await;
    let another = bed.another_envoy().await;
    bed.wait("the other has all it can have", || async {
        let connected = bed.proxies.connected();
        connected.len() == 2 && connected.iter().all(|one| one.current)
    })
    .await;
    stays_unready(&another).await;

    bed.edges = Edges::Good;
    bed.publish();
    bed.wait("the other is ready", || async {
        another.probe().await == Some(200)
    })
    .await;
}

/// Envoy has the certificate of a Gateway that had the name before. It asks over new connections, until it has that of now.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_of_a_former_gateway_is_served_once_it_has_its_new_certificate() {
    let credentials = Credentials::new("uid-former");
    let mut bed = Bed::launch(|_| {}, Channel::Secure(credentials), Edges::Good).await;
    bed.wait("Envoy was denied", || async {
        bed.metrics.denied_so_far(Denied::Identity) > 1
    })
    .await;
    assert_eq!(bed.proxies.connected().len(), 0);
    if let Some(credentials) = &mut bed.credentials {
        credentials.renew("uid-gw");
    }
    bed.wait("Envoy is ready", || async {
        bed.probe().await == Some(200)
    })
    .await;
}
