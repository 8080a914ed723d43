//! The Metadata-Center: its calls as existing gateways mix them, batches, and picks.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use bench::{
    Figure,
    center::{Batches, Caller, CenterProcess, Mix, Picks, Timed, closed, open},
    percentile,
};

use crate::{Run, middle};

/// Of each case, so often: what else the machine does comes and goes.
const ROUNDS: usize = 3;
/// Calls of one round, of all callers together.
const MIXED: usize = 200_000;
const BATCHES: usize = 30_000;
const PICKS: usize = 20_000;
const CONNECTIONS: usize = 32;
/// As an endpoint picker has workers.
const WORKERS: usize = 10;
const CANDIDATES: usize = 100;
const CHUNKS: u64 = 40;
/// Picks a second, where they come by themselves.
const RATE: f64 = 1000.0;
/// `--quick` measures so small a part.
const QUICK: usize = 20;

/// One case: who calls, how often.
struct Case<'a, C> {
    name: String,
    callers: usize,
    calls: usize,
    /// Operations in each call.
    operations: usize,
    per_second: Option<f64>,
    make: &'a dyn Fn(usize) -> C,
}

// === impl Run ===

impl Run {
    pub(crate) async fn metadata(&mut self) -> Result<()> {
        for engines in [32, 1000] {
            for callers in [1, CONNECTIONS] {
                let connections = if callers == 1 {
                    "1 connection".to_owned()
                } else {
                    format!("{callers} connections")
                };
                self.case(Case {
                    name: format!("mix, {engines} engines, {connections}"),
                    callers,
                    calls: if callers == 1 { MIXED / 4 } else { MIXED },
                    operations: 1,
                    per_second: None,
                    make: &|caller| Mix::new(caller, engines),
                })
                .await?;
            }
        }
        self.case(Case {
            name: format!("batches of {}", Batches::OPERATIONS),
            callers: WORKERS,
            calls: BATCHES,
            operations: Batches::OPERATIONS,
            per_second: None,
            make: &|shard| Batches::new(shard, 32),
        })
        .await?;
        for per_second in [Some(RATE), None] {
            let how = per_second.map_or("as fast as they go".to_owned(), |it| format!("{it}/s"));
            self.case(Case {
                name: format!("picks of {CANDIDATES} candidates, {CHUNKS} chunks, {how}"),
                callers: CONNECTIONS,
                calls: PICKS,
                operations: 1,
                per_second,
                make: &|caller| Picks::new(caller, CANDIDATES, CHUNKS),
            })
            .await?;
        }
        Ok(())
    }

    async fn case<C: Caller>(&mut self, case: Case<'_, C>) -> Result<()> {
        let name = format!("Metadata-Center, {}", case.name);
        if self
            .args
            .only
            .as_ref()
            .is_some_and(|part| !name.contains(part))
        {
            return Ok(());
        }
        self.matched = true;
        let calls = if self.args.quick {
            case.calls / QUICK
        } else {
            case.calls
        };
        let (mut time, mut cpu, mut p50, mut p99) = (vec![], vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let log = self.args.logs.join(format!("metadata-center-{round}.log"));
            let center = CenterProcess::start(&center_program()?, &[], &log).await?;
            let callers = |first: usize| (first..first + case.callers).map(case.make).collect();
            let each = (calls / case.callers).max(1);
            // Others than those measured: requests have names.
            closed(center.address(), callers(1000), (each / 10).min(500)).await?;
            let before = center.cpu()?;
            let Timed { calls, took } = match case.per_second {
                Some(rate) => open(center.address(), callers(0), each, rate).await?,
                None => closed(center.address(), callers(0), each).await?,
            };
            let operations = (calls.len() * case.operations) as f64;
            time.push(micros(took) / operations);
            cpu.push(micros(center.cpu()?.saturating_sub(before)) / operations);
            p50.push(micros(percentile(&calls, 0.5)));
            p99.push(micros(percentile(&calls, 0.99)));
        }
        if case.per_second.is_none() {
            self.note(Figure::new(
                format!("{name}: time per operation"),
                middle(&time),
                "µs",
            ));
        }
        self.note(Figure::new(
            format!("{name}: CPU per operation"),
            middle(&cpu),
            "µs",
        ));
        self.note(Figure::new(format!("{name}: p50"), middle(&p50), "µs"));
        self.note(Figure::new(format!("{name}: p99"), middle(&p99), "µs"));
        Ok(())
    }
}

/// Beside this program.
fn center_program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program")?;
    Ok(own.with_file_name("metadata-center"))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
