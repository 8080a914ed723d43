//! From a query to an answer: the members of the moment, the pick, the words for the proxy.

use std::{cell::RefCell, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use moment::Clock;
use parking_lot::Mutex;
use scheduling::{
    Booking, Choice, Endpoint, Member, Moment, NoPick, Registry, Request, SessionStrategy, Slot,
    Snapshot, Subset, Table, choose, flow,
};
use tracing::debug;

use crate::{
    config::{Band, Config, CurrentConfig, FairnessPolicy, FlowControl, OrderingPolicy},
    edit::Edit,
    extproc::{Answer, Query, REQUEST_ID, Route},
    reject::Reject,
    tap::ResponseTap,
};

mod collector;
mod models;
mod prefix;
mod queue;
mod session;

pub use collector::DirectorCollector;
pub use models::ModelMatch;
pub(crate) use models::Resolved;
pub(crate) use prefix::Learned;

use prefix::PrefixCache;
pub(crate) use queue::Waiting;
use queue::{Dispatch, Queue};
use session::Sessions;

/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";

/// The members of one pool, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Members>);

#[derive(Debug, Default)]
struct Members {
    snapshot: ArcSwap<Snapshot>,
    registry: Mutex<Registry>,
}

/// Decides where requests of one pool go.
#[derive(Debug)]
pub struct Director {
    pool: Pool,
    config: CurrentConfig,
    clock: Clock,
    options: Options,
    prefix: PrefixCache,
    sessions: Sessions,
    /// Where flow control is on.
    queue: Queue<Box<Prepared>>,
}

/// What flags say of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// False: the proxy's subset is ignored.
    pub honour_subset: bool,
    /// Whether models that nobody lists are refused.
    pub model_match: ModelMatch,
}

/// A decision, or the wait for it.
pub(crate) enum Decision {
    Made(Result<Box<Answer>, Reject>),
    /// Dropping it takes the request out of the queue.
    Queued(Waiting<Box<Prepared>>),
}

/// A request that only lacks its pick.
#[derive(Debug)]
pub(crate) struct Prepared {
    request: Request,
    /// What changes of the request beside its way.
    edit: Edit,
    tap: Option<ResponseTap>,
    session_id: Option<Box<str>>,
    /// The response names its pod in this header.
    session_token: Option<String>,
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
            prefix: PrefixCache::new(prefix),
            sessions: Sessions::default(),
            queue: Queue::new(flow),
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

    /// Lets requests that wait go on, for ever.
    pub(crate) async fn run_queue(&self) {
        self.queue.run(self, self.clock).await;
    }

    /// Something happened that may let a request go on that waits.
    pub(crate) fn wake(&self) {
        self.queue.wake();
    }

    /// How near the pool is to its limit; 1 and above takes nothing more.
    pub(crate) fn saturation(&self) -> f64 {
        self.saturation_by(&self.config.load())
    }

    /// Requests that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Forgets endpoints that left long ago, follows the sizes of caches and the configuration of the queue. To be called
    /// now and then.
    pub(crate) fn tend(&self) {
        let gone = self.pool.sweep(self.clock.now());
        self.prefix.tend(&self.pool.snapshot(), &gone);
        self.queue
            .reconfigure(flow_config(&self.config.load().flow_control));
    }

    /// The answer is written: the endpoint will have cached the request's prompt.
    pub(crate) fn learn(&self, learned: &Learned, endpoint: &Endpoint) {
        self.prefix.learn(learned, endpoint);
    }

    /// What the prefix index holds.
    pub(crate) fn prefix_stats(&self) -> scheduling::prefix::Stats {
        self.prefix.stats()
    }

    /// Finds out what a request is for.
    ///
    /// # Errors
    /// [`Reject::ModelNotFound`] where its model is none of those that clients may ask for.
    pub(crate) fn resolve(&self, query: &Query) -> Result<Resolved, Reject> {
        let config = self.config.load();
        let (head, parsed) = (&query.head, query.parsed.as_ref());
        let matching = self.options.model_match;
        let rng = &mut rand::rng();
        let is_inference = query.is_inference;
        let is_cut = is_inference && parsed.is_none() && !query.body.is_empty();
        let models = config.models();
        models::resolve(models, matching, head, is_inference, is_cut, parsed, rng)
    }

