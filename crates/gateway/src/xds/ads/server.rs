//! The state machine on the wire: one tonic stream per Envoy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request as Call, Response as Answer, Status, Streaming};
use tracing::{debug, info, warn};

use crate::metrics::{AdsMetrics, Denied};
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

use super::answers::Unanswered;
use super::budget::{Budget, Budgets, Full, GRACE, LONGEST_REQUEST, Share, Unread};
use super::connections::{Peer, Who};
use super::owned;
use super::proxies::{Joined, Others, Proxies, Proxy, TooMany};
use super::view::MAX_NAMES;
use super::{Ads, Effect, Input, Refusal, Request, Response};

/// An Envoy that opens a stream says at once who it is. A request that finds no room ends for that reason, not for this one.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(LONGEST_REQUEST.as_secs() + 2);

/// Between two tries of a request for whose names there is no memory.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);

/// A node id is the names of a pod and of its namespace.
const MAX_NODE_ID: usize = 512;

/// The first Envoy that has everything we send (`selected_host_key`).
const OLDEST_ENVOY: (u32, u32, u32) = (1, 38, 2);

/// The newest snapshot of each Gateway. Envoys of a Gateway that is not there keep what they have.
pub(crate) type Snapshots = Arc<BTreeMap<Key, Arc<Snapshot>>>;

/// What all streams share.
#[derive(Clone)]
pub(crate) struct AdsServer {
    pub(crate) snapshots: watch::Receiver<Snapshots>,
    pub(crate) proxies: Proxies,
    pub(crate) metrics: AdsMetrics,
    pub(crate) clock: Clock,
    pub(crate) removal_delay: Duration,
    pub(crate) budgets: Budgets,
    /// Ends every stream, so that Envoys go to another replica.
    pub(crate) drain: CancellationToken,
    /// Only this host reaches the port, so that nobody else reads what goes over it without TLS.
    pub(crate) private_channel: bool,
}

