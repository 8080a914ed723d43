//! How long nobody writes when a leader ends.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::{Figure, Fleet, NS};
use tokio::time::{Instant, sleep};

use crate::{PATIENCE, Run};

// === impl Run ===

impl Run {
    pub(crate) async fn failover(&mut self) -> Result<()> {
        let fleet = self.fleet(3, true)?;
        fleet.export(1, 1);
        let home = fleet.home()?;
        let home = Some(home.as_str());
        let mut leader = fleet.controller("failover-a", home)?;
        leader.ready(PATIENCE).await?;
        fleet.settled(1, 1, PATIENCE).await?;
        let mut standby = fleet.controller("failover-b", home)?;
        standby.ready(PATIENCE).await?;
        sleep(Duration::from_secs(5)).await;

        leader.crash().await?;
        let crash = self.taken_over(&fleet, "203.0.113.1").await?;
        self.note(Figure::new(
            "failover after a crash: event to all applied",
            crash.as_secs_f64(),
            "s",
        ));
        let mut second = fleet.controller("failover-c", home)?;
        second.ready(PATIENCE).await?;
        sleep(Duration::from_secs(5)).await;
        let (stopped, clean) = tokio::join!(standby.stop(), self.taken_over(&fleet, "203.0.113.2"));
        stopped?;
        self.note(Figure::new(
            "failover after SIGTERM: event to all applied",
            clean?.as_secs_f64(),
            "s",
        ));
        second.stop().await?;
        Ok(())
    }

    /// An event, and when it is applied.
    async fn taken_over(&self, fleet: &Fleet, address: &str) -> Result<Duration> {
        let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
        let start = Instant::now();
        // the leader that ends may still write what comes before its end
        sleep(Duration::from_millis(200)).await;
        fleet.move_epp(exporter, address);
        let times = fleet
            .applied(
                "pool-0000",
                &format!("\"{address}\""),
                &[exporter.name()],
                PATIENCE,
            )
            .await?;
        let last = times.iter().max().copied().unwrap_or(start);
        ensure!(
            exporter.entries(NS, "pool-0000").is_empty(),
            "an exporter lists itself"
        );
        Ok(last - start)
    }
}
