//! Whether the controller's memory grows.

use std::time::Duration;

use anyhow::{Result, ensure};

/// Resident memory of one process over time, in seconds and bytes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    samples: Vec<(f64, f64)>,
}

/// What RSS may grow by over the measured part of a run: the noise of an allocator that returns pages late. A leak of a
/// kilobyte for each of the ten changes and one death a second would pass it in two hours, so growth is also set against
/// the mean: a tenth.
const SLACK_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
const SLACK_SHARE: f64 = 0.1;
/// Fewer make no line.
const LEAST_SAMPLES: usize = 10;

// === impl Memory ===

impl Memory {
    /// Forgets what was measured of another process.
    pub(crate) fn restart(&mut self) {
        self.samples.clear();
    }

    pub(crate) fn add(&mut self, at: Duration, bytes: u64) {
        self.samples.push((at.as_secs_f64(), bytes as f64));
    }

    /// The line through the samples of the last three quarters, from its begin to its end.
    pub(crate) fn judge(&self) -> Result<String> {
        let skipped = self.samples.len() / 4;
        let samples = self.samples.get(skipped..).unwrap_or_default();
        ensure!(
            samples.len() >= LEAST_SAMPLES,
            "only {} samples of memory",
            samples.len()
        );
        let count = samples.len() as f64;
        let mean = |pick: fn(&(f64, f64)) -> f64| samples.iter().map(pick).sum::<f64>() / count;
        let (middle, rss) = (mean(|one| one.0), mean(|one| one.1));
        let (mut above, mut below) = (0.0, 0.0);
        for (at, bytes) in samples {
            above += (at - middle) * (bytes - rss);
            below += (at - middle) * (at - middle);
        }
        let span =
            samples.last().map_or(0.0, |one| one.0) - samples.first().map_or(0.0, |one| one.0);
        let growth = above / below * span;
        let slack = SLACK_BYTES.max(rss * SLACK_SHARE);
        let mib = |bytes: f64| bytes / (1024.0 * 1024.0);
        ensure!(
            growth <= slack,
            "memory grows by {:.1} MiB in {span:.0} s",
            mib(growth)
        );
        Ok(format!(
            "RSS {:.1} MiB on average since the last restart, grows by {:.1} MiB in {span:.0} s; allowed: {:.1}",
            mib(rss),
            mib(growth),
            mib(slack)
        ))
    }
}
