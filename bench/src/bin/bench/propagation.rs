//! From an event in one member until it is applied in all others.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::{Figure, own_cpu, percentile};
use tokio::time::{Instant, sleep};

use crate::{LATE, PATIENCE, Run, SPACE, mebibytes};

// === impl Run ===

impl Run {
    /// One event at a time in a member that exports one of `exporters` entries of one key.
    pub(crate) async fn propagation(
        &mut self,
        members: usize,
        exporters: usize,
        tls: bool,
        events: u32,
    ) -> Result<()> {
        let label = format!(
            "{members} members, {exporters} exporters, {}",
            if tls { "TLS" } else { "plain" }
        );
        let fleet = self.fleet(members, tls)?;
        fleet.export(1, exporters);
        let (controller, _) =
            Self::start(&fleet, &format!("propagation-{members}-{exporters}-{tls}")).await?;
        fleet.settled(1, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(3)).await;

        // what it takes to do nothing
        let (idle_start, idle_from) = (Instant::now(), controller.usage()?.cpu);
        sleep(Duration::from_secs(6)).await;
        let idle = controller
            .usage()?
            .cpu
            .saturating_sub(idle_from)
            .as_secs_f64()
            / idle_start.elapsed().as_secs_f64();

        let exporter = fleet
            .exporter(0, 0, exporters)
            .context("an exporter")?
            .clone();
        let (mut last, mut each, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        let (from, cpu, own) = (Instant::now(), controller.usage()?.cpu, own_cpu()?);
        let writes = fleet.writes().0;
        for event in 0..events {
            let address = format!("198.51.{}.{}", 100 + event / 250, 1 + event % 250);
            let begin = Instant::now();
            fleet.move_epp(&exporter, &address);
            let text = format!("\"{address}\"");
            let times = fleet
                .applied("pool-0000", &text, exporter.name(), PATIENCE)
                .await?;
            let times: Vec<Duration> = times
                .iter()
                .map(|at| at.saturating_duration_since(begin))
                .collect();
            last.push(times.iter().max().copied().unwrap_or_default());
            sent.push(fleet.last_arrival(begin, "pool-0000"));
            each.extend(times);
            sleep(SPACE).await;
        }
        let span = from.elapsed().as_secs_f64();
        let writes = (fleet.writes().0 - writes) as f64;
        let cpu = controller.usage()?.cpu.saturating_sub(cpu).as_secs_f64();
        let own = own_cpu()?.saturating_sub(own).as_secs_f64();
        let usage = controller.usage()?;
        let goal = 100.0 + LATE.as_secs_f64() * 1e3;
        self.note(Figure::time(
            format!("{label}: event to all applied, p50"),
            percentile(&last, 0.5),
        ));
        self.note(
            Figure::time(
                format!("{label}: event to all applied, p99"),
                percentile(&last, 0.99),
            )
            .at_most(goal),
        );
        self.note(
            Figure::time(
                format!("{label}: event to all sent, p99"),
                percentile(&sent, 0.99),
            )
            .at_most(100.0),
        );
        self.note(Figure::time(
            format!("{label}: event to one applied, p50"),
            percentile(&each, 0.5),
        ));
        let per_write = (cpu - idle * span).max(0.0) * 1e3 / writes.max(1.0);
        self.note(
            Figure::new(
                format!("{label}: controller CPU per write, idle taken off"),
                per_write,
                "ms",
            )
            .at_most(0.05),
        );
        self.note(Figure::new(
            format!("{label}: load's CPU per write"),
            own * 1e3 / writes.max(1.0),
            "ms",
        ));
        self.note(Figure::new(
            format!("{label}: controller idle"),
            idle * 100.0,
            "% core",
        ));
        self.note(Figure::new(
            format!("{label}: RSS"),
            mebibytes(usage.rss),
            "MiB",
        ));
        controller.stop().await?;
        Ok(())
    }
}
