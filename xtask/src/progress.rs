//! Progress of one long step: a spinner in a terminal, a line now and then elsewhere.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// How often a step says where it is when the output is not a terminal.
const QUIET_INTERVAL: Duration = Duration::from_secs(30);

/// One running step; [`done`](Self::done) ends it.
pub(crate) struct Step {
    what: String,
    start: Instant,
    told: Instant,
    bar: ProgressBar,
}

impl Step {
    /// Begins a step, named as people say it: "building kube-apiserver".
    pub(crate) fn begin(what: &str) -> Self {
        static STEPS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
        // steps of several threads stand one below the other
        let bar = STEPS.add(ProgressBar::new_spinner());
        if let Ok(style) =
            ProgressStyle::with_template("  {spinner} {prefix} [{elapsed}] {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        if bar.is_hidden() {
            eprintln!("  {what} ...");
        }
        let now = now();
        Self {
            what: what.to_owned(),
            start: now,
            told: now,
            bar,
        }
    }

    /// Says what it is at.
    pub(crate) fn at(&mut self, detail: &str) {
        self.bar.set_message(detail.to_owned());
        if self.bar.is_hidden() && self.told.elapsed() >= QUIET_INTERVAL {
            self.told = now();
            let seconds = self.start.elapsed().as_secs();
            eprintln!("  {} ... {seconds} s, {detail}", self.what);
        }
    }

    /// Ends the step.
    pub(crate) fn done(self) {
        self.bar.finish_and_clear();
        eprintln!(
            "  {}: {:.1} s",
            self.what,
            self.start.elapsed().as_secs_f64()
        );
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command runner without async has no other clock"
)]
fn now() -> Instant {
    Instant::now()
}
