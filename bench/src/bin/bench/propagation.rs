//! From an event in one member until it is applied in all others: by the controller, and by a client that does nothing
//! else.

use std::{ops::Range, time::Duration};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{IMPORTS, Server};
use bench::{Bare, Controller, Figure, Fleet, NS, Usage, own_cpu, percentile, pool};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{PATIENCE, Run, SPACE, megabytes};

/// A fleet, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    members: usize,
    /// Of one key; the first of them has the events, one at a time.
    exporters: usize,
    tls: bool,
    events: u32,
}

/// What came of some events.
struct Series {
    /// Of each event: until all have applied it.
    last: Vec<Duration>,
    /// Of each event: until the last write has arrived.
    sent: Vec<Duration>,
    /// Of each write.
    each: Vec<Duration>,
    /// CPU of a write, in milliseconds, without what the time takes anyway.
    cpu: f64,
    /// The same of the load, nothing taken off.
    load: f64,
}

/// Enough members for their API servers' work to compete with what is sent to them.
const MANY: usize = 1000;
/// Writes that are held are worked on after the last one is sent, with room for three times the goal.
const HOLD: Duration = Duration::from_millis(300);
/// Events with writes held.
const HELD_EVENTS: u32 = 20;
/// From an event until all have applied it: what the slowest fleet takes, and much more.
const EVENT_LIMIT: Duration = Duration::from_mins(1);
/// What a client takes to do nothing is measured for this long.
const IDLE: Duration = Duration::from_secs(40);
/// After the begin: what it causes is over by then.
const REST: Duration = Duration::from_secs(3);

/// Of an EPP, another with each event.
fn address(event: u32) -> String {
    format!("198.51.{}.{}", 100 + event / 250, 1 + event % 250)
}

/// As it stands in an import.
fn quoted(event: u32) -> String {
    format!("\"{}\"", address(event))
}

// === impl Case ===

impl Case {
    pub(crate) fn new(members: usize, exporters: usize, tls: bool) -> Self {
        Self {
            members,
            exporters,
            tls,
            events: if members < MANY { 100 } else { 50 },
        }
    }

    fn label(self) -> String {
        let Self {
            members, exporters, ..
        } = self;
        let transport = if self.tls { "TLS" } else { "plain" };
        format!("{members} members, {exporters} exporters, {transport}")
    }

    /// Events with writes held, after the others.
    fn held(self) -> Range<u32> {
        let events = if self.members < MANY { 0 } else { HELD_EVENTS };
        self.events..self.events + events
    }
}

// === impl Run ===

impl Run {
    pub(crate) async fn propagation(&mut self, case: Case) -> Result<()> {
        let label = case.label();
        if !self.chooses(&label) {
            return Ok(());
        }
        let fleet = self.fleet(case.members, case.tls)?;
        fleet.export(1, case.exporters);
        let name = format!(
            "propagation-{}-{}-{}",
            case.members, case.exporters, case.tls
        );
        let (controller, _) = Self::start(&fleet, &name).await?;
        fleet.settled(1, case.exporters, PATIENCE).await?;
        let exporter = fleet.exporter(0, 0, case.exporters);
        let exporter = exporter.context("an exporter")?.clone();
        let usage = || controller.usage();
        let idle = idle(&usage).await?;
        let cause = |event| fleet.move_epp(&exporter, &address(event));
        let but = [exporter.name()];
        let series = Series::measure(&fleet, &but, 0..case.events, idle, &usage, cause).await?;
        self.note_times(&label, &series);
        self.note_cpu(&label, &controller, &series, idle)?;
        let held = case.held();
        if !held.is_empty() {
            let _hold = fleet.hold_writes(HOLD);
            let series = Series::measure(&fleet, &but, held, idle, &usage, cause).await?;
            self.note_held(&label, &series);
        }
        controller.stop().await?;
        if case.tls {
            self.floor(case, &fleet, &exporter, series.cpu).await?;
        }
        Ok(())
    }

