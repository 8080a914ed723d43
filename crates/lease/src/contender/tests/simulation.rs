//! Several contenders, one API server, and all that can happen between them: calls lost or late on either way, processes
//! that stop for a while, clocks that run apart. Two claims are never valid at once.

use proptest::prelude::*;

use super::*;

/// True time, in milliseconds. Each process has its own idea of it.
type Time = u64;

/// A run: who takes part and how bad it gets.
#[derive(Clone, Debug)]
struct Weather {
    seed: u64,
    /// How fast each one's clock runs, in percent.
    rates: Vec<u64>,
    /// Chance of a call to be lost, in percent; half of them after they took effect.
    loss: u64,
    /// Longest way of a call, each way.
    delay: Time,
    /// Chance that a process stops after it did something, in percent, and for how long at most.
    stops: u64,
    stop: Time,
    /// Chance that a leader gives back and begins anew, in percent of its renewals.
    restarts: u64,
}

/// One process.
struct Process {
    contender: Contender,
    rate: u64,
    offset: Time,
    /// The call under way: what, since when on its own clock, and when it gives up on the true one.
    waiting: Option<(Call, Moment, u64)>,
    /// Nothing happens in it before.
    stopped_until: Time,
    alarm: u64,
    calls: u64,
    lives: u64,
    /// Claims gained.
    led: u64,
}

/// What is to happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A call arrives at the server.
    Arrive(usize, u64, Box<Sent>),
    /// Its answer arrives.
    Answer(usize, u64, Box<Sent>),
    /// A process looks what there is to do, unless it has set its alarm anew.
    Wake(usize, u64),
}

/// A call or an answer on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    Get,
    Put {
        holder: String,
        transitions: i32,
        replaces: Option<String>,
    },
    Lease(Option<(String, i32, String)>),
    Conflict,
}

/// All of it.
struct World {
    weather: Weather,
    rng: StdRng,
    now: Time,
    events: std::collections::BTreeSet<(Time, u64, Event)>,
    count: u64,
    lease: Option<Record>,
    versions: u64,
    processes: Vec<Process>,
    calm: bool,
}

/// A call is given up on after this, as the elector does.
const DEADLINE: Time = 2_500;

impl Process {
    fn clock(&self, now: Time) -> Moment {
        at(self.offset + now * self.rate / 100)
    }

    fn leads(&self, now: Time) -> bool {
        self.clock(now) < self.contender.valid_until()
    }
}

impl World {
    fn new(weather: Weather) -> Self {
        let mut rng = StdRng::seed_from_u64(weather.seed);
        let processes: Vec<Process> = weather
            .rates
            .iter()
            .enumerate()
            .map(|(index, rate)| Process {
                contender: Contender::new(format!("p{index}-0")),
                rate: *rate,
                offset: rng.random_range(0..10_000_000),
                waiting: None,
                stopped_until: 0,
                alarm: 0,
                calls: 0,
                lives: 0,
                led: 0,
            })
            .collect();
        let mut world = Self {
            weather,
            rng,
            now: 0,
            events: std::collections::BTreeSet::new(),
            count: 0,
            lease: None,
            versions: 0,
            processes,
            calm: false,
        };
        for index in 0..world.processes.len() {
            let start = world.rng.random_range(0..5_000);
            world.alarm(start, index);
        }
        world
    }

    fn chance(&mut self, percent: u64) -> bool {
        !self.calm && self.rng.random_range(0..100) < percent
    }

