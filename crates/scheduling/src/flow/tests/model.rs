//! Any sequence of calls against a model that scans a list each time.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// What [`Controller`] should do, without any index.
struct Model {
    config: Config,
    /// Each with the time it began.
    regimes: Vec<(Moment, Regime)>,
    waiting: Vec<Entry>,
    /// By priority, the flows in the order of their turns.
    turns: BTreeMap<i32, VecDeque<Arc<str>>>,
}

#[derive(Clone, Debug)]
struct Entry {
    ticket: Ticket,
    request: Waiting,
    enqueued: Moment,
    serving: Duration,
    empty: Duration,
    /// When its time was over, in which regime.
    over: Option<(Moment, Regime)>,
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue(Waiting),
    Next(f64),
    /// Any ticket there ever was, by its share of them.
    Cancel(f64),
    Expire,
    SetRegime(Regime),
    Reconfigure(Config),
    Drain,
    Pass(Duration),
}

// === impl Model ===

impl Model {
    fn enqueue(&mut self, request: Waiting, now: Moment) -> bool {
        let band = *self.config.band(request.priority);
        let (mut in_band, mut in_all) = ((1, request.bytes), (1, request.bytes));
        for entry in &self.waiting {
            in_all = (in_all.0 + 1, in_all.1 + entry.request.bytes);
            if entry.request.priority == request.priority {
                in_band = (in_band.0 + 1, in_band.1 + entry.request.bytes);
            }
        }
        in_band.0 <= band.max_requests
            && in_band.1 <= band.max_bytes
            && self.config.max_requests.is_none_or(|max| in_all.0 <= max)
            && self.config.max_bytes.is_none_or(|max| in_all.1 <= max)
            && {
                self.admit(request, now);
                true
            }
    }

    fn admit(&mut self, request: Waiting, now: Moment) {
        let (ttl, wish) = (self.config.default_ttl, request.ttl.unwrap_or_default());
        let serving = if ttl.is_zero() || wish.is_zero() {
            ttl.max(wish)
        } else {
            ttl.min(wish)
        };
        self.waiting.push(Entry {
            ticket: Ticket(u64::MAX),
            request,
            enqueued: now,
            serving,
            empty: self.config.no_endpoint_ttl.unwrap_or(ttl),
            over: None,
        });
        self.queue_turns();
    }

    /// Flows with something to dispatch have a turn, new ones the last; the others have none.
    fn queue_turns(&mut self) {
        let ready: Vec<_> = self.waiting.iter().filter(|e| e.over.is_none()).collect();
        for (priority, turns) in &mut self.turns {
            turns.retain(|id| {
                ready.iter().any(|entry| {
                    entry.request.priority == *priority && entry.request.fairness_id == *id
                })
            });
        }
        for entry in ready {
            let turns = self.turns.entry(entry.request.priority).or_default();
            if !turns.contains(&entry.request.fairness_id) {
                turns.push_back(Arc::clone(&entry.request.fairness_id));
            }
        }
    }

    fn regime(&self) -> (Moment, Regime) {
        *self.regimes.last().unwrap()
    }

    fn due(&self, entry: &Entry) -> Option<Moment> {
        let (since, regime) = self.regime();
        let ttl = match regime {
            Regime::Serving => entry.serving,
            Regime::Empty => entry.empty,
        };
        if ttl.is_zero() {
            return None;
        }
        let due = since.max(entry.enqueued) + ttl;
        if entry.serving.is_zero() || entry.empty.is_zero() {
            return Some(due);
        }
        Some(due.min(entry.enqueued + entry.serving.max(entry.empty)))
    }

    fn advance(&mut self, now: Moment) {
        let (_, regime) = self.regime();
        for index in 0..self.waiting.len() {
            if let Some(due) = self.due(&self.waiting[index])
                && due <= now
            {
                self.waiting[index].over.get_or_insert((due, regime));
            }
        }
        self.queue_turns();
    }

