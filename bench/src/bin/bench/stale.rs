//! Two replicas of a Metadata-Center over a real Redis: how soon what one acknowledged is seen at the other.

use anyhow::{Context, Result};
use bench::{
    Figure, percentile,
    service::{ServiceProcess, stale},
};

use crate::{
    Run,
    metadata::{beside, micros},
    middle,
};

const STALE: &str = "Metadata-Center, 2 replicas over Redis";
const ROUNDS: usize = 3;
const WRITES: usize = 2000;
const QUICK: usize = 20;

// === impl Run ===

impl Run {
    pub(crate) async fn stale(&mut self) -> Result<()> {
        if !self.wants(STALE) {
            return Ok(());
        }
        let writes = if self.args.quick {
            WRITES / QUICK
        } else {
            WRITES
        };
        let (mut missed, mut p50, mut p99) = (0, vec![], vec![]);
        for _ in 0..ROUNDS {
            let redis = redis_server::Server::start().context("Redis")?;
            let flags = [
                "--backend=redis".to_owned(),
                format!("--redis-url={}", redis.url()),
                // a busy machine is late, and its times are what is measured
                "--redis-timeout=2s".to_owned(),
            ];
            let mut replicas = Vec::new();
            for nth in 0..2 {
                let log = self.args.logs.join(format!("metadata-center-{nth}.log"));
                let program = beside("metadata-center")?;
                replicas.push(ServiceProcess::start(&program, "--port", &flags, &log).await?);
            }
            let [one, other] = [&replicas[0], &replicas[1]].map(ServiceProcess::address);
            let seen = stale([one, other], writes).await?;
            missed += seen.loads_missed;
            p50.push(micros(percentile(&seen.caches, 0.5)) / 1e3);
            p99.push(micros(percentile(&seen.caches, 0.99)) / 1e3);
        }
        for (what, value, unit) in [
            ("charges that a first look does not show", missed as f64, ""),
            (
                "a saved prompt until the other knows it, p50",
                middle(&p50),
                "ms",
            ),
            (
                "a saved prompt until the other knows it, p99",
                middle(&p99),
                "ms",
            ),
        ] {
            self.keep(Figure::new(format!("{STALE}: {what}"), value, unit));
        }
        Ok(())
    }
}
