//! The control channel of the real Envoy: both ends show certificates, and probes see whether it serves.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::fixture::{add_route, key, mk_ref, mk_route, mk_rule};

use super::bed::Bed;
use super::credentials::Credentials;

/// All that both ends show and trust is replaced while Envoy runs: it reads its files again.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_reads_its_renewed_certificate_and_authority() {
    let mut bed = Bed::launch(|_| {}, Some(Credentials::new()), false, false).await;
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
    let mut bed = Bed::launch(|_| {}, None, true, false).await;
    bed.wait("Envoy refuses the edge", || async { bed.refused() > 0 })
        .await;
    bed.wait("Envoy has all else", || async {
        bed.proxies.connected()[0].current
    })
    .await;
    // it would be ready by itself within milliseconds
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert_eq!(bed.probe().await, None);
        sleep(Duration::from_millis(50)).await;
    }

    bed.is_spoiled = false;
    bed.publish();
    bed.wait("Envoy is ready", || async {
        bed.probe().await == Some(200)
    })
    .await;
    assert_eq!(bed.get("/").await.status, 200);
    assert_eq!(bed.refused(), 0);
}