    fn next(&mut self, now: Moment) -> Option<Ticket> {
        self.advance(now);
        let ready = || self.waiting.iter().filter(|entry| entry.over.is_none());
        let priority = ready().map(|entry| entry.request.priority).max()?;
        let band = *self.config.band(priority);
        let turn = self.turns[&priority].front()?;
        let ticket = ready()
            .filter(|entry| entry.request.priority == priority)
            .filter(|entry| {
                band.fairness == Fairness::GlobalStrict || entry.request.fairness_id == *turn
            })
            .min_by_key(|entry| match band.ordering {
                Ordering::Fcfs => (false, at(0), entry.ticket),
                Ordering::Edf => (
                    entry.serving.is_zero(),
                    entry.enqueued + entry.serving,
                    entry.ticket,
                ),
            })?
            .ticket;
        if band.fairness == Fairness::RoundRobin {
            self.turns.entry(priority).or_default().rotate_left(1);
        }
        self.remove(ticket);
        Some(ticket)
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|entry| entry.ticket != ticket);
        self.queue_turns();
        self.waiting.len() < before
    }

    fn expire(&mut self, now: Moment) -> Vec<Expired> {
        self.advance(now);
        let mut over: Vec<_> = self
            .waiting
            .extract_if(.., |entry| entry.over.is_some())
            .map(|entry| (entry.over.unwrap(), entry.ticket))
            .collect();
        over.sort_by_key(|((due, _), ticket)| (*due, *ticket));
        over.into_iter()
            .map(|((_, regime), ticket)| Expired { ticket, regime })
            .collect()
    }

    fn set_regime(&mut self, regime: Regime, now: Moment) {
        if self.regime().1 != regime {
            self.advance(now);
            self.regimes.push((now, regime));
        }
    }

    fn reconfigure(&mut self, config: Config) {
        let old = std::mem::replace(&mut self.config, config);
        let changed = |priority: &i32| {
            let (was, is) = (old.band(*priority), self.config.band(*priority));
            (was.fairness, was.ordering) != (is.fairness, is.ordering)
        };
        self.turns.retain(|priority, _| !changed(priority));
        self.queue_turns();
    }

    fn deadline(&self) -> Option<Moment> {
        let dues = self.waiting.iter().filter_map(|entry| match entry.over {
            Some((due, _)) => Some(due),
            None => self.due(entry),
        });
        dues.min()
    }

    fn flows(&self) -> Vec<(i32, Arc<str>, Usage)> {
        let mut flows: Vec<(i32, Arc<str>, Usage)> = Vec::new();
        for Entry { request, .. } in &self.waiting {
            let key = (request.priority, &request.fairness_id);
            let index = flows
                .iter()
                .position(|(priority, id, _)| (*priority, id) == key);
            let index = index.unwrap_or_else(|| {
                let id = Arc::clone(&request.fairness_id);
                flows.push((request.priority, id, Usage::default()));
                flows.len() - 1
            });
            flows[index].2.requests += 1;
            flows[index].2.bytes += request.bytes;
        }
        flows.sort_by_key(|(priority, id, _)| (std::cmp::Reverse(*priority), Arc::clone(id)));
        flows
    }
}

fn any_ttl() -> impl Strategy<Value = Duration> {
    (0_u64..4).prop_map(|seconds| Duration::from_secs(5 * seconds))
}

fn any_band() -> impl Strategy<Value = BandConfig> {
    let fairness = prop_oneof![Just(Fairness::GlobalStrict), Just(Fairness::RoundRobin)];
    let ordering = prop_oneof![Just(Ordering::Fcfs), Just(Ordering::Edf)];
    (fairness, ordering, 1_u64..12, 20_u64..100).prop_map(
        |(fairness, ordering, max_requests, max_bytes)| BandConfig {
            max_requests,
            max_bytes,
            fairness,
            ordering,
        },
    )
}

fn any_config() -> impl Strategy<Value = Config> {
    (
        prop::collection::btree_map(-1..2, any_band(), 0..2),
        any_band(),
        prop::option::of(any_band()),
        any_ttl(),
        prop::option::of(any_ttl()),
        prop::option::of(5_u64..30),
        prop::option::of(50_u64..200),
    )
        .prop_map(
            |(
                bands,
                default_band,
                default_negative_band,
                default_ttl,
                no_endpoint_ttl,
                max_requests,
                max_bytes,
            )| Config {
                bands,
                default_band,
                default_negative_band,
                default_ttl,
                no_endpoint_ttl,
                max_requests,
                max_bytes,
            },
        )
}