    /// Picks for one request, or lets it wait. Once picked for it counts at its endpoint.
    pub(crate) fn decide(&self, query: Query, resolved: &Resolved) -> Decision {
        let config = self.config.load();
        let bytes = query.body.len();
        let is_shed = resolved.priority < 0 && !config.flow_control.enabled;
        if is_shed && self.saturation_by(&config) >= 1.0 {
            return Decision::Made(Err(Reject::Shed));
        }
        let now = self.clock.now();
        let prepared = self.prepare(&config, query, resolved, now);
        let may_go = !config.flow_control.enabled
            || self.queue.len() == 0 && self.saturation_by(&config) < 1.0
            || prepared
                .request
                .subset
                .as_ref()
                .is_some_and(|subset| !self.has_any(subset));
        if may_go {
            return Decision::Made(self.pick_by(&config, prepared, now));
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
            Err(reject) => Decision::Made(Err(reject)),
        }
    }

    fn prepare(&self, config: &Config, query: Query, resolved: &Resolved, now: Moment) -> Prepared {
        let Query {
            head,
            subset,
            list,
            parsed,
            is_inference: _,
            body,
        } = query;
        let target = resolved.target.clone();
        let prefix = match (&parsed, &target) {
            (Some(parsed), Some(target)) if config.profile.uses_prefix() => {
                self.prefix.chain(target, parsed, &body)
            }
            _ => Vec::new(),
        };
        let mut edit = Edit::default();
        if !head.has_request_id {
            edit.set_header(REQUEST_ID, make_request_id(rand::random()));
        }
        let mut tap = parsed.as_ref().map(|_| ResponseTap::default());
        if let (Some(parsed), Some(model), Some(target)) = (&parsed, &resolved.model, &target)
            && model != target
            && edit.rewrite_model(parsed.model_at.clone(), target).is_ok()
        {
            tap = Some(ResponseTap::restoring(model));
        }
        let named = config.session.as_ref().map(|session| {
            let headers: Vec<&str> = session.headers.iter().map(String::as_str).collect();
            (session, head.field(&headers))
        });
        let (mut at, mut session_id, mut session_token) = (None, None, None);
        if let Some((session, name)) = named {
            match session.strategy {
                SessionStrategy::EncodedEndpointHeader => {
                    at = name.and_then(session::from_token);
                    session_token = session.headers.first().cloned();
                }
                SessionStrategy::SessionId { ttl } => {
                    at = name.and_then(|id| self.sessions.find(id, now, ttl));
                    session_id = name.map(Into::into);
                }
            }
        }
        let request = Request {
            subset: subset.filter(|_| self.options.honour_subset),
            list,
            model: target,
            prompt_tokens: parsed.as_ref().map_or(0, |parsed| {
                u32::try_from(parsed.prompt_tokens).unwrap_or(u32::MAX)
            }),
            prefix,
            block_tokens: self.prefix.block_tokens(),
            session: at,
            ..Request::default()
        };
        Prepared {
            request,
            edit,
            tap,
            session_id,
            session_token,
        }
    }

