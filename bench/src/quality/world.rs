//! Gateways, an endpoint picker and engines: what happens to the requests of a trace.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use rand::{SeedableRng, rngs::StdRng};
use scheduling::{
    Booking, EndpointId, Freshness, Member, Moment, Registry, Request, SessionAt, Slot, Snapshot,
    Table, choose, prefix::PrefixIndex,
};

use super::{
    engine::{Engine, EngineModel, Progress, Sequence},
    outcome::Outcome,
    policy::{Chooser, Policy},
    trace::{Arrival, BLOCK, Trace},
};

/// Who serves a trace, and how far the gateway is.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Model servers.
    pub endpoints: u8,
    /// What they are.
    pub engine: EngineModel,
    /// How they are chosen.
    pub policy: Policy,
    /// From the pick until the request is at its server.
    pub delay: Duration,
    /// What the endpoint picker takes that for.
    pub transit: Duration,
    /// Of what is random in choices.
    pub seed: u64,
}

/// The endpoint picker: the scheduling crate as the program uses it.
struct Picker {
    policy: Policy,
    snapshot: Snapshot,
    index: PrefixIndex,
    table: Table,
    matched: Vec<u32>,
    /// Of round robin.
    next: usize,
    sessions: HashMap<usize, Slot>,
    rng: StdRng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next request is at the gateway.
    Arrive {
        request: usize,
    },
    /// It is at its server.
    Deliver {
        request: usize,
        endpoint: usize,
    },
    StepEnds {
        endpoint: usize,
    },
    Scrape {
        endpoint: usize,
    },
    Sample,
}

/// What happens later; of one moment in the order in which it was noted.
#[derive(Default)]
struct Agenda {
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    noted: u64,
}

struct World<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    agenda: Agenda,
    engines: Vec<Engine>,
    picker: Picker,
    bookings: HashMap<usize, Booking>,
    /// Requests that did not end yet.
    left: usize,
    outcome: Outcome,
}

/// `--refresh-metrics-interval`.
const SCRAPE_EACH: Duration = Duration::from_millis(50);
const SAMPLE_EACH: Duration = Duration::from_millis(100);
/// This share of the requests fills caches and queues before any is measured.
const WARM_UP: f64 = 0.2;
/// As the program has them.
const INDEX_BYTES: usize = 64 << 20;
const INDEX_SHARDS: usize = 64;
const PORT: u16 = 8000;

/// What happens to a trace. Nothing of it is left to chance or to the clock: the same trace and setup give the same.
///
/// # Errors
/// When no endpoint can be chosen.
pub fn simulate(trace: &Trace, setup: &Setup) -> Result<Outcome> {
    let mut world = World::new(trace, setup);
    while world.left > 0 {
        let (now, event) = world.agenda.next().context("nothing happens any more")?;
        world.on(event, now)?;
    }
    Ok(world.outcome)
}

/// Requests a second of these servers at most: all of the trace is there at the start, one endpoint gets one after the
/// other, and four fifths of the requests are over before any endpoint runs out of work.
///
/// # Errors
/// As [`simulate`].
pub fn capacity(trace: &Trace, setup: &Setup) -> Result<f64> {
    let outcome = simulate(&trace.at_once(), setup)?;
    let mut ends = outcome.ends;
    ends.sort_unstable();
    let most = ends.len() * 4 / 5;
    let at = ends.get(most.saturating_sub(1)).context("no request")?;
    Ok(most as f64 / at.since_start().as_secs_f64())
}

// === impl World ===

impl<'a> World<'a> {
    fn new(trace: &'a Trace, setup: &'a Setup) -> Self {
        let Setup {
            endpoints,
            engine,
            ref policy,
            seed,
            ..
        } = *setup;
        let engines: Vec<Engine> = (0..endpoints).map(|_| Engine::new(engine)).collect();
        let mut agenda = Agenda::default();
        for endpoint in 0..engines.len() {
            // spread over the interval
            let phase = SCRAPE_EACH.mul_f64(endpoint as f64 / engines.len() as f64);
            agenda.note(Moment::START.plus(phase), Event::Scrape { endpoint });
        }
        if let Some(first) = trace.arrivals.first() {
            agenda.note(first.at, Event::Arrive { request: 0 });
        }
        agenda.note(Moment::START, Event::Sample);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let warm_up = (trace.len() as f64 * WARM_UP) as usize;
        Self {
            trace,
            setup,
            agenda,
            engines,
            picker: Picker::new(policy.clone(), endpoints, engine.blocks, seed),
            bookings: HashMap::new(),
            left: trace.len(),
            outcome: Outcome::new(warm_up, endpoints.into()),
        }
    }

