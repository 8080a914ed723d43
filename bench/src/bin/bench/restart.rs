//! What is kept in memory, and what a restart writes.

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::{Controller, Figure, Fleet};
use tokio::time::sleep;

use crate::{PATIENCE, Run, megabytes};

/// Of 100 members: so many pools with so many exporters each.
struct Load {
    label: String,
    keys: usize,
    exporters: usize,
    /// After what is waited for: what comes late counts, too.
    rest: Duration,
}

const MEMBERS: usize = 100;
/// Pages asked for one after the other: the clock of a process' CPU has steps of 10 ms.
const VIEWS: u32 = 50;

// === impl Load ===

impl Load {
    fn lost(&self, what: &str, fleet: &Fleet) -> Figure {
        let missing = fleet.missing(self.keys, self.exporters);
        Figure::new(format!("{}: {what}", self.label), missing as f64, "")
    }

    fn memory(&self, what: &str, bytes: u64) -> Figure {
        Figure::new(format!("{}: {what}", self.label), megabytes(bytes), "MB")
    }
}

// === impl Run ===

impl Run {
    pub(crate) async fn restart(&mut self, keys: usize, exporters: usize) -> Result<()> {
        let load = Load {
            label: format!("{MEMBERS} members, {keys} pools x {exporters} exporters"),
            keys,
            exporters,
            rest: Duration::from_secs(15),
        };
        let fleet = self.filled(&load, "restart-1").await?;
        // all members up
        let ready = self.restarted(&fleet, &load, "restart-2").await?;
        self.note(ready);
        self.some_down(&fleet, &load, "restart-3").await
    }

    pub(crate) async fn large(&mut self) -> Result<()> {
        let load = Load {
            label: format!("{MEMBERS} members x 50 exported pools"),
            keys: 1000,
            exporters: 5,
            rest: Duration::from_secs(20),
        };
        let fleet = self.filled(&load, "large-1").await?;
        let ready = self.restarted(&fleet, &load, "large-2").await?;
        self.note(ready);
        Ok(())
    }

    /// A fleet in which a controller has made all imports.
    async fn filled(&mut self, load: &Load, name: &str) -> Result<Fleet> {
        let fleet = self.fleet(MEMBERS, true)?;
        fleet.export(load.keys, load.exporters);
        let (controller, _) = Self::start(&fleet, name).await?;
        let filled = fleet.settled(load.keys, load.exporters, PATIENCE).await?;
        sleep(load.rest).await;
        let usage = controller.usage()?;
        let imports = load.keys * MEMBERS;
        let what = format!("{}: all {imports} imports from nothing", load.label);
        self.note(Figure::time(what, filled));
        self.note(load.memory("RSS", usage.rss));
        self.note(load.memory("most RSS ever", usage.peak_rss));
        controller.stop().await?;
        Ok(fleet)
    }

    /// A controller that finds all as it is to be. Returns how long it took to know.
    async fn restarted(&mut self, fleet: &Fleet, load: &Load, name: &str) -> Result<Figure> {
        let label = &load.label;
        let before = fleet.writes();
        let (controller, ready) = Self::start(fleet, name).await?;
        sleep(load.rest).await;
        let after = fleet.writes();
        let writes = (after.0 - before.0) as f64;
        self.note(Figure::new(
            format!("{label}: restart, writes"),
            writes,
            "writes",
        ));
        self.note(load.lost("restart, imports lost or short", fleet));
        let usage = controller.usage()?;
        let memory = load.memory("RSS after a restart", usage.rss);
        self.note(memory);
        self.viewed(&controller, label).await?;
        controller.stop().await?;
        let what = format!("{label}: restart until all is listed and compared");
        Ok(Figure::time(what, ready))
    }

    /// What people look at, while nothing happens: it has a page of pools, however many there are.
    async fn viewed(&mut self, controller: &Controller, label: &str) -> Result<()> {
        let before = controller.usage()?.cpu;
        for _ in 0..VIEWS {
            let (status, page) = controller.get("/").await?;
            let rows = page
                .matches("<th scope=row><a href=\"debug/explain/")
                .count();
            ensure!(status == 200 && rows > 1, "{status} with {rows} pools");
        }
        let cpu = controller.usage()?.cpu.saturating_sub(before);
        let what = format!("{label}: a view of the page, CPU");
        self.note(Figure::time(what, cpu / VIEWS));
        Ok(())
    }

    /// A tenth of the members is down: what the others have of them stays.
    async fn some_down(&mut self, fleet: &Fleet, load: &Load, name: &str) -> Result<()> {
        let label = &load.label;
        for server in fleet.servers().iter().step_by(10) {
            server.stop();
        }
        let before = fleet.writes();
        let (controller, _) = Self::start(fleet, name).await?;
        sleep(Duration::from_secs(20)).await;
        let after = fleet.writes();
        self.note(load.lost("restart with 10 members down, withdrawn entries", fleet));
        self.note(Figure::new(
            format!("{label}: the same, writes that changed nothing"),
            (after.1 - before.1) as f64,
            "writes",
        ));
        self.note(Figure::new(
            format!("{label}: the same, writes (Reachable)"),
            (after.0 - before.0) as f64,
            "writes",
        ));
        let withdrawn = controller.metric("mci_withdrawals_total", "").await?;
        self.note(Figure::new(
            format!("{label}: the same, withdrawals counted"),
            withdrawn,
            "",
        ));
        controller.stop().await?;
        Ok(())
    }
}
