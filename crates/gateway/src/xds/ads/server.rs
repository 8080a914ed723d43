//! The state machine on the wire: one tonic stream per Envoy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request as Call, Response as Answer, Status, Streaming};
use tracing::{debug, info, warn};

use crate::metrics::AdsMetrics;
use crate::text::quoted;
use crate::world::Key;
use crate::xds::proto::core::Node;
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryService;
use crate::xds::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use crate::xds::proto::{core, google};
use crate::xds::{Kind, Snapshot};
use moment::Clock;

use super::{Ads, Effect, Input, Refusal, Request, Response};

/// An Envoy that opens a stream says at once who it is.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The first Envoy that has everything we send (`selected_host_key`).
const OLDEST_ENVOY: (u32, u32, u32) = (1, 38, 2);

/// The newest snapshot of each Gateway; a Gateway that is not there keeps what it has.
pub(crate) type Snapshots = Arc<BTreeMap<Key, Arc<Snapshot>>>;

/// What all streams share.
#[derive(Clone)]
pub(crate) struct AdsServer {
    pub(crate) snapshots: watch::Receiver<Snapshots>,
    pub(crate) proxies: Proxies,
    pub(crate) metrics: AdsMetrics,
    pub(crate) clock: Clock,
    pub(crate) removal_delay: Duration,
    /// Ends every stream, so that Envoys go to another replica.
    pub(crate) drain: CancellationToken,
    /// Nobody but Envoys reads what they are sent.
    pub(crate) private_channel: bool,
}

/// The connected Envoys and what they refused.
#[derive(Clone, Default)]
pub(crate) struct Proxies {
    state: Arc<Mutex<ProxiesState>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct ProxiesState {
    next: u64,
    connected: BTreeMap<u64, Proxy>,
    refused: BTreeMap<Key, BTreeMap<(Kind, String, u64), Refused>>,
}

/// Why a resource is refused.
#[derive(Clone, Debug)]
struct Refused {
    message: String,
    /// It is tried again, so not kept from other Envoys.
    passing: bool,
}

/// One connected Envoy, for `/debug/xds` and metrics.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    pub(crate) gateway: Key,
    pub(crate) node: String,
    pub(crate) version: String,
    /// It has all it can have of the newest snapshot.
    pub(crate) current: bool,
    /// Acknowledged versions by type and name.
    pub(crate) acknowledged: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

/// One stream; the proxy is forgotten with it.
struct Session {
    server: AdsServer,
    requests: Streaming<DeltaDiscoveryRequest>,
    gateway: Key,
    id: u64,
    ads: Ads,
    given: Option<Arc<Snapshot>>,
    /// Private keys go over no stream without it.
    may_have_secrets: bool,
    /// At most one response per type and step.
    outbox: VecDeque<Response>,
}

type Responses = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

// === impl AdsServer ===

#[tonic::async_trait]
impl AggregatedDiscoveryService for AdsServer {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;
    type DeltaAggregatedResourcesStream = Responses;

