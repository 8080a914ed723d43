//! How good the choices of the EPP's default profile are beside others, in a simulation.

use std::time::Duration;

use anyhow::Result;
use bench::{
    EngineModel, Figure, Outcome, Policy, ROWS, Setup, Trace, Workload, capacity, simulate,
};

use crate::Run;

/// What is read of an outcome.
#[derive(Clone, Copy, Debug)]
struct Measure {
    name: &'static str,
    unit: &'static str,
    of: fn(&Outcome) -> f64,
}

/// The outcomes of one policy, one for each seed.
struct Runs {
    policy: &'static str,
    outcomes: Vec<Outcome>,
}

/// Of the traces, and of what chance decides in choices.
const SEEDS: [u64; 3] = [1, 2, 3];
const ENDPOINTS: u8 = 10;
const REQUESTS: usize = 8000;
/// In percent of the capacity with one endpoint after the other.
const LOADS: [u32; 3] = [50, 80, 95];
/// The load for what is compared at one load only.
const USUAL: u32 = 80;
/// Content of a trace depends on its rate a little; capacity is measured with this one.
const NOMINAL_RATE: f64 = 50.0;
/// From a pick until its request arrives, for gateways elsewhere.
const DELAYS: [u64; 3] = [0, 20, 80];
/// On top of the round trip that is measured: as in the program.
const MARGIN: Duration = Duration::from_millis(2);
/// The EPP takes the transit for this while nobody measured it.
const UNMEASURED: Duration = scheduling::DEFAULT_TRANSIT;

const MEASURES: [Measure; 5] = [
    measure("TTFT p50", "ms", |outcome| outcome.first_token_ms(0.5)),
    measure("TTFT p99", "ms", |outcome| outcome.first_token_ms(0.99)),
    measure("cached", "%", |outcome| outcome.cached() * 100.0),
    measure("requests, most / mean", "x", Outcome::spread),
    measure("picks in 100 ms, most / mean", "x", Outcome::bunching),
];

const fn measure(name: &'static str, unit: &'static str, of: fn(&Outcome) -> f64) -> Measure {
    Measure { name, unit, of }
}

// === impl Run ===

impl Run {
    pub(crate) fn quality(&mut self) -> Result<()> {
        let label = |load: u32| format!("EPP quality, {load} % load");
        for load in LOADS {
            if self.wants(&label(load)) {
                let policies = Policy::compared();
                self.compare(&label(load), load, policies, Workload::Mixed)?;
            }
        }
        if self.wants("EPP quality, scorers") {
            self.compare(
                "EPP quality, scorers",
                USUAL,
                Policy::alternatives(),
                Workload::Mixed,
            )?;
        }
        for (name, workload) in [("mixed", Workload::Mixed), ("short", Workload::Short)] {
            for load in LOADS {
                let label = format!("EPP quality, {name} requests, {load} % load");
                if self.wants(&label) {
                    self.distance(&label, load, workload)?;
                }
            }
        }
        Ok(())
    }

    /// Whether `--only` asks for some figure of this label.
    pub(crate) fn wants(&self, label: &str) -> bool {
        let only = self.args.only.as_deref();
        only.is_none_or(|part| label.contains(part) || part.starts_with(label))
    }

    /// Our default beside other policies.
    fn compare(
        &mut self,
        label: &str,
        load: u32,
        others: Vec<Policy>,
        workload: Workload,
    ) -> Result<()> {
        let traces = traces(workload, load)?;
        let run = |policy: Policy| -> Result<Runs> {
            let name = policy.name;
            Runs::new(
                name,
                &traces,
                &mk_setup(policy, Duration::ZERO, Duration::ZERO),
            )
        };
        let ours = run(Policy::default_profile())?;
        let others: Vec<Runs> = others.into_iter().map(run).collect::<Result<_>>()?;
        println!(
            "\n{label}, {ENDPOINTS} endpoints, median of {} seeds",
            SEEDS.len()
        );
        print_table(std::iter::once(&ours).chain(&others));
        for measure in MEASURES {
            let name = format!("{label}, default: {}", measure.name);
            self.keep(Figure::new(name, ours.median(measure), measure.unit));
        }
        for other in &others {
            for measure in MEASURES {
                let name = format!("{label}, {}: {}", other.policy, measure.name);
                self.keep(Figure::new(name, other.median(measure), measure.unit));
            }
            for measure in MEASURES.iter().take(2) {
                let name = format!("{label}: {}, default / {}", measure.name, other.policy);
                self.keep(Figure::new(name, ours.share_of(other, *measure), "x"));
            }
        }
        Ok(())
    }