    /// Whether members in trouble delay what all others are told.
    pub(crate) async fn trouble(&mut self, case: Case) -> Result<()> {
        let label = format!("{}, all others", case.label());
        if !self.chooses(&label) {
            return Ok(());
        }
        let fleet = self.fleet(case.members, case.tls)?;
        fleet.export(1, case.exporters);
        let (controller, _) = Self::start(&fleet, "trouble").await?;
        fleet.settled(1, case.exporters, PATIENCE).await?;
        let exporter = fleet.exporter(0, 0, case.exporters);
        let exporter = exporter.context("an exporter")?.clone();
        let usage = || controller.usage();
        let cause = |event| fleet.move_epp(&exporter, &address(event));
        let calm = 0..case.events;
        let but = [exporter.name()];
        let calm = Series::measure(&fleet, &but, calm, 0.0, &usage, cause).await?;
        let trouble = fleet.trouble()?;
        let but: Vec<&str> = but.into_iter().chain(trouble.names()).collect();
        let events = case.events..2 * case.events;
        let troubled = Series::measure(&fleet, &but, events, 0.0, &usage, cause).await?;
        for (when, series) in [
            ("all is well", &calm),
            ("one hung, one deaf, one slow", &troubled),
        ] {
            for share in [0.5, 0.99] {
                let what = format!("event to applied, {when}");
                self.note(time(&label, &what, &series.last, share));
            }
        }
        let p99 = |series: &Series| percentile(&series.last, 0.99).as_secs_f64();
        let what = format!("{label}: p99 with members in trouble / without");
        self.note(Figure::new(what, p99(&troubled) / p99(&calm), "x"));
        controller.stop().await?;
        Ok(())
    }

    /// Whether a case is asked for.
    fn chooses(&mut self, label: &str) -> bool {
        let only = self.args.only.as_deref();
        let chosen = only.is_none_or(|only| label.contains(only));
        self.matched |= chosen;
        chosen
    }

    fn note_times(&mut self, label: &str, series: &Series) {
        let applied = |share| time(label, "event to all applied", &series.last, share);
        self.note(applied(0.5));
        self.note(applied(0.99));
        self.note(time(label, "event to all sent", &series.sent, 0.99));
        self.note(time(label, "event to one applied", &series.each, 0.5));
    }

    fn note_held(&mut self, label: &str, series: &Series) {
        for share in [0.5, 0.99] {
            let what = format!("event to all sent, writes held {HOLD:?}");
            self.note(time(label, &what, &series.sent, share));
        }
    }

    fn note_cpu(
        &mut self,
        label: &str,
        controller: &Controller,
        series: &Series,
        idle: f64,
    ) -> Result<()> {
        let what = format!("{label}: controller CPU per write, idle taken off");
        self.note(Figure::new(what, series.cpu, "ms"));
        let what = format!("{label}: load's CPU per write");
        self.note(Figure::new(what, series.load, "ms"));
        let what = format!("{label}: controller idle");
        self.note(Figure::new(what, idle * 100.0, "% core"));
        let rss = megabytes(controller.usage()?.rss);
        self.note(Figure::new(format!("{label}: RSS"), rss, "MB"));
        Ok(())
    }

    /// The same through a bare client on the same fleet, after the controller has filled it and is gone. `of` is what a
    /// write took that.
    async fn floor(&mut self, case: Case, fleet: &Fleet, exporter: &Server, of: f64) -> Result<()> {
        let before = case.held();
        let events = before.end..before.end + case.events;
        let held = events.end..events.end + (before.end - before.start);
        let bodies = bodies(fleet, before.end - 1, events.start..held.end)?;
        // built with this program, and put beside it
        let program = std::env::current_exe().context("this program")?;
        let program = program.with_file_name("bare");
        let bare = fleet.bare(&program, exporter, &pool(0), &bodies).await?;
        let measured = self.bare(case, fleet, exporter, &bare, of, [events, held]);
        let measured = measured.await;
        // one that has ended tells more than what then did not happen
        bare.stop().await?;
        measured
    }

