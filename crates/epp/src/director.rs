//! From a query to an answer: the members of the moment, the pick, the words for the proxy.

use std::{cell::RefCell, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use metadata::Cluster;
use moment::Clock;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use scheduling::{
    Endpoint, Member, Moment, Registry, Request, Slot, Snapshot, Subset, Table, flow,
};
use tokio::sync::Notify;

use crate::{
    body::Api,
    config::{Config, CurrentConfig, InForce, Parsers},
    edit::Edit,
    external::{External, ExternalMetrics},
    extproc::{Query, RequestHead},
    llm::{AccessLogger, Headers, Line, LlmError, LlmRequest, Match, TraceId},
    reject::Reject,
};

mod bodies;
mod chunks;
mod collector;
mod elsewhere;
mod external;
mod filter;
mod guard;
mod models;
mod options;
mod overlaps;
mod pick;
mod picks;
mod prefill;
mod prefix;
mod prepare;
mod queue;
mod session;

pub use collector::DirectorCollector;
use elsewhere::Awaited;
pub(crate) use elsewhere::{Asking, ChargeElsewhere, PickedElsewhere, Picking};
pub use elsewhere::{PickElsewhere, ReplyElsewhere};
use external::{Ahead, Behind, ModelHeader};
pub(crate) use external::{Staged, Staging};
pub use models::ModelMatch;
pub(crate) use models::Resolved;
pub use options::Options;
pub(crate) use prefix::{BYTES_PER_TOKEN, Learned};

pub(crate) use queue::Waiting;

use bodies::Readers;
use chunks::Chunks;
use filter::Turns;
use overlaps::Overlaps;
use picks::{Asked, Picks, Record};
use prefill::Prefills;
use prefix::PrefixCache;
pub(crate) use queue::QueueState;
use queue::{Dispatch, Queue, flow_config};
pub(crate) use session::NamedSession;
use session::Sessions;

/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";

/// Of the proxy's span.
const TRACE_PARENT: &str = "traceparent";

/// Names the endpoints that a test wants, as a subset does.
const TEST_SELECTION: &str = "test-epp-endpoint-selection";

/// The members of one pool, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Members>);

#[derive(Debug, Default)]
struct Members {
    snapshot: ArcSwap<Snapshot>,
    registry: Mutex<Registry>,
    /// The members were replaced: requests that wait for one may go on.
    changed: Notify,
}

/// Decides where requests of one pool go.
#[derive(Debug)]
pub struct Director {
    pool: Pool,
    config: CurrentConfig,
    clock: Clock,
    options: Options,
    /// What keys load and caches where no rule says it.
    cluster: Cluster,
    prefix: PrefixCache,
    chunks: Chunks,
    sessions: Sessions,
    turns: Turns,
    overlaps: Overlaps,
    prefills: Prefills,
    /// Where flow control is on.
    queue: Queue<Box<Prepared>>,
    /// Where somebody may ask for them.
    picks: Option<Picks>,
    access_log: Option<AccessLogger>,
    /// Who picks by load and caches; absent: this endpoint picker.
    elsewhere: Option<Arc<dyn PickElsewhere>>,
    /// Where a Processor is asked before picks.
    external: Option<Arc<External>>,
    /// Where requests are to name their model in a header.
    model_header: Option<ModelHeader>,
    /// Of requests that somebody else is asked about.
    awaited: Awaited,
    /// The number of KV transfer parameters that clients sent and that were removed.
    transfers_removed: Counter,
}

/// A decision, or the wait for it.
pub(crate) enum Decision {
    Picked(Picking),
    /// Dropping it takes the request out of the queue.
    Queued(Waiting<Box<Prepared>>),
}

/// A request that only lacks its pick.
#[derive(Debug)]
pub(crate) struct Prepared {
    request: Request,
    /// What changes of the request beside its way.
    edit: Edit,
    readers: Readers,
    session: Option<NamedSession>,
    /// Under the LLM filter.
    llm: Option<Box<LlmRequest>>,
    /// Where picks are recorded.
    asked: Option<Box<Asked>>,
    /// Until the external stage is over.
    ahead: Option<Box<Ahead>>,
    /// What that stage told.
    behind: Option<Box<Behind>>,
}

/// What is computed for one pick.
#[derive(Default)]
struct Scratch {
    table: Table,
    matched: Vec<u32>,
}

thread_local! {
    /// Of the last pick of this thread: the next one uses its memory.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

// === impl Decision ===

impl Decision {
    pub(crate) fn refused(reject: Reject) -> Self {
        Self::Picked(Picking::Made(Err(reject)))
    }
}

// === impl Pool ===

impl Pool {
    /// The members of this moment, for more than one look.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.snapshot.load_full()
    }

    /// Replaces the members; the ones that stay, or left a moment ago, keep their load.
    pub fn replace(&self, members: Vec<Member>, now: Moment) -> Arc<Snapshot> {
        let mut registry = self.0.registry.lock();
        let next = Arc::new(registry.update(members, now));
        self.0.snapshot.store(Arc::clone(&next));
        self.0.changed.notify_one();
        next
    }

    /// Forgets endpoints that left long enough ago; their slots.
    pub fn sweep(&self, now: Moment) -> Vec<Slot> {
        self.0.registry.lock().sweep(now)
    }

    /// The member that listens at `address`.
    pub fn at(&self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        self.0.snapshot.load().at(address).cloned()
    }
}

// === impl Director ===

impl Director {
    /// A director of the pool by the configuration in force.
    pub fn new(pool: Pool, config: CurrentConfig, options: Options, clock: Clock) -> Self {
        let (prefix, flow) = {
            let config = config.load();
            (config.prefix, flow_config(&config.flow_control))
        };
        Self {
            pool,
            config,
            clock,
            options,
            cluster: filter::cluster("", "pool"),
            chunks: Chunks::new(prefix.max_bytes),
            prefix: PrefixCache::new(prefix),
            sessions: Sessions::default(),
            turns: Turns::default(),
            overlaps: Overlaps::default(),
            prefills: Prefills::new(),
            queue: Queue::new(flow),
            picks: None,
            access_log: None,
            elsewhere: None,
            external: None,
            model_header: None,
            awaited: Awaited::default(),
            transfers_removed: Counter::default(),
        }
    }

    /// Of this pool.
    #[must_use]
    pub fn named(self, namespace: &str, pool: &str) -> Self {
        let cluster = filter::cluster(namespace, pool);
        Self { cluster, ..self }
    }

    /// Keeps the last picks, for pages of an operator.
    #[must_use]
    pub fn recording(self) -> Self {
        Self {
            picks: Some(Picks::new()),
            ..self
        }
    }

    /// Has picks by load and caches made elsewhere, if there is somebody.
    #[must_use]
    pub fn asking(self, elsewhere: Option<Arc<dyn PickElsewhere>>) -> Self {
        Self { elsewhere, ..self }
    }

    /// Asks a Processor before picks, if there is one.
    #[must_use]
    pub(crate) fn staging(self, external: Option<Arc<External>>) -> Self {
        Self { external, ..self }
    }

    /// Has requests name their model in a header.
    #[must_use]
    pub(crate) fn naming_models(self, metrics: Option<ExternalMetrics>) -> Self {
        let model_header = metrics.map(ModelHeader);
        Self {
            model_header,
            ..self
        }
    }

    /// Hands in lines of the access log.
    #[must_use]
    pub(crate) fn logging_to(self, log: AccessLogger) -> Self {
        let access_log = Some(log);
        Self { access_log, ..self }
    }

    /// A request ended that is to be logged.
    pub(crate) fn log_access(&self, line: impl FnOnce() -> Line) {
        if let Some(log) = &self.access_log {
            log.log(line);
        }
    }

    /// The members.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Time.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The bodies that are read.
    pub(crate) fn parsers(&self) -> Parsers {
        self.config.load().parsers
    }

    /// The id of a request under an LLM filter: of all requests whose path carries an inference format, while there is one.
    pub(crate) fn trace_id(&self, head: &RequestHead) -> Option<TraceId> {
        let config = self.config.load();
        config.llm_filter()?;
        let api = Api::for_path(&head.path).ok().flatten();
        api.filter(|api| config.parsers.has(api.parser()))?;
        Some(TraceId::of(&Headers::new(&head.fields), &mut rand::rng()))
    }

    /// Lets requests that wait go on, for ever.
    pub(crate) async fn run_queue(&self) {
        let wake = async {
            loop {
                self.pool.0.changed.notified().await;
                self.queue.wake();
            }
        };
        tokio::join!(self.queue.run(self, self.clock), wake);
    }

    /// Something happened that may let a request go on that waits.
    pub(crate) fn wake(&self) {
        self.queue.wake();
    }

    /// How near the pool is to its limit; 1 and above takes nothing more.
    pub(crate) fn saturation(&self) -> f64 {
        self.saturation_by(&self.config.load())
    }

    /// What the flags say.
    pub(crate) fn options(&self) -> Options {
        self.options
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> arc_swap::Guard<Arc<InForce>> {
        self.config.load()
    }

    /// The last picks, the newest first.
    pub(crate) fn latest_picks(&self) -> Vec<Arc<Record>> {
        self.picks.as_ref().map(Picks::latest).unwrap_or_default()
    }

    /// What waits.
    pub(crate) fn queue_state(&self) -> QueueState {
        self.queue.state()
    }

    /// Whether requests may have to wait.
    pub(crate) fn queues(&self) -> bool {
        self.config.load().flow_control.enabled
    }

    /// Forgets endpoints that left long ago, follows the sizes of caches and the configuration of the queue. To be called
    /// now and then.
    pub(crate) fn tend(&self) {
        let now = self.clock.now();
        let gone = self.pool.sweep(now);
        let snapshot = self.pool.snapshot();
        self.prefix.tend(&snapshot, &gone);
        let forgotten = self.chunks.tend(&snapshot, &gone, now);
        if let Some(elsewhere) = &self.elsewhere {
            for endpoint in forgotten {
                elsewhere.forget(endpoint);
            }
        }
        let config = self.config.load();
        self.overlaps.tend(&snapshot, config.llm_filter());
        self.queue.reconfigure(flow_config(&config.flow_control));
    }

    /// Endpoints that belong to more than one cluster of the LLM filter.
    pub(crate) fn overlapping(&self) -> usize {
        self.overlaps.endpoints()
    }

    /// The answer is written: the endpoint will have cached the request's prompt. `first` was to, but did not get it.
    pub(crate) fn learn(&self, learned: &Learned, endpoint: &Endpoint, first: Option<&Endpoint>) {
        if let Some(first) = first {
            self.prefix.unlearn(learned, first);
            self.prefix.learn_all(learned, endpoint);
        } else {
            self.prefix.learn(learned, endpoint);
        }
    }

    /// The endpoint that the request was picked for responds, and so has all of its prompt.
    pub(crate) fn confirm(&self, learned: &Learned, endpoint: &Endpoint) {
        self.prefix.confirm(learned, endpoint);
    }

    /// The endpoint did not get the request, and so will not have cached its prompt.
    pub(crate) fn unlearn(&self, learned: &Learned, endpoint: &Endpoint) {
        self.prefix.unlearn(learned, endpoint);
    }

    /// Another endpoint serves the request than the one it was picked for: its session is there from now on.
    pub(crate) fn served_by(&self, session: &NamedSession, endpoint: &Endpoint) {
        if let NamedSession::Id(id) = session {
            self.sessions.remember(id, endpoint, self.clock.now());
        }
    }

    /// What the prefix index holds.
    pub(crate) fn prefix_stats(&self) -> scheduling::prefix::Stats {
        self.prefix.stats()
    }

    /// Finds out what a request is for.
    ///
    /// # Errors
    /// [`Reject::ModelNotFound`] where its model is none of those that clients may ask for; [`Reject::Llm`] where the LLM
    /// filter has no place for it.
    pub(crate) fn resolve(
        &self,
        query: &Query,
        trace_id: Option<&TraceId>,
    ) -> Result<Resolved, Reject> {
        let config = self.config.load();
        filter::check_body(&config, query)?;
        bodies::check_seen(&config, query)?;
        let (head, parsed) = (&query.head, query.parsed.as_ref());
        let matching = self.options.model_match;
        let rng = &mut rand::rng();
        let is_inference = query.is_inference;
        let is_cut = is_inference && parsed.is_none() && !query.body.is_empty();
        if is_cut {
            self.check_unseen(&config, head)?;
        }
        let models = config.models();
        let start = self.clock.now();
        let found = self.find_match(&config, query, rng);
        let ruled = found.is_some().then(|| [start, self.clock.now()]);
        let mut resolved =
            models::resolve(models, matching, head, is_inference, is_cut, parsed, rng)?;
        let found = found.transpose().map_err(LlmError::from)?;
        if let Some(adapter) = found.as_ref().and_then(Match::adapter)
            && resolved.target.is_some()
            && models::forced(models, head).is_none()
        {
            resolved.target = Some(Arc::clone(adapter));
        }
        resolved.found = found.map(Box::new);
        resolved.ruled = ruled;
        resolved.trace_id = trace_id.cloned();
        Ok(resolved)
    }

    /// Picks for one request, or lets it wait. Once picked for it counts at its endpoint, where it arrives after `transit`.
    pub(crate) fn decide(
        &self,
        mut query: Query,
        resolved: &Resolved,
        transit: Duration,
    ) -> Decision {
        let config = self.config.load();
        let bytes = query.body.len();
        query.subset = self.honoured_subset(&query.head, query.subset.take());
        let is_shed = resolved.priority < 0 && !config.flow_control.enabled;
        let asked = self.picks.is_some().then(|| Asked::new(&query, resolved));
        // Where no endpoint can ever take the request, another pool may: that error is returned for every priority.
        if is_shed
            && self.saturation_by(&config) >= 1.0
            && self.has_any_for(&config, &query, resolved)
        {
            self.record_refusal(asked.as_ref(), &Reject::Shed);
            return Decision::refused(Reject::Shed);
        }
        let now = self.clock.now();
        let mut prepared = match self.prepare(&config, query, resolved, now) {
            Ok(prepared) => prepared,
            Err(reject) => {
                self.record_refusal(asked.as_ref(), &reject);
                return Decision::refused(reject);
            }
        };
        prepared.request.transit = transit;
        prepared.asked = asked
            .clone()
            .map(|asked| Box::new(asked.with_id(&prepared.edit)));
        let may_go = !config.flow_control.enabled
            || self.queue.len() == 0 && self.saturation_by(&config) < 1.0
            || self.is_hopeless(&config, &prepared);
        if may_go {
            return Decision::Picked(self.pick(&config, prepared, now));
        }
        let place = flow::Waiting {
            priority: resolved.priority,
            fairness_id: resolved
                .fairness_id
                .clone()
                .unwrap_or_else(|| DEFAULT_FLOW.into()),
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            ttl: None,
        };
        match self.queue.push(place, Box::new(prepared), now) {
            Ok(waiting) => Decision::Queued(waiting),
            Err(reject) => {
                self.record_refusal(asked.as_ref(), &reject);
                Decision::refused(reject)
            }
        }
    }

    fn record_refusal(&self, asked: Option<&Asked>, reject: &Reject) {
        if let (Some(picks), Some(asked)) = (&self.picks, asked) {
            let saturation = Some(self.saturation());
            picks.push(Record::refused(
                asked.clone(),
                reject,
                saturation,
                Vec::new(),
            ));
        }
    }

    fn saturation_by(&self, config: &Config) -> f64 {
        let freshness = config.profile.freshness;
        SCRATCH.with_borrow_mut(|Scratch { table, .. }| {
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, self.clock.now(), freshness, false);
            config
                .detector
                .saturation_with(table, self.awaited.unplaced())
        })
    }

    /// The endpoints that the request may be sent to, as requested by the proxy or by a test header.
    fn honoured_subset(&self, head: &RequestHead, subset: Option<Subset>) -> Option<Subset> {
        let tested = head.field(&[TEST_SELECTION]);
        match tested.filter(|_| self.options.conformance_headers) {
            Some(list) => {
                let mut subset = Subset::default();
                subset.extend_from_list(list);
                Some(subset)
            }
            None => subset.filter(|_| self.options.honour_subset),
        }
    }

    /// Whether a member can take the request, however much it has to do.
    fn has_any_for(&self, config: &InForce, query: &Query, resolved: &Resolved) -> bool {
        let found = resolved.found.as_deref();
        let request = Request {
            subset: query.subset.clone(),
            labels: found
                .iter()
                .flat_map(|found| found.labels())
                .cloned()
                .collect(),
            ..Request::default()
        };
        let snapshot = self.pool.0.snapshot.load();
        snapshot.has_any_for(&request, config.profile_of(found))
    }

    /// Whether no member can ever take the request as things are: then nothing is worth waiting for.
    fn is_hopeless(&self, config: &InForce, prepared: &Prepared) -> bool {
        let Prepared { request, llm, .. } = prepared;
        let profile = config.profile_of(llm.as_ref().map(|llm| &llm.found));
        let snapshot = self.pool.0.snapshot.load();
        // To an empty pool some may come, unless the proxy names those that it allows.
        let may_wait = snapshot.members().is_empty() && request.subset.is_none();
        !may_wait && !snapshot.has_any_for(request, profile)
    }
}

impl Dispatch<Box<Prepared>> for Director {
    fn saturation(&self) -> f64 {
        Director::saturation(self)
    }

    fn regime(&self) -> flow::Regime {
        if self.pool.0.snapshot.load().members().is_empty() {
            flow::Regime::Empty
        } else {
            flow::Regime::Serving
        }
    }

    fn pick(&self, prepared: Box<Prepared>) -> Picking {
        self.pick(&self.config.load(), *prepared, self.clock.now())
    }

    fn expired(&self, prepared: &Box<Prepared>, reject: &Reject) {
        self.record_refusal(prepared.asked.as_deref(), reject);
    }
}

#[cfg(test)]
mod tests;
