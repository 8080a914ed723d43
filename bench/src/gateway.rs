//! An Envoy as the gateway's control channel sees one: it asks for all there is, and accepts it.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use envoy_types::pb::envoy::{
    config::{
        cluster::v3::{Cluster, cluster::ClusterDiscoveryType, cluster::DiscoveryType},
        core::v3::Node,
    },
    service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
};
use h2::SendStream;
use prost::Message;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::grpc::{Messages, grpc_frame};

/// A connected Envoy; it leaves when dropped.
pub struct Envoy {
    arrivals: mpsc::Receiver<Arrival>,
    tasks: JoinSet<Result<()>>,
}

/// A response that came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When all of it was here.
    pub at: Instant,
    /// Names of the resources in it.
    pub names: Vec<String>,
    /// Its size as a gRPC message.
    pub bytes: usize,
}

/// Responses that have come and are not looked at yet. With more than this many, the next one waits.
const UNREAD: usize = 65_536;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const STREAM: &str =
    "http://gateway/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The table that the listener of Envoy's bootstrap asks for.
const READY: &str = "ready";
/// As large as a response may be.
const WINDOW: u32 = 64 << 20;
/// Flag and length before a message.
const PREFIX: usize = 5;

// === impl Envoy ===

impl Envoy {
    /// Connects as an Envoy of the Gateway, `namespace/name`.
    /// # Errors
    /// When nobody listens there, or no stream is served.
    pub async fn connect(address: SocketAddr, gateway: &str) -> Result<Self> {
        let socket = TcpStream::connect(address).await.context("the ADS port")?;
        socket.set_nodelay(true)?;
        let handshake = h2::client::Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .enable_push(false)
            .handshake(socket);
        let (connection, driver): (h2::client::SendRequest<Bytes>, _) = handshake.await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { driver.await.context("the connection") });
        let mut connection = connection.ready().await?;
        let head = http::Request::post(STREAM)
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .body(())?;
        let (response, mut requests) = connection.send_request(head, false)?;
        let node = Node {
            id: "bench".to_owned(),
            cluster: gateway.to_owned(),
            ..Node::default()
        };
        let first = DeltaDiscoveryRequest {
            node: Some(node),
            ..asks(CLUSTER, Vec::new())
        };
        requests.send_data(grpc_frame(&first)?, false)?;
        for (kind, names) in [(LISTENER, Vec::new()), (ROUTES, vec![READY.to_owned()])] {
            requests.send_data(grpc_frame(&asks(kind, names))?, false)?;
        }
        let (sender, arrivals) = mpsc::channel(UNREAD);
        tasks.spawn(async move {
            let response = response.await.context("no answer")?;
            ensure!(response.status() == 200, "status {}", response.status());
            let replies = Messages::new(response.into_body());
            follow(requests, replies, &sender).await
        });
        Ok(Self { arrivals, tasks })
    }

    /// The next response.
    /// # Errors
    /// When none comes by then, or the stream ends.
    pub async fn next(&mut self, until: Instant) -> Result<Arrival> {
        if let Ok(Some(arrival)) = timeout_at(until, self.arrivals.recv()).await {
            return Ok(arrival);
        }
        match self.tasks.try_join_next() {
            Some(ended) => bail!("the stream ended: {:?}", ended?),
            None => bail!("no response in time"),
        }
    }

    /// The next response with a resource of this name.
    /// # Errors
    /// When none comes within the limit, or the stream ends.
    pub async fn wait_for(&mut self, name: &str, limit: Duration) -> Result<Arrival> {
        let until = Instant::now() + limit;
        loop {
            let arrival = self.next(until).await;
            let arrival = arrival.with_context(|| format!("waiting for {name}"))?;
            if arrival.names.iter().any(|one| one == name) {
                return Ok(arrival);
            }
        }
    }

    /// Bytes of the responses that have come, until none has for this long.
    pub async fn bytes_until_quiet(&mut self, quiet: Duration) -> usize {
        let mut bytes = 0;
        while let Ok(arrival) = self.next(Instant::now() + quiet).await {
            bytes += arrival.bytes;
        }
        bytes
    }
}

/// Accepts each response, and asks for what it leads to.
async fn follow(
    mut requests: SendStream<Bytes>,
    mut replies: Messages,
    arrivals: &mpsc::Sender<Arrival>,
) -> Result<()> {
    let mut asked: BTreeSet<(&str, String)> = BTreeSet::new();
    while let Some(response) = replies.next::<DeltaDiscoveryResponse>().await? {
        let arrival = Arrival {
            at: Instant::now(),
            names: response
                .resources
                .iter()
                .map(|it| it.name.clone())
                .collect(),
            bytes: PREFIX + response.encoded_len(),
        };
        let accepted = DeltaDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            ..asks(&response.type_url, Vec::new())
        };
        requests.send_data(grpc_frame(&accepted)?, false)?;
        let mut names = Vec::new();
        let kind = match &*response.type_url {
            CLUSTER => ENDPOINTS,
            LISTENER => ROUTES,
            _ => "",
        };
        for resource in &response.resources {
            let leads_on = match kind {
                ENDPOINTS => {
                    let bytes = resource
                        .resource
                        .as_ref()
                        .map_or(&[][..], |any| &any.value[..]);
                    let cluster = Cluster::decode(bytes)?;
                    let by_eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
                    cluster.cluster_discovery_type == Some(by_eds)
                }
                // a listener's table has its name
                ROUTES => true,
                _ => false,
            };
            if leads_on && asked.insert((kind, resource.name.clone())) {
                names.push(resource.name.clone());
            }
        }
        if !names.is_empty() {
            requests.send_data(grpc_frame(&asks(kind, names))?, false)?;
        }
        if arrivals.send(arrival).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// A request for these besides those of before; the first for none is for all.
fn asks(kind: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}