    fn pick_by(
        &self,
        config: &Config,
        prepared: Prepared,
        now: Moment,
    ) -> Result<Box<Answer>, Reject> {
        let Prepared {
            request,
            edit,
            tap,
            session_id,
            session_token,
        } = prepared;
        let profile = &config.profile;
        let snapshot = self.pool.0.snapshot.load();
        let start = self.clock.now();
        let picked = SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            let choice = choose(table, &request, matched, profile, &mut rand::rng())?;
            let first = choice.first().and_then(|first| matched.get(first.member));
            Ok::<_, NoPick>((first.copied().unwrap_or(0), choice))
        });
        let (matched, choice) = picked.inspect_err(|no_pick| {
            debug!(
                reason = no_pick.reason(),
                members = snapshot.members().len(),
                "not picked"
            );
        })?;
        let endpoints = endpoints(&snapshot, &choice);
        let first: &Arc<Endpoint> = endpoints.first().ok_or(NoPick::EmptyPool)?;
        let Request {
            model,
            prompt_tokens,
            transit,
            prefix,
            block_tokens,
            ..
        } = request;
        let uncached = prompt_tokens.saturating_sub(matched.saturating_mul(block_tokens));
        let booking = Booking::new(Arc::clone(first), uncached, model, now, transit);
        if let Some(id) = session_id {
            self.sessions.remember(&id, first, now);
        }
        let mut response = Edit::default();
        if let Some(header) = session_token {
            response.set_header(header, session::token(first));
        }
        let destination = destination(&endpoints);
        debug!(%destination, score = choice.first().map(|best| best.score), prompt_tokens, matched, "picked");
        Ok(Box::new(Answer {
            route: Route {
                destination: Some(destination.into()),
                edit,
            },
            endpoints,
            booking,
            tap,
            response,
            learned: Learned::new(prefix),
            scheduling: self.clock.now().since(start),
        }))
    }

    fn saturation_by(&self, config: &Config) -> f64 {
        let freshness = config.profile.freshness;
        SCRATCH.with_borrow_mut(|Scratch { table, .. }| {
            let snapshot = self.pool.0.snapshot.load();
            snapshot.read_into(table, self.clock.now(), freshness, false);
            config.detector.saturation(table)
        })
    }

    /// Whether the subset names a member: without one nothing is worth waiting for.
    fn has_any(&self, subset: &Subset) -> bool {
        self.pool.0.snapshot.load().has_any(subset)
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

    fn pick(&self, prepared: Box<Prepared>) -> Result<Box<Answer>, Reject> {
        self.pick_by(&self.config.load(), *prepared, self.clock.now())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            honour_subset: true,
            model_match: ModelMatch::Auto,
        }
    }
}

/// The queue's own form of its configuration.
fn flow_config(config: &FlowControl) -> flow::Config {
    let band = |band: &Band| flow::BandConfig {
        max_requests: band.max_requests,
        max_bytes: band.max_bytes,
        fairness: match band.fairness {
            FairnessPolicy::GlobalStrict => flow::Fairness::GlobalStrict,
            FairnessPolicy::RoundRobin => flow::Fairness::RoundRobin,
        },
        ordering: match band.ordering {
            OrderingPolicy::Fcfs => flow::Ordering::Fcfs,
            OrderingPolicy::Edf => flow::Ordering::Edf,
        },
    };
    let bands = config.bands.iter();
    flow::Config {
        bands: bands
            .map(|(priority, one)| (*priority, band(one)))
            .collect(),
        default_band: band(&config.default_band),
        default_negative_band: Some(band(&config.default_negative_band)),
        // there zero is without end
        default_ttl: config.default_request_ttl.unwrap_or(Duration::ZERO),
        no_endpoint_ttl: Some(config.no_endpoint_request_ttl.unwrap_or(Duration::ZERO)),
        max_requests: config.max_requests,
        max_bytes: config.max_bytes,
    }
}

fn endpoints(snapshot: &Snapshot, choice: &Choice) -> smallvec::SmallVec<[Arc<Endpoint>; 1]> {
    let chosen = choice
        .iter()
        .filter_map(|chosen| snapshot.members().get(chosen.member));
    chosen.map(|member| Arc::clone(&member.endpoint)).collect()
}

/// The endpoints in the protocol's text, best first.
fn destination(endpoints: &[Arc<Endpoint>]) -> String {
    match endpoints {
        [only] => only.destination().to_owned(),
        all => {
            let texts: Vec<_> = all.iter().map(|endpoint| endpoint.destination()).collect();
            texts.join(",")
        }
    }
}

/// A version 4 UUID of the given random bits.
fn make_request_id(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let mut id = String::with_capacity(36);
    for (index, digit) in hex.chars().enumerate() {
        if let 8 | 12 | 16 | 20 = index {
            id.push('-');
        }
        id.push(digit);
    }
    id
}

#[cfg(test)]
mod tests;
