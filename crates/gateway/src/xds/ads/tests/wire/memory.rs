//! Envoys of a Gateway for which others leave no memory.

use std::time::Duration;

use tokio::time::timeout;

use super::port::{Port, Shown, begin};
use crate::xds::ads::budget::Limits;
use crate::xds::proto::discovery::DeltaDiscoveryRequest;

/// The other Gateway has names of 1 MB. The stream of this one waits with what it asks for beyond what it has, until that is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_memory_keeps_what_it_has_and_waits() {
    let limits = Limits {
        memory: 2 << 20,
        ..Limits::default()
    };
    let port = Port::open(limits, true).await;
    let own = port.connect(Shown::Of("west", "gw")).await.unwrap();
    let mut own = begin(own, "ns/gw").await.unwrap();
    own.ask(10, 1_000).await;
    let first = own.next().await.unwrap();
    assert_eq!(first.removed_resources.len(), 10);
    let answer = DeltaDiscoveryRequest {
        type_url: first.type_url,
        response_nonce: first.nonce,
        ..DeltaDiscoveryRequest::default()
    };
    own.requests.send(answer).await.unwrap();
    let other = port.connect(Shown::Of("west", "other")).await.unwrap();
    let mut other = begin(other, "ns/other").await.unwrap();
    other.ask(1_000, 1_000).await;
    other.next().await.unwrap();
    own.ask(500, 1_200).await;
    let early = timeout(Duration::from_secs(2), own.responses.message()).await;
    assert!(early.is_err(), "{early:?}");
    drop(other);
    assert_eq!(own.next().await.unwrap().removed_resources.len(), 500);
}