    async fn stream_aggregated_resources(
        &self,
        _: Call<Streaming<DiscoveryRequest>>,
    ) -> Result<Answer<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented(
            "only delta ADS is served: set api_type: DELTA_GRPC",
        ))
    }

    async fn delta_aggregated_resources(
        &self,
        call: Call<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Answer<Responses>, Status> {
        let mut requests = call.into_inner();
        let first = tokio::time::timeout(FIRST_REQUEST_LIMIT, requests.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no first request"))??
            .ok_or_else(|| Status::invalid_argument("the stream ended before a request"))?;
        let (gateway, proxy) = identify(first.node.as_ref())?;
        info!(%gateway, node = proxy.node, version = proxy.version, "Envoy connected");
        let quarantine = self.proxies.quarantine(&gateway);
        let mut session = Session {
            id: self.proxies.connect(proxy),
            ads: Ads::new(self.removal_delay, quarantine),
            server: self.clone(),
            requests,
            gateway,
            given: None,
            may_have_secrets: self.may_have_secrets(),
            outbox: VecDeque::new(),
        };
        session.take_snapshot();
        session.step(Input::Request(decode(first)));
        let responses = stream::unfold(session, |mut session| async move {
            let response = session.next().await?;
            Some((Ok(response), session))
        });
        Ok(Answer::new(Box::pin(responses)))
    }
}

impl AdsServer {
    /// Whether a stream gets private keys: the one place that decides it.
    fn may_have_secrets(&self) -> bool {
        self.private_channel
    }
}

/// The Gateway that the Envoy serves, from `node.cluster`.
fn identify(node: Option<&Node>) -> Result<(Key, Proxy), Status> {
    let node = node.ok_or_else(|| Status::invalid_argument("the first request has no node"))?;
    let gateway = match node.cluster.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Key::new(namespace, name)
        }
        _ => {
            let text = format!(
                "node.cluster is {}: expected <namespace>/<name> of a Gateway",
                quoted(&node.cluster)
            );
            return Err(Status::invalid_argument(text));
        }
    };
    let version = match &node.user_agent_version_type {
        Some(core::node::UserAgentVersionType::UserAgentBuildVersion(build)) => build
            .version
            .as_ref()
            .map(|v| (v.major_number, v.minor_number, v.patch)),
        _ => None,
    };
    if let Some(version) = version.filter(|version| *version < OLDEST_ENVOY) {
        let text = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
        let (version, oldest) = (text(version), text(OLDEST_ENVOY));
        let text = format!("Envoy {version} is too old: {oldest} or newer is needed");
        return Err(Status::failed_precondition(text));
    }
    let version = version.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    let proxy = Proxy {
        gateway: gateway.clone(),
        node: node.id.clone(),
        version: version.unwrap_or_else(|| "unknown".to_owned()),
        current: false,
        acknowledged: BTreeMap::new(),
    };
    Ok((gateway, proxy))
}

fn decode(request: DeltaDiscoveryRequest) -> Request {
    let initial = request.initial_resource_versions.into_iter();
    Request {
        kind: Kind::of_type_url(&request.type_url),
        subscribe: request.resource_names_subscribe,
        unsubscribe: request.resource_names_unsubscribe,
        // A version we did not write is none of ours, 0 as good as any other.
        initial: initial
            .map(|(name, version)| (name, u64::from_str_radix(&version, 16).unwrap_or(0)))
            .collect(),
        nonce: request.response_nonce.parse().ok(),
        error: request.error_detail.map(|status| status.message),
    }
}

fn encode(response: Response) -> DeltaDiscoveryResponse {
    let resources = response
        .resources
        .into_iter()
        .map(|(name, resource)| Resource {
            name,
            version: version_text(resource.version),
            resource: Some(google::Any {
                type_url: response.kind.type_url().to_owned(),
                value: resource.bytes.to_vec(),
            }),
            ..Resource::default()
        });
    DeltaDiscoveryResponse {
        resources: resources.collect(),
        type_url: response.kind.type_url().to_owned(),
        removed_resources: response.removed,
        nonce: response.nonce.to_string(),
        ..DeltaDiscoveryResponse::default()
    }
}

pub(crate) fn version_text(version: u64) -> String {
    format!("{version:016x}")
}

// === impl Session ===

