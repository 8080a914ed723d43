//! The EPP, the floor and other EPPs in turn: what they took, and how they compare.

use std::time::Duration;

use anyhow::Result;
use bench::{Figure, Picker, Sample, percentile};
use tokio::time::{Instant, sleep};

use super::{MANY, REST};
use crate::{middle, ratio};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Epp,
    Floor,
    /// Another EPP with the same configuration.
    Peer,
    /// With its own defaults.
    PeerDefaults,
}

/// A running one.
pub(super) struct Runner {
    pub(super) side: Side,
    /// That it picks from.
    pub(super) endpoints: usize,
    pub(super) picker: Picker,
    /// Share of a core that it takes for nothing.
    pub(super) idle: f64,
}

/// What one side took in the rounds of a case; one value each.
pub(super) struct Rounds {
    side: Side,
    /// CPU of a request in microseconds, idle taken off.
    cpu: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Of all rounds: one has too few for the slowest of a thousand.
    picks: Vec<Duration>,
}

/// One value of each round.
type Column = fn(&Rounds) -> &Vec<f64>;

const IDLE: Duration = Duration::from_secs(4);
/// Of 20 that are asked for; with fewer the figures of scraping are too good.
const LEAST_SCRAPES: f64 = 18.0;
const SCRAPES: &str = "epp_scrapes_total";

/// What an EPP with so many endpoints is called when it has no requests.
pub(super) fn idle_label(endpoints: usize) -> String {
    format!("EPP, {endpoints} endpoints scraped each 50 ms")
}

/// Of our EPP, beside those that all have.
pub(super) fn own_flags() -> Vec<String> {
    vec!["--log-level=error".to_owned()]
}

// === impl Side ===

impl Side {
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Epp | Self::Floor)
    }

    /// After the name of a case.
    fn suffix(self) -> &'static str {
        match self {
            Self::Epp => "",
            Self::Floor => ", floor",
            Self::Peer => ", peer",
            Self::PeerDefaults => ", peer by its defaults",
        }
    }

    /// What a ratio is to.
    fn owner(self) -> &'static str {
        match self {
            Self::Epp => "the EPP's",
            Self::Floor => "the floor's",
            Self::Peer => "the peer's",
            Self::PeerDefaults => "the peer's by its defaults",
        }
    }
}

// === impl Runner ===

impl Runner {
    pub(super) fn new(side: Side, endpoints: usize, picker: Picker) -> Self {
        Self {
            side,
            endpoints,
            picker,
            idle: 0.0,
        }
    }

    /// What scraping takes, pages of so many bytes.
    pub(super) async fn measure_idle(&mut self, page: usize) -> Result<Vec<Figure>> {
        sleep(REST).await;
        let label = idle_label(self.endpoints) + self.side.suffix();
        let scrapes_before = self.picker.metric(SCRAPES).await?;
        let (start, before) = (Instant::now(), self.picker.cpu()?);
        sleep(IDLE).await;
        let taken = self.picker.cpu()?.saturating_sub(before).as_secs_f64();
        let took = start.elapsed().as_secs_f64();
        let scrapes = self.picker.metric(SCRAPES).await? - scrapes_before;
        self.idle = taken / took;
        let mut figures = vec![Figure::new(
            format!("{label}: idle"),
            self.idle * 100.0,
            "% core",
        )];
        if self.side == Side::Epp && self.endpoints == MANY {
            let mut push = |what: &str, value, unit| {
                figures.push(Figure::new(format!("{label}: {what}"), value, unit));
            };
            push("a metrics page", page as f64 / 1e3, "KB");
            let each = scrapes / took / self.endpoints as f64;
            push("scrapes a second of each", each, "");
            if each < LEAST_SCRAPES {
                eprintln!(
                    "{label}: too few scrapes, {each:.1} a second: the model servers are too slow here"
                );
            }
            push("CPU of a scrape", taken * 1e3 / scrapes.max(1.0), "ms");
        }
        Ok(figures)
    }
}

// === impl Rounds ===

impl Rounds {
    pub(super) fn of(sides: impl Iterator<Item = Side>) -> Vec<Self> {
        let empty = |side| Self {
            side,
            cpu: Vec::new(),
            p50: Vec::new(),
            p99: Vec::new(),
            picks: Vec::new(),
        };
        sides.map(empty).collect()
    }

    pub(super) fn note(&mut self, sample: &Sample, cpu: f64) {
        self.cpu.push(cpu * 1e6 / sample.picks.len().max(1) as f64);
        self.p50.push(micros(percentile(&sample.picks, 0.5)));
        self.p99.push(micros(percentile(&sample.picks, 0.99)));
        self.picks.extend_from_slice(&sample.picks);
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// CPU of each side, and ours as a share of the others'.
pub(super) fn cpu_figures(label: &str, all: &[Rounds]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for rounds in all {
        let (suffix, idle) = match rounds.side {
            Side::Floor => (rounds.side.suffix(), ""),
            side => (side.suffix(), ", idle taken off"),
        };
        let name = format!("{label}{suffix}: CPU per request{idle}");
        figures.push(Figure::new(name, middle(&rounds.cpu), "µs"));
    }
    figures.extend(shares(
        all,
        |one| &one.cpu,
        |owner| format!("{label}: CPU per request / {owner}"),
    ));
    figures
}

/// Times of each side, and ours as a share of the others'.
pub(super) fn time_figures(label: &str, what: &str, all: &[Rounds]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let of: [(&str, Column); 2] = [("p50", |one| &one.p50), ("p99", |one| &one.p99)];
    for (share, of) in of {
        for rounds in all {
            let name = format!("{label}{}: {what}, {share}", rounds.side.suffix());
            figures.push(Figure::new(name, middle(of(rounds)), "µs"));
        }
        figures.extend(shares(all, of, |owner| {
            format!("{label}: {what}, {share} / {owner}")
        }));
    }
    for rounds in all {
        let name = format!("{label}{}: {what}, p99.9", rounds.side.suffix());
        let value = micros(percentile(&rounds.picks, 0.999));
        figures.push(Figure::new(name, value, "µs"));
    }
    figures
}

fn shares(
    all: &[Rounds],
    of: impl Fn(&Rounds) -> &Vec<f64>,
    name: impl Fn(&str) -> String,
) -> Vec<Figure> {
    let Some(epp) = all.iter().find(|rounds| rounds.side == Side::Epp) else {
        return Vec::new();
    };
    let others = all.iter().filter(|rounds| rounds.side != Side::Epp);
    let share =
        |other: &Rounds| Figure::new(name(other.side.owner()), ratio(of(epp), of(other)), "x");
    others.map(share).collect()
}