    fn delay(&mut self) -> Time {
        let most = if self.calm { 20 } else { self.weather.delay };
        self.rng.random_range(1..=most)
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count, event));
    }

    fn alarm(&mut self, at: Time, index: usize) {
        let alarm = self.count + 1;
        self.processes[index].alarm = alarm;
        self.plan(at, Event::Wake(index, alarm));
    }

    /// Runs until `end`.
    fn run(&mut self, end: Time) {
        while let Some((time, _, _)) = self.events.first()
            && *time < end
        {
            let (time, _, event) = self.events.pop_first().expect("just seen");
            self.now = time;
            match event {
                Event::Arrive(index, number, sent) => self.arrive(index, number, &sent),
                Event::Answer(index, number, sent) => self.answered(index, number, *sent),
                Event::Wake(index, alarm) => {
                    if alarm == self.processes[index].alarm {
                        self.wake(index);
                    }
                }
            }
        }
        self.now = end;
    }

    /// The server: a write holds only against the version that it names.
    fn arrive(&mut self, index: usize, number: u64, sent: &Sent) {
        let answer = match sent {
            Sent::Put {
                holder,
                transitions,
                replaces,
            } => {
                let version = self.lease.as_ref().map(|lease| lease.version.clone());
                if version == *replaces {
                    self.versions += 1;
                    self.lease = Some(Record {
                        holder: holder.clone(),
                        transitions: *transitions,
                        version: self.versions.to_string(),
                    });
                    self.told()
                } else {
                    Sent::Conflict
                }
            }
            _ => self.told(),
        };
        if self.chance(self.weather.loss / 2) {
            return;
        }
        let at = self.now + self.delay();
        self.plan(at, Event::Answer(index, number, Box::new(answer)));
    }

    fn told(&self) -> Sent {
        Sent::Lease(self.lease.as_ref().map(|lease| {
            let Record {
                holder,
                transitions,
                version,
            } = lease.clone();
            (holder, transitions, version)
        }))
    }

    fn answered(&mut self, index: usize, number: u64, sent: Sent) {
        let stopped_until = self.processes[index].stopped_until;
        if self.now < stopped_until {
            // it lies in a buffer until the process goes on
            self.plan(stopped_until, Event::Answer(index, number, Box::new(sent)));
            return;
        }
        let process = &mut self.processes[index];
        if process.calls != number {
            return;
        }
        let Some((call, started, _)) = process.waiting.take() else {
            return;
        };
        let reply = match sent {
            Sent::Lease(lease) => {
                Reply::Lease(lease.map(|(holder, transitions, version)| Record {
                    holder,
                    transitions,
                    version,
                }))
            }
            _ => Reply::Conflict,
        };
        let (led, now) = (process.leads(self.now), process.clock(self.now));
        process
            .contender
            .on(&call, reply, started, now, &mut self.rng);
        if process.leads(self.now) && !led {
            process.led += 1;
        }
        self.check();
        if self.processes[index].leads(self.now) && self.chance(self.weather.restarts) {
            self.restart(index);
        }
        self.wake(index);
    }

    /// Two claims are never valid at once: claims only begin with an answer, so looking after each is enough.
    fn check(&self) {
        let leading: Vec<usize> = (0..self.processes.len())
            .filter(|index| self.processes[*index].leads(self.now))
            .collect();
        assert!(
            leading.len() <= 1,
            "at {}: {leading:?} lead, {:?}",
            self.now,
            self.lease
        );
    }

    /// Gives back, or is killed, and begins as another.
    fn restart(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let give_back = process.contender.release();
        process.lives += 1;
        process.calls += 1;
        process.contender = Contender::new(format!("p{index}-{}", process.lives));
        let killed = self.rng.random_range(0..2) == 0;
        if let (Some(Call::Put(draft)), false) = (give_back, killed) {
            let at = self.now + self.delay();
            let sent = Box::new(sent(Call::Put(draft)));
            self.plan(at, Event::Arrive(index, 0, sent));
        }
    }

    fn wake(&mut self, index: usize) {
        if self.chance(self.weather.stops) {
            let stop = self.rng.random_range(0..=self.weather.stop);
            self.processes[index].stopped_until = self.now + stop;
        }
        let process = &mut self.processes[index];
        if self.now < process.stopped_until {
            let until = process.stopped_until;
            self.alarm(until, index);
            return;
        }
        let now = process.clock(self.now);
        if let Some((call, started, until)) = process.waiting.take() {
            if self.now < until {
                process.waiting = Some((call, started, until));
                self.alarm(until, index);
                return;
            }
            process
                .contender
                .on(&call, Reply::Failed, started, now, &mut self.rng);
        }
        match process.contender.step(now, &mut self.rng) {
            Step::Wait(until) => {
                let wait = u64::try_from(until.since(now).as_millis()).expect("small");
                // rounded up, as timers do
                let at = self.now + wait * 100 / process.rate + 1;
                self.alarm(at, index);
            }
            Step::Call(call) => {
                process.calls += 1;
                let number = process.calls;
                let gives_up = self.now + DEADLINE * 100 / process.rate;
                process.waiting = Some((call.clone(), now, gives_up));
                self.alarm(gives_up, index);
                if self.chance(self.weather.loss / 2) {
                    return;
                }
                // it may stop between the look at its clock and the bytes on the wire
                let held = if self.chance(self.weather.stops) {
                    self.rng.random_range(0..=self.weather.stop)
                } else {
                    0
                };
                let stopped = &mut self.processes[index].stopped_until;
                *stopped = (*stopped).max(self.now + held);
                let at = self.now + held + self.delay();
                self.plan(at, Event::Arrive(index, number, Box::new(sent(call))));
            }
        }
    }

    fn leaders(&self) -> usize {
        let leads = |process: &&Process| process.leads(self.now);
        self.processes.iter().filter(leads).count()
    }
}

fn sent(call: Call) -> Sent {
    match call {
        Call::Get => Sent::Get,
        Call::Put(Draft {
            holder,
            transitions,
            replaces,
            ..
        }) => Sent::Put {
            holder,
            transitions,
            replaces,
        },
    }
}

prop_compose! {
    fn weather()(
        seed in any::<u64>(),
        // the fastest runs 1.49 times as fast as the slowest: 15 s against 10 s
        rates in prop::collection::vec(82..=122_u64, 2..=3),
        loss in 0..60_u64,
        delay in prop_oneof![Just(20), Just(1_000), Just(4_000)],
        stops in prop_oneof![Just(0_u64), 0..15_u64],
        stop in prop_oneof![Just(3_000), Just(12_000), Just(40_000)],
        restarts in 0..10_u64,
    ) -> Weather {
        Weather { seed, rates, loss, delay, stops, stop, restarts }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn two_claims_are_never_valid_at_once_and_calm_brings_a_leader(weather in weather()) {
        let mut world = World::new(weather);
        world.run(300_000);
        world.calm = true;
        // what stopped goes on, a lease runs out on the slowest clock, and a look or two more
        world.run(300_000 + 40_000 + 15_000 * 100 / 82 + 8_000);
        prop_assert_eq!(world.leaders(), 1, "{:?}", world.lease);
    }
}

#[test]
fn in_bad_weather_the_lease_goes_from_hand_to_hand() {
    // the property above would hold of contenders that never lead
    let mut world = World::new(Weather {
        seed: 1,
        rates: vec![100, 82, 122],
        loss: 30,
        delay: 1_000,
        stops: 10,
        stop: 40_000,
        restarts: 5,
    });
    world.run(1_000_000);
    let led: u64 = world.processes.iter().map(|process| process.led).sum();
    assert!(led >= 10, "{led}");
    assert!(world.processes.iter().all(|process| process.led > 0));
    let transitions = world.lease.as_ref().map(|lease| lease.transitions);
    assert!(transitions >= Some(5), "{transitions:?}");
}
