//! What is kept in memory, and what a restart writes.

use std::time::Duration;

use anyhow::Result;
use bench::Figure;
use tokio::time::sleep;

use crate::{PATIENCE, Run, mebibytes};

// === impl Run ===

impl Run {
    pub(crate) async fn restart(&mut self, keys: usize, exporters: usize) -> Result<()> {
        let label = format!("100 members, {keys} pools x {exporters} exporters");
        let fleet = self.fleet(100, true)?;
        fleet.export(keys, exporters);
        let (controller, _) = Self::start(&fleet, "restart-1").await?;
        let filled = fleet.settled(keys, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(15)).await;
        let usage = controller.usage()?;
        self.note(Figure::time(
            format!("{label}: all {} imports from nothing", keys * 100),
            filled,
        ));
        self.note(Figure::new(format!("{label}: RSS"), mebibytes(usage.rss), "MiB").at_most(150.0));
        self.note(Figure::new(
            format!("{label}: most RSS ever"),
            mebibytes(usage.peak_rss),
            "MiB",
        ));
        controller.stop().await?;

        // all members up
        let before = fleet.writes();
        let (controller, ready) = Self::start(&fleet, "restart-2").await?;
        sleep(Duration::from_secs(15)).await;
        let after = fleet.writes();
        self.note(
            Figure::time(
                format!("{label}: restart until all is listed and compared"),
                ready,
            )
            .at_most(5000.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, writes"),
                (after.0 - before.0) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, imports lost or short"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        let usage = controller.usage()?;
        self.note(
            Figure::new(
                format!("{label}: RSS after a restart"),
                mebibytes(usage.rss),
                "MiB",
            )
            .at_most(150.0),
        );
        controller.stop().await?;

        // a tenth of them down
        for server in fleet.servers().iter().step_by(10) {
            server.stop();
        }
        let before = fleet.writes();
        let (controller, _) = Self::start(&fleet, "restart-3").await?;
        sleep(Duration::from_secs(20)).await;
        let after = fleet.writes();
        self.note(
            Figure::new(
                format!("{label}: restart with 10 members down, withdrawn entries"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: the same, writes that changed nothing"),
                (after.1 - before.1) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(Figure::new(
            format!("{label}: the same, writes (Reachable)"),
            (after.0 - before.0) as f64,
            "writes",
        ));
        let withdrawn = controller.metric("mci_withdrawals_total", "").await?;
        self.note(
            Figure::new(
                format!("{label}: the same, withdrawals counted"),
                withdrawn,
                "",
            )
            .at_most(0.0),
        );
        controller.stop().await?;
        Ok(())
    }

    pub(crate) async fn large(&mut self) -> Result<()> {
        let (keys, exporters) = (1000, 5);
        let label = "100 members x 50 exported pools, 100 000 imports";
        let fleet = self.fleet(100, true)?;
        fleet.export(keys, exporters);
        let (controller, _) = Self::start(&fleet, "large-1").await?;
        let filled = fleet.settled(keys, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(20)).await;
        let usage = controller.usage()?;
        self.note(Figure::time(format!("{label}: from nothing"), filled));
        self.note(Figure::new(format!("{label}: RSS"), mebibytes(usage.rss), "MiB").at_most(150.0));
        controller.stop().await?;
        let before = fleet.writes();
        let (controller, ready) = Self::start(&fleet, "large-2").await?;
        sleep(Duration::from_secs(20)).await;
        let after = fleet.writes();
        self.note(Figure::time(
            format!("{label}: restart until all is listed and compared"),
            ready,
        ));
        self.note(
            Figure::new(
                format!("{label}: restart, writes"),
                (after.0 - before.0) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, imports lost or short"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        let usage = controller.usage()?;
        self.note(
            Figure::new(
                format!("{label}: RSS after a restart"),
                mebibytes(usage.rss),
                "MiB",
            )
            .at_most(150.0),
        );
        controller.stop().await?;
        Ok(())
    }
}