    /// Gateways whose requests arrive late, with their way measured and without.
    fn distance(&mut self, label: &str, load: u32, workload: Workload) -> Result<()> {
        let traces = traces(workload, load)?;
        for millis in DELAYS {
            let delay = Duration::from_millis(millis);
            let run =
                |name, policy, transit| Runs::new(name, &traces, &mk_setup(policy, delay, transit));
            let ours = Policy::default_profile;
            let measured = run("way measured", ours(), delay + MARGIN)?;
            let unknown = run("way not known yet", ours(), UNMEASURED)?;
            let without = run("way not counted", ours(), Duration::ZERO)?;
            let reference = run("reference's scoring", Policy::reference(), Duration::ZERO)?;
            let all = [&measured, &unknown, &without, &reference];
            let label = format!("{label}, gateways {millis} ms away");
            println!("\n{label}");
            print_table(all);
            for runs in all {
                for measure in MEASURES {
                    let name = format!("{label}: {}, {}", measure.name, runs.policy);
                    self.keep(Figure::new(name, runs.median(measure), measure.unit));
                }
            }
            for measure in MEASURES.iter().filter(|one| one.unit != "%") {
                let name = format!("{label}: {}, measured / not counted", measure.name);
                self.keep(Figure::new(
                    name,
                    measured.share_of(&without, *measure),
                    "x",
                ));
            }
        }
        Ok(())
    }

    /// All go into the JSON; the terminal has tables, and the rows of the document.
    pub(crate) fn keep(&mut self, figure: Figure) {
        self.matched = true;
        if ROWS.iter().any(|row| row.name == figure.name) {
            self.note(figure);
        } else {
            self.figures.push(figure);
        }
    }
}

/// One for each seed, at this share of what the endpoints can do.
fn traces(workload: Workload, load: u32) -> Result<Vec<Trace>> {
    let yardstick = mk_setup(Policy::round_robin(), Duration::ZERO, Duration::ZERO);
    let trace = |seed| {
        let most = capacity(
            &Trace::generate(workload, REQUESTS, NOMINAL_RATE, seed),
            &yardstick,
        )?;
        let rate = most * f64::from(load) / 100.0;
        Ok(Trace::generate(workload, REQUESTS, rate, seed))
    };
    SEEDS.into_iter().map(trace).collect()
}

fn mk_setup(policy: Policy, delay: Duration, transit: Duration) -> Setup {
    Setup {
        endpoints: ENDPOINTS,
        engine: EngineModel::default(),
        policy,
        delay,
        transit,
        seed: 1,
    }
}

fn print_table<'a>(all: impl IntoIterator<Item = &'a Runs>) {
    let heads = MEASURES
        .iter()
        .map(|measure| format!("{:>30}", measure.name));
    println!("{:<32}{}", "", heads.collect::<String>());
    for runs in all {
        let values = MEASURES.iter().map(|measure| {
            let value = Figure::new("", runs.median(*measure), measure.unit).text();
            format!("{value:>30}")
        });
        println!("{:<32}{}", runs.policy, values.collect::<String>());
    }
}

// === impl Runs ===

impl Runs {
    fn new(policy: &'static str, traces: &[Trace], setup: &Setup) -> Result<Self> {
        let outcomes = traces.iter().map(|trace| simulate(trace, setup));
        Ok(Self {
            policy,
            outcomes: outcomes.collect::<Result<_>>()?,
        })
    }

    fn values(&self, measure: Measure) -> Vec<f64> {
        self.outcomes.iter().map(measure.of).collect()
    }

    fn median(&self, measure: Measure) -> f64 {
        crate::middle(&self.values(measure))
    }

    /// Seed by seed: both had the same requests.
    fn share_of(&self, other: &Self, measure: Measure) -> f64 {
        crate::ratio(&self.values(measure), &other.values(measure))
    }
}