    fn on(&mut self, event: Event, now: Moment) -> Result<()> {
        match event {
            Event::Arrive { request } => self.arrive(request, now)?,
            Event::Deliver { request, endpoint } => {
                let Arrival { chain, prompt, .. } = self.arrival(request)?;
                let sequence = Sequence::new(request, Arc::clone(chain), *prompt);
                self.engines[endpoint].submit(sequence);
                self.step(endpoint, now);
            }
            Event::StepEnds { endpoint } => {
                for progress in self.engines[endpoint].end() {
                    self.note(progress, now)?;
                }
                self.step(endpoint, now);
            }
            Event::Scrape { endpoint } => {
                let load = self.picker.snapshot.members()[endpoint].endpoint.load();
                let page = self.engines[endpoint].page();
                load.scraped(load.scrape_starts(now), page)
                    .ok()
                    .context("a page without values")?;
                self.agenda
                    .note(now.plus(SCRAPE_EACH), Event::Scrape { endpoint });
            }
            Event::Sample => {
                let requests = self.engines.iter().map(Engine::requests);
                self.outcome.sample(requests);
                self.agenda.note(now.plus(SAMPLE_EACH), Event::Sample);
            }
        }
        Ok(())
    }

    fn arrive(&mut self, request: usize, now: Moment) -> Result<()> {
        let (arrival, setup) = (self.arrival(request)?, self.setup);
        let (endpoint, uncached) = self.picker.pick(arrival, now)?;
        if setup.policy.counts_own {
            let at = Arc::clone(&self.picker.snapshot.members()[endpoint].endpoint);
            let booking = Booking::new(at, uncached, None, now, setup.transit);
            self.bookings.insert(request, booking);
        }
        self.outcome.picked(request, endpoint);
        let delivered = now.plus(setup.delay);
        self.agenda
            .note(delivered, Event::Deliver { request, endpoint });
        let request = request + 1;
        if let Some(next) = self.trace.arrivals.get(request) {
            self.agenda.note(next.at, Event::Arrive { request });
        }
        Ok(())
    }

    fn note(&mut self, progress: Progress, now: Moment) -> Result<()> {
        match progress {
            Progress::Began { request, cached } => {
                let arrival = self.arrival(request)?;
                let after = now.since(arrival.at);
                self.outcome.began(request, after, cached, arrival.prompt);
                if let Some(booking) = self.bookings.get_mut(&request) {
                    booking.respond();
                }
            }
            Progress::Ended { request } => {
                self.bookings.remove(&request);
                self.outcome.ended(now);
                self.left -= 1;
            }
        }
        Ok(())
    }

    fn step(&mut self, endpoint: usize, now: Moment) {
        if let Some(took) = self.engines[endpoint].begin() {
            self.agenda
                .note(now.plus(took), Event::StepEnds { endpoint });
        }
    }

    fn arrival(&self, request: usize) -> Result<&'a Arrival> {
        self.trace.arrivals.get(request).context("no such request")
    }
}

// === impl Agenda ===

impl Agenda {
    fn note(&mut self, at: Moment, event: Event) {
        self.noted += 1;
        self.events.push(Reverse((at, self.noted, event)));
    }

    fn next(&mut self) -> Option<(Moment, Event)> {
        let Reverse((at, _, event)) = self.events.pop()?;
        Some((at, event))
    }
}

// === impl Picker ===

impl Picker {
    fn new(policy: Policy, endpoints: u8, blocks: usize, seed: u64) -> Self {
        let member = |number: u8| Member {
            id: EndpointId {
                namespace: "ml".into(),
                pod: format!("pod-{number:03}").into(),
                rank: 0,
                uid: "".into(),
            },
            address: (Ipv4Addr::new(10, 0, 0, number), PORT).into(),
            engine: "".into(),
            labels: Arc::default(),
        };
        let members = (0..endpoints).map(member).collect();
        let snapshot = Registry::default().update(members, Moment::START);
        let index = PrefixIndex::new(INDEX_BYTES, INDEX_SHARDS);
        for endpoint in snapshot.endpoints() {
            index.set_capacity(endpoint.slot(), blocks);
        }
        Self {
            policy,
            matched: vec![0; snapshot.members().len()],
            snapshot,
            index,
            table: Table::default(),
            next: 0,
            sessions: HashMap::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// The endpoint, and the tokens of the prompt that it is believed to have to compute.
    fn pick(&mut self, arrival: &Arrival, now: Moment) -> Result<(usize, u32)> {
        let profile = match &self.policy.chooser {
            Chooser::Profile(profile) => profile,
            Chooser::RoundRobin => {
                let endpoint = self.next;
                self.next = (endpoint + 1) % self.snapshot.members().len();
                return Ok((endpoint, arrival.prompt_tokens()));
            }
        };
        let session = arrival.session.and_then(|id| self.sessions.get(&id));
        let request = Request {
            prompt_tokens: arrival.prompt_tokens(),
            prefix: arrival.prefix().to_vec(),
            block_tokens: BLOCK,
            session: session.map(|slot| SessionAt::Slot(*slot)),
            ..Request::default()
        };
        let freshness = Freshness::default();
        self.snapshot
            .read_into(&mut self.table, now, freshness, false);
        self.index
            .matches(&request.prefix, &self.table.cache_slots, &mut self.matched);
        let choice = choose(&self.table, &request, &self.matched, profile, &mut self.rng)?;
        let endpoint = choice.first().context("no endpoint")?.member;
        let slot = self.table.cache_slots[endpoint];
        self.index.insert(&request.prefix, slot);
        if let Some(session) = arrival.session {
            self.sessions.insert(session, slot);
        }
        let matched = self.matched[endpoint].saturating_mul(BLOCK);
        Ok((endpoint, request.prompt_tokens.saturating_sub(matched)))
    }
}
