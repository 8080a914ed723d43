//! The data path: what an Envoy answers by way of endpoint pickers, beside what the same Envoy answers without one.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow};
use bench::{
    Figure,
    datapath::{Window, share_two_cores},
};
use testbed::Inside;

use self::{
    bed::{Bed, Used},
    objects::CLUSTERS,
};
use crate::{
    Run,
    metadata::{beside, micros},
    middle, ratio,
};

mod bed;
mod objects;

/// One way to model servers.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// In the names of figures.
    name: &'static str,
    way: Way,
}

/// How requests get to a model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A route to a Service.
    Service,
    /// A route to a pool of the same cluster.
    Pool,
    /// The same, with an endpoint picker that does the least that one must do.
    Floor,
    /// A route to an import with one cluster, whose endpoint picker is asked.
    Endpoint,
    /// A route to an import with two such clusters, and the default selection.
    Two,
    /// A route to an import with one cluster, through an Envoy there, which asks the endpoint picker.
    Parent,
}

/// The first is what the others are compared with.
const CASES: [Case; 6] = [
    Case {
        name: "data path, no EPP",
        way: Way::Service,
    },
    Case {
        name: "data path, pool",
        way: Way::Pool,
    },
    Case {
        name: "data path, pool, floor as EPP",
        way: Way::Floor,
    },
    Case {
        name: "data path, import in EndpointMode",
        way: Way::Endpoint,
    },
    Case {
        name: "data path, import of two clusters",
        way: Way::Two,
    },
    Case {
        name: "data path, import in ParentMode",
        way: Way::Parent,
    },
];

/// All cases in turn, so often: what else the machine does comes and goes.
const ROUNDS: usize = 5;
/// Of each case in a round, before it is measured and while it is.
const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(3);
/// With `--quick`.
const QUICK_ROUNDS: usize = 2;
const QUICK_WARM_UP: Duration = Duration::from_millis(200);
const QUICK_WINDOW: Duration = Duration::from_millis(500);

/// What is to be measured, and with what.
struct Plan {
    cases: Vec<Case>,
    rounds: usize,
    /// Before a measurement, and as long as it takes.
    times: (Duration, Duration),
    programs: Programs,
}

/// Where the programs are, and where their logs go.
struct Programs {
    gateway: PathBuf,
    epp: PathBuf,
    floor: PathBuf,
    envoy: PathBuf,
    logs: PathBuf,
}

/// What a case was measured to take; one value of each round.
#[derive(Default)]
struct Rounds {
    per_second: Vec<f64>,
    /// In milliseconds.
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// CPU of a request in microseconds.
    envoy: Vec<f64>,
    epp: Vec<f64>,
    load: Vec<f64>,
}

// === impl Run ===

impl Run {
    pub(crate) async fn data_path(&mut self, inside: &Inside) -> Result<()> {
        let others = CASES.into_iter().skip(1);
        let others: Vec<Case> = others.filter(|case| self.wants(case.name)).collect();
        let floor = CASES.into_iter().take(1);
        if others.is_empty() && !floor.clone().any(|case| self.wants(case.name)) {
            return Ok(());
        }
        let (rounds, times) = if self.args.quick {
            (QUICK_ROUNDS, (QUICK_WARM_UP, QUICK_WINDOW))
        } else {
            (ROUNDS, (WARM_UP, WINDOW))
        };
        let epp = self.args.epp.clone();
        let plan = Plan {
            cases: floor.chain(others).collect(),
            rounds,
            times,
            programs: Programs {
                gateway: beside("gateway")?,
                epp: epp.map_or_else(|| beside("epp"), Ok)?,
                floor: beside("floor")?,
                envoy: testbed::find_envoy()?,
                logs: self.args.logs.clone(),
            },
        };
        let networks = CLUSTERS.map(objects::Cluster::network);
        testbed::standalone::add_local_networks(inside, &networks).await?;
        // a thread of its own: it has two cores, and so has what it starts
        let measuring = std::thread::spawn(move || {
            share_two_cores()?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .context("the runtime")?;
            runtime.block_on(plan.measure())
        });
        let figures = measuring
            .join()
            .map_err(|_| anyhow!("measuring the data path"))??;
        for figure in figures {
            self.keep(figure);
        }
        Ok(())
    }
}

// === impl Plan ===

impl Plan {
    async fn measure(self) -> Result<Vec<Figure>> {
        let mut bed = Bed::start(&self.programs).await?;
        let outcome = self.rounds(&mut bed).await;
        let logs = self.programs.logs.display();
        outcome.with_context(|| format!("logs: {logs}/datapath-*.log"))
    }

    async fn rounds(&self, bed: &mut Bed) -> Result<Vec<Figure>> {
        for case in &self.cases {
            bed.until_answered(*case).await?;
        }
        let mut all: Vec<Rounds> = self.cases.iter().map(|_| Rounds::default()).collect();
        for _ in 0..self.rounds {
            for (case, rounds) in self.cases.iter().zip(&mut all) {
                let (warm_up, window) = self.times;
                let (window, used) = bed.load(*case, warm_up, window).await?;
                rounds.note(&window, used);
            }
        }
        let mut figures = Vec::new();
        let floor = all.first().context("no case")?;
        for (case, rounds) in self.cases.iter().zip(&all) {
            figures.extend(rounds.figures(*case, floor));
        }
        Ok(figures)
    }
}

// === impl Rounds ===

impl Rounds {
    fn note(&mut self, window: &Window, used: Used) {
        let each = |cpu| micros(cpu) / window.answers as f64;
        let Used { envoy, epp, load } = used;
        self.per_second.push(window.per_second);
        self.p50.push(micros(window.p50) / 1e3);
        self.p99.push(micros(window.p99) / 1e3);
        self.envoy.push(each(envoy));
        self.epp.push(each(epp));
        self.load.push(each(load));
    }

    fn figures(&self, case: Case, floor: &Self) -> Vec<Figure> {
        let figure = |what: &str, value, unit| {
            let name = format!("{}: {what}", case.name);
            Figure::new(name, value, unit)
        };
        let mut figures = vec![figure("requests/s", middle(&self.per_second), "")];
        if case.way != Way::Service {
            let share = ratio(&self.per_second, &floor.per_second);
            figures.push(figure("requests/s / without EPP", share, "x"));
        }
        figures.push(figure("p50", middle(&self.p50), "ms"));
        figures.push(figure("p99", middle(&self.p99), "ms"));
        figures.push(figure(
            "CPU of Envoy per request",
            middle(&self.envoy),
            "µs",
        ));
        if case.way != Way::Service {
            figures.push(figure("CPU of EPP per request", middle(&self.epp), "µs"));
        }
        figures.push(figure("CPU of load per request", middle(&self.load), "µs"));
        figures
    }
}