fn any_op() -> impl Strategy<Value = Op> {
    let waiting = (-1..2, 0..4, 0_u64..12, prop::option::of(any_ttl())).prop_map(
        |(priority, flow, bytes, ttl)| {
            let waiting = mk_waiting(
                priority,
                ["a", "b", "c", "d"][usize::try_from(flow).unwrap()],
            );
            Waiting {
                bytes,
                ttl,
                ..waiting
            }
        },
    );
    prop_oneof![
        40 => waiting.prop_map(Op::Enqueue),
        20 => prop_oneof![4 => Just(0.5), 1 => Just(1.0)].prop_map(Op::Next),
        10 => (0.0..1.0).prop_map(Op::Cancel),
        5 => Just(Op::Expire),
        5 => prop_oneof![Just(Regime::Serving), Just(Regime::Empty)].prop_map(Op::SetRegime),
        2 => any_config().prop_map(Op::Reconfigure),
        1 => Just(Op::Drain),
        20 => (0_u64..6).prop_map(|seconds| Op::Pass(Duration::from_secs(seconds))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_sequence_is_as_in_the_model(
        config in any_config(),
        ops in prop::collection::vec(any_op(), 0..120),
    ) {
        let mut controller = Controller::new(config.clone(), Regime::Serving);
        let mut model = Model {
            config,
            regimes: vec![(Moment::START, Regime::Serving)],
            waiting: Vec::new(),
            turns: BTreeMap::new(),
        };
        let mut now = at(1);
        let (mut issued, mut left) = (Vec::new(), Vec::new());
        for op in ops {
            match op {
                Op::Enqueue(request) => {
                    let enqueued = controller.enqueue(request.clone(), now);
                    prop_assert_eq!(model.enqueue(request, now), enqueued.is_ok());
                    if let Ok(ticket) = enqueued {
                        model.waiting.last_mut().unwrap().ticket = ticket;
                        issued.push(ticket);
                    }
                }
                Op::Next(saturation) if saturation < 1.0 => {
                    let next = controller.next(now, saturation);
                    prop_assert_eq!(next, model.next(now));
                    // No lock-up: what can be dispatched is.
                    prop_assert!(next.is_some() || model.waiting.iter().all(|e| e.over.is_some()));
                    left.extend(next);
                }
                Op::Next(saturation) => {
                    prop_assert_eq!(controller.next(now, saturation), None);
                    model.advance(now);
                }
                Op::Cancel(share) if !issued.is_empty() => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a share of a short list"
                    )]
                    let ticket = issued[(share * issued.len() as f64) as usize];
                    let cancelled = controller.cancel(ticket);
                    prop_assert_eq!(cancelled, model.remove(ticket));
                    left.extend(cancelled.then_some(ticket));
                }
                Op::Cancel(_) => {}
                Op::Expire => {
                    let expired = controller.expire(now);
                    prop_assert_eq!(&expired, &model.expire(now));
                    left.extend(tickets(expired));
                }
                Op::SetRegime(regime) => {
                    controller.set_regime(regime, now);
                    model.set_regime(regime, now);
                    prop_assert_eq!(controller.regime(), regime);
                }
                Op::Reconfigure(config) => {
                    controller.reconfigure(config.clone());
                    model.reconfigure(config);
                }
                Op::Drain => {
                    let drained = controller.drain();
                    let want: Vec<_> = model.waiting.drain(..).map(|entry| entry.ticket).collect();
                    prop_assert_eq!(&drained, &want);
                    left.extend(drained);
                    model.queue_turns();
                }
                Op::Pass(time) => now = now + time,
            }
            prop_assert_eq!(controller.deadline(), model.deadline());
            let flows: Vec<_> = controller
                .flows()
                .map(|flow| (flow.priority, Arc::clone(flow.fairness_id), flow.usage))
                .collect();
            prop_assert_eq!(&flows, &model.flows());
            let (mut bands, mut total) = (BTreeMap::new(), Usage::default());
            for (priority, _, usage) in flows {
                for sum in [bands.entry(priority).or_default(), &mut total] {
                    sum.requests += usage.requests;
                    sum.bytes += usage.bytes;
                }
            }
            prop_assert_eq!(controller.usage(), total);
            let bands: Vec<_> = bands.into_iter().rev().collect();
            prop_assert_eq!(controller.bands().collect::<Vec<_>>(), bands);
        }
        // Each ticket leaves exactly once.
        left.extend(controller.drain());
        left.sort();
        prop_assert_eq!(left, issued);
        let Controller { requests, due, overdue, .. } = &controller;
        prop_assert!(requests.is_empty() && due.is_empty() && overdue.is_empty());
        prop_assert_eq!(controller.next(now, 0.0), None);
    }
}