impl Session {
    /// The next response; none when the stream is over.
    async fn next(&mut self) -> Option<DeltaDiscoveryResponse> {
        loop {
            if let Some(response) = self.outbox.pop_front() {
                let encoded = encode(response);
                self.server.metrics.sent(&encoded);
                return Some(encoded);
            }
            let clock = self.server.clock;
            let wake = self.ads.wake_at(clock.now());
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.server.drain.cancelled() => return None,
                message = self.requests.message() => match message {
                    Ok(Some(request)) => self.step(Input::Request(decode(request))),
                    Ok(None) => return None,
                    Err(status) => {
                        debug!(gateway = %self.gateway, %status, "Envoy's stream broke");
                        return None;
                    }
                },
                changed = self.server.snapshots.changed() => {
                    changed.ok()?;
                    self.take_snapshot();
                }
                () = sleep => self.step(Input::Tick),
            }
        }
    }

    fn take_snapshot(&mut self) {
        let newest = self
            .server
            .snapshots
            .borrow_and_update()
            .get(&self.gateway)
            .cloned();
        let Some(newest) = newest else { return };
        if !self
            .given
            .as_ref()
            .is_some_and(|given| Arc::ptr_eq(given, &newest))
        {
            self.given = Some(Arc::clone(&newest));
            let sent = if self.may_have_secrets || newest.secrets.is_empty() {
                newest
            } else {
                Arc::new(newest.without_secrets())
            };
            self.step(Input::Snapshot(sent));
        }
    }

    fn step(&mut self, input: Input) {
        for effect in self.ads.on(input, self.server.clock.now()) {
            match effect {
                Effect::Send(response) => self.outbox.push_back(response),
                Effect::Refused(refusal) => {
                    let Refusal {
                        kind,
                        name,
                        message,
                        passing,
                        ..
                    } = &refusal;
                    let kind = kind.as_str();
                    warn!(gateway = %self.gateway, kind, name, message, passing, "Envoy refused a resource");
                    self.server.metrics.refused(refusal.kind);
                    self.server.proxies.refuse(&self.gateway, refusal);
                }
                Effect::Recovered(kind, name, version) => {
                    info!(gateway = %self.gateway, kind = kind.as_str(), name, "Envoy took it at last");
                    let id = (kind, name, version);
                    self.server.proxies.recover(&self.gateway, &id);
                }
            }
        }
        self.server.proxies.update(self.id, &self.ads);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.proxies.disconnect(self.id);
        info!(gateway = %self.gateway, "Envoy disconnected");
    }
}

// === impl Proxies ===

impl Proxies {
    /// Comes back when what Envoys refuse has changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn connected(&self) -> Vec<Proxy> {
        self.state.lock().connected.values().cloned().collect()
    }

    /// What Envoys refuse of these snapshots; older refusals are forgotten.
    pub(crate) fn refused(
        &self,
        snapshots: &BTreeMap<Key, Arc<Snapshot>>,
    ) -> BTreeMap<Key, BTreeMap<(Kind, String, u64), String>> {
        let mut state = self.state.lock();
        state.refused.retain(|gateway, refused| {
            let snapshot = snapshots.get(gateway);
            refused.retain(|(kind, name, version), _| {
                let now = snapshot.and_then(|snapshot| snapshot.of(*kind).get(name));
                now.is_some_and(|resource| resource.version == *version)
            });
            !refused.is_empty()
        });
        let messages = state.refused.iter().map(|(gateway, refused)| {
            let refused = refused.iter();
            let refused = refused.map(|(id, why)| (id.clone(), why.message.clone()));
            (gateway.clone(), refused.collect())
        });
        messages.collect()
    }

    fn quarantine(&self, gateway: &Key) -> BTreeSet<(Kind, String, u64)> {
        let state = self.state.lock();
        let refused = state.refused.get(gateway).into_iter();
        let lasting = refused.flatten().filter(|(_, why)| !why.passing);
        lasting.map(|(id, _)| id.clone()).collect()
    }

    fn recover(&self, gateway: &Key, id: &(Kind, String, u64)) {
        let mut state = self.state.lock();
        let known = state.refused.get_mut(gateway);
        let was_refused = known.is_some_and(|refused| refused.remove(id).is_some());
        drop(state);
        if was_refused {
            self.changed.notify_one();
        }
    }

    fn refuse(&self, gateway: &Key, refusal: Refusal) {
        let Refusal {
            kind,
            name,
            version,
            message,
            passing,
        } = refusal;
        let mut state = self.state.lock();
        let refused = state.refused.entry(gateway.clone()).or_default();
        refused.insert((kind, name, version), Refused { message, passing });
        drop(state);
        self.changed.notify_one();
    }

    fn connect(&self, proxy: Proxy) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        state.connected.insert(id, proxy);
        id
    }

    fn update(&self, id: u64, ads: &Ads) {
        let acknowledged = Kind::ALL
            .iter()
            .map(|kind| (kind.as_str(), ads.acknowledged(*kind)));
        if let Some(proxy) = self.state.lock().connected.get_mut(&id) {
            proxy.current = ads.is_current();
            proxy.acknowledged = acknowledged.collect();
        }
    }

    fn disconnect(&self, id: u64) {
        self.state.lock().connected.remove(&id);
    }
}