    async fn bare(
        &mut self,
        case: Case,
        fleet: &Fleet,
        exporter: &Server,
        bare: &Bare,
        of: f64,
        [events, held]: [Range<u32>; 2],
    ) -> Result<()> {
        let label = format!("{}, bare client", case.label());
        let usage = || bare.usage();
        let idle = idle(&usage).await?;
        let cause = |event| fleet.touch_pool(exporter, &pool(0), &address(event));
        let but = [exporter.name()];
        let series = Series::measure(fleet, &but, events, idle, &usage, cause).await?;
        for (what, times, share) in [
            ("event to all applied", &series.last, 0.5),
            ("event to all applied", &series.last, 0.99),
            ("event to all sent", &series.sent, 0.99),
        ] {
            self.note(time(&label, what, times, share));
        }
        let what = format!("{label}: CPU per write, idle taken off");
        self.note(Figure::new(what, series.cpu, "ms"));
        let what = format!("{label}: load's CPU per write");
        self.note(Figure::new(what, series.load, "ms"));
        let what = format!(
            "{}: controller's CPU per write / the bare client's",
            case.label()
        );
        self.note(Figure::new(what, of / series.cpu, "x"));
        if !held.is_empty() {
            let _hold = fleet.hold_writes(HOLD);
            let series = Series::measure(fleet, &but, held, idle, &usage, cause).await?;
            self.note_held(&label, &series);
        }
        Ok(())
    }
}

// === impl Series ===

impl Series {
    /// Has one event after the other, and waits for each. `idle` is what the client takes without any, as a share of a
    /// core.
    async fn measure(
        fleet: &Fleet,
        but: &[&str],
        events: Range<u32>,
        idle: f64,
        usage: &impl Fn() -> Result<Usage>,
        cause: impl Fn(u32),
    ) -> Result<Self> {
        let (mut last, mut each, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        let (from, cpu, load) = (Instant::now(), usage()?.cpu, own_cpu()?);
        let writes = fleet.writes().0;
        for event in events {
            let begin = Instant::now();
            cause(event);
            let times: Vec<Duration> = fleet
                .applied(&pool(0), &quoted(event), but, EVENT_LIMIT)
                .await?
                .iter()
                .map(|at| at.saturating_duration_since(begin))
                .collect();
            last.push(times.iter().max().copied().unwrap_or_default());
            sent.push(fleet.last_arrival(begin, &pool(0)));
            each.extend(times);
            sleep(SPACE).await;
        }
        let idle = idle * from.elapsed().as_secs_f64();
        let writes = ((fleet.writes().0 - writes) as f64).max(1.0);
        let cpu = usage()?.cpu.saturating_sub(cpu).as_secs_f64();
        let load = own_cpu()?.saturating_sub(load).as_secs_f64();
        Ok(Self {
            last,
            sent,
            each,
            cpu: (cpu - idle).max(0.0) * 1e3 / writes,
            load: load * 1e3 / writes,
        })
    }
}

fn time(label: &str, what: &str, times: &[Duration], share: f64) -> Figure {
    let name = format!("{label}: {what}, p{:.0}", share * 100.0);
    Figure::time(name, percentile(times, share))
}

/// What a client takes to do nothing, as a share of a core.
async fn idle(usage: &impl Fn() -> Result<Usage>) -> Result<f64> {
    sleep(REST).await;
    let (start, from) = (Instant::now(), usage()?.cpu);
    sleep(IDLE).await;
    let used = usage()?.cpu.saturating_sub(from);
    Ok(used.as_secs_f64() / start.elapsed().as_secs_f64())
}

/// What the controller applied for an event, as it would be for others: to an import in a member that exports nothing.
fn bodies(fleet: &Fleet, event: u32, others: Range<u32>) -> Result<Vec<String>> {
    let server = fleet.servers().last().context("no member")?;
    let import = server.get(&IMPORTS, NS, &pool(0)).context("no import")?;
    let body = json!({
        "apiVersion": import["apiVersion"], "kind": import["kind"],
        "metadata": {"namespace": NS, "name": pool(0)},
        "status": import["status"],
    })
    .to_string();
    let old = quoted(event);
    ensure!(body.contains(&old), "{} does not have {old}", server.name());
    Ok(others
        .map(|event| body.replace(&old, &quoted(event)))
        .collect())
}