/// One stream; the proxy is forgotten with it.
struct Session {
    server: AdsServer,
    requests: Streaming<DeltaDiscoveryRequest>,
    peer: Peer,
    gateway: Key,
    id: u64,
    ads: Ads,
    given: Option<Arc<Snapshot>>,
    others: watch::Receiver<Others>,
    /// Private keys go over no stream without it.
    may_have_secrets: bool,
    /// At most one response per type and step.
    outbox: VecDeque<Response>,
    budget: Arc<Budget>,
    /// Of the names that are kept.
    names: Share,
    /// Whether there is room for all of them.
    counted: Result<(), Full>,
    /// Of the request that comes next; none without TLS.
    unread: Option<Unread>,
    /// A request for whose names there is no memory, and when it is tried again. None comes before it.
    delayed: Option<(Request, Instant)>,
    /// The first response of the outbox waits for its turn.
    waiting: Option<AbortOnDropHandle<()>>,
    unanswered: Arc<Unanswered>,
    /// An answer is late, and others wait for it.
    late: CancellationToken,
    /// Ends the connection where the stream cannot end: nobody polls that of a client which takes no responses.
    _watch: AbortOnDropHandle<()>,
    /// Why the stream ends.
    end: Option<Status>,
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
        // a connection that nobody has looked at is nobody's
        let peer = call.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Status::permission_denied("nobody is at the other end"))?;
        let unread = call.extensions().get::<Unread>().cloned();
        let mut requests = call.into_inner();
        let first = tokio::time::timeout(FIRST_REQUEST_LIMIT, requests.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no first request"))?
            .inspect_err(|status| {
                self.note_too_much(status);
            })?
            .ok_or_else(|| Status::invalid_argument("the stream ended before a request"))?;
        let identified = identify(first.node.as_ref(), &peer);
        let identified = identified.and_then(|(gateway, proxy)| {
            let snapshots = self.snapshots.borrow();
            match snapshots.get(&gateway) {
                Some(snapshot) if !is_of(&peer, snapshot) => Err(denied(&gateway)),
                _ => Ok((gateway, proxy)),
            }
        });
        let (gateway, proxy) = identified.inspect_err(|status| {
            if status.code() == Code::PermissionDenied {
                self.deny(&peer, status);
            }
        })?;
        let (node, version) = (proxy.node.clone(), proxy.version.clone());
        let may_have_secrets = proxy.authenticated || self.private_channel;
        let most = self.budgets.limits().of_gateway;
        let joined = self.proxies.connect(proxy, most);
        let Joined { id, others } = joined.map_err(|TooMany| {
            self.metrics.denied(Denied::Streams);
            Status::resource_exhausted(format!("Gateway {gateway} has {most} streams already"))
        })?;
        info!(%gateway, node, version, "Envoy connected");
        let budget = self.budgets.of(&gateway);
        let (unanswered, late) = (Arc::<Unanswered>::default(), CancellationToken::new());
        let watch = self.clone().watch(
            Arc::clone(&unanswered),
            Arc::clone(&budget),
            late.clone(),
            peer.close.clone(),
        );
        let mut session = Session {
            id,
            ads: Ads::new(self.removal_delay),
            server: self.clone(),
            requests,
            peer,
            gateway,
            given: None,
            others,
            may_have_secrets,
            outbox: VecDeque::new(),
            names: budget.names(),
            counted: Ok(()),
            budget,
            unread,
            delayed: None,
            waiting: None,
            unanswered,
            late,
            _watch: owned::spawn(watch),
            end: None,
        };
        session.take_snapshot();
        session.take_others();
        session.request(decode(first));
        let responses = stream::unfold(Some(session), |session| async move {
            let mut session = session?;
            match session.next().await? {
                Ok(response) => Some((Ok(response), Some(session))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Answer::new(Box::pin(responses)))
    }
}

impl AdsServer {
    /// Whether a stream broke because there was no room for its request.
    fn note_too_much(&self, status: &Status) -> bool {
        let is_too_much = status.code() == Code::ResourceExhausted;
        if is_too_much {
            self.metrics.denied(Denied::Requests);
        }
        is_too_much
    }

    /// Looks after a stream until it is dropped.
    async fn watch(
        self,
        unanswered: Arc<Unanswered>,
        budget: Arc<Budget>,
        late: CancellationToken,
        close: CancellationToken,
    ) {
        tokio::select! {
            () = unanswered.late(&budget, self.budgets.limits().answer) => {
                self.metrics.denied(Denied::Responses);
                late.cancel();
            }
            () = self.drain.cancelled() => {}
        }
        sleep(GRACE).await;
        close.cancel();
    }

    /// The stream is denied, and its connection ends with it: on another one the Envoy may show another certificate.
    fn deny(&self, peer: &Peer, status: &Status) {
        warn!(who = ?peer.who, %status, "a stream of ADS is denied");
        self.metrics.denied(Denied::Identity);
        peer.close.cancel();
        let Who::Former(former) = &peer.who else {
            return; // it has a certificate of now, and says that it is another Gateway's
        };
        let snapshots = self.snapshots.borrow();
        let snapshot = snapshots.get(&former.gateway);
        let is_same =
            |snapshot: &Arc<Snapshot>| former.uid.as_ref().is_none_or(|uid| *uid == snapshot.uid);
        if snapshot.is_some_and(is_same) {
            self.proxies.note_denied(&former.gateway, self.clock.now());
        }
    }
}

/// Whether the snapshot is of the Gateway that the certificate was made for, and not of one that was made anew under its name.
fn is_of(peer: &Peer, snapshot: &Snapshot) -> bool {
    match &peer.who {
        Who::Anyone => true,
        Who::Gateway(identity) => identity.uid == snapshot.uid,
        Who::Former(_) | Who::Nobody => false,
    }
}

fn denied(gateway: &Key) -> Status {
    let text = format!(
        "the certificate is not of Gateway {gateway}, which node.cluster names, as it is now: Envoys show that of the Secret of \
         their Gateway"
    );
    Status::permission_denied(text)
}

/// The Gateway that the Envoy serves: `node.cluster`, which must be what its certificate says.
fn identify(node: Option<&Node>, peer: &Peer) -> Result<(Key, Proxy), Status> {
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
    let authenticated = match &peer.who {
        Who::Anyone => false,
        Who::Gateway(of) if of.gateway == gateway => true,
        Who::Gateway(_) | Who::Former(_) | Who::Nobody => return Err(denied(&gateway)),
    };
    if node.id.len() > MAX_NODE_ID {
        let text = format!("node.id has more than {MAX_NODE_ID} bytes");
        return Err(Status::invalid_argument(text));
    }
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
        authenticated,
        current: false,
        acknowledged: BTreeMap::new(),
        served: BTreeSet::new(),
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
    /// The next response, or why the stream ends; none when Envoy has ended it.
    async fn next(&mut self) -> Option<Result<DeltaDiscoveryResponse, Status>> {
        loop {
            if let Some(status) = self.end.take() {
                return Some(Err(status));
            }
            if let Some(response) = self.sendable() {
                let encoded = encode(response);
                self.server.metrics.sent(&encoded);
                return Some(Ok(encoded));
            }
            let clock = self.server.clock;
            let wake = self.ads.wake_at(clock.now());
            let again = self.delayed.as_ref().map(|(_, at)| *at);
            let (waits, is_ready) = (self.waiting.is_some(), self.ads.is_ready());
            tokio::select! {
                () = self.server.drain.cancelled() => return None,
                message = self.requests.message(), if again.is_none() => match message {
                    Ok(Some(request)) => self.request(decode(request)),
                    Ok(None) => return None,
                    Err(status) => {
                        debug!(gateway = %self.gateway, %status, "Envoy's stream broke");
                        let is_too_much = self.server.note_too_much(&status);
                        return is_too_much.then_some(Err(status));
                    }
                },
                changed = self.server.snapshots.changed() => {
                    changed.ok()?;
                    self.take_snapshot();
                }
                Ok(()) = self.others.changed(), if !is_ready => self.take_others(),
                () = next_turn(&mut self.waiting), if waits => self.waiting = None,
                () = until(wake.map(|at| clock.instant(at))) => self.step(Input::Tick),
                () = until(again) => {
                    if let Some((request, _)) = self.delayed.take() {
                        self.request(request);
                    }
                }
                () = self.late.cancelled() => self.end_late(),
            }
        }
    }

    /// The first response of the outbox, once it has its turn.
    fn sendable(&mut self) -> Option<Response> {
        let first = self.outbox.front()?;
        let nonce = first.nonce;
        if !self.unanswered.has(nonce) {
            if self.waiting.is_some() {
                return None;
            }
            let bytes = first.resources.iter().map(|(_, one)| one.bytes.len()).sum();
            let mut turn = Arc::clone(&self.budget).turn(first.kind, bytes).boxed();
            if let Some(turn) = turn.as_mut().now_or_never() {
                self.unanswered.insert(nonce, turn);
            } else {
                // a turn that is had counts as such, however the stream is polled
                let unanswered = Arc::clone(&self.unanswered);
                let waiting = async move { unanswered.insert(nonce, turn.await) };
                self.waiting = Some(owned::spawn(waiting));
                return None;
            }
        }
        self.waiting = None;
        self.outbox.pop_front()
    }

    fn end_late(&mut self) {
        warn!(gateway = %self.gateway, "an Envoy does not answer, and others wait for it");
        let limit = self.server.budgets.limits().answer;
        let text = format!("no answer to a response within {limit:?}");
        self.end = Some(Status::deadline_exceeded(text));
    }

    fn take_others(&mut self) {
        let Others { served, denied } = self.others.borrow_and_update().clone();
        // first: the end of the denied stream must not make this Envoy ready
        if let Some(at) = denied {
            self.step(Input::Denied(at));
        }
        self.step(Input::Served(served));
    }

    fn take_snapshot(&mut self) {
        let newest = self
            .server
            .snapshots
            .borrow_and_update()
            .get(&self.gateway)
            .cloned();
        let Some(newest) = newest else { return };
        if !is_of(&self.peer, &newest) {
            let status = denied(&self.gateway);
            self.server.deny(&self.peer, &status);
            self.end = Some(status);
            return;
        }
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

    fn request(&mut self, request: Request) {
        if self.ads.is_too_much(&request) {
            warn!(gateway = %self.gateway, "an Envoy names too many resources");
            self.server.metrics.denied(Denied::Names);
            let text = format!("more than {MAX_NAMES} names of resources, or too long ones");
            self.end = Some(Status::resource_exhausted(text));
            return;
        }
        if let Some(nonce) = request.nonce {
            self.unanswered.remove(nonce);
        }
        if !self.names.is_empty() && self.lacks_memory_for(&request) {
            // others have the memory: the stream goes on with what it has
            self.delayed = Some((request, Instant::now() + MEMORY_PAUSE));
            return;
        }
        let is_new = self.names.is_empty();
        self.step(Input::Request(request));
        if is_new && self.counted == Err(Full::Common) {
            self.end_full(Full::Common);
        }
        if let Some(unread) = &self.unread {
            unread.clear();
        }
    }

    /// Whether all Gateways together have no memory for the names of the request.
    fn lacks_memory_for(&mut self, request: &Request) -> bool {
        let more = Ads::bytes_of(request);
        let all = self.ads.bytes_of_names().saturating_add(more);
        more > 0 && self.names.set(all) == Err(Full::Common)
    }

    fn end_full(&mut self, full: Full) {
        let (reason, text) = match full {
            Full::Own => (
                Denied::Names,
                "the Envoys of this Gateway name too many resources together",
            ),
            Full::Common => (
                Denied::Memory,
                "the gateway has no memory for the names of another Envoy",
            ),
        };
        warn!(gateway = %self.gateway, text, "a stream of ADS ends");
        self.server.metrics.denied(reason);
        self.end = Some(Status::resource_exhausted(text));
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
                    self.server.proxies.refuse(self.id, refusal);
                }
                Effect::Recovered(kind, name, version) => {
                    info!(gateway = %self.gateway, kind = kind.as_str(), name, "Envoy took it at last");
                    let id = (kind, name, version);
                    self.server.proxies.recover(self.id, &id);
                }
            }
        }
        self.counted = self.names.set(self.ads.bytes_of_names());
        if self.counted == Err(Full::Own) {
            self.end_full(Full::Own);
        }
        self.server.proxies.update(self.id, self.ads.report());
    }
}

/// Comes back when who waits for a turn has it.
async fn next_turn(waiting: &mut Option<AbortOnDropHandle<()>>) {
    match waiting {
        // it is aborted only where it is dropped
        Some(waiting) => drop(waiting.await),
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.proxies.disconnect(self.id);
        info!(gateway = %self.gateway, "Envoy disconnected");
    }
}
