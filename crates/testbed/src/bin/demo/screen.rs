//! What a person sees while things happen.

use std::time::Duration;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use testbed::{Cluster, Progress, TestbedError};
use tokio::time::Instant;

/// Running steps as spinners, finished ones as lines.
#[derive(Clone)]
pub(crate) struct Screen {
    bars: MultiProgress,
    running: Arc<Mutex<BTreeMap<String, ProgressBar>>>,
}

// === impl Screen ===

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            bars: MultiProgress::new(),
            running: Arc::default(),
        }
    }

    pub(crate) fn heading(&self, text: &str) {
        self.line(&format!("\n{text}"));
    }

    /// Hears of the testbed's own steps.
    pub(crate) fn listener(&self) -> impl Fn(Progress) + Send + Sync + use<> {
        let screen = self.clone();
        move |progress| match progress {
            Progress::Started { step } => screen.begin(&step),
            Progress::Finished { step, took } => screen.end(&step, took),
        }
    }

    /// Shows a step while it runs.
    pub(crate) async fn step<T, E>(
        &self,
        step: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = Instant::now();
        self.begin(step);
        let done = work.await?;
        self.end(step, start.elapsed());
        Ok(done)
    }

    /// Runs kubectl and shows both the command, as one would type it, and its output.
    pub(crate) async fn kubectl(
        &self,
        cluster: &Cluster,
        arguments: &[&str],
    ) -> Result<(), TestbedError> {
        let shown: Vec<_> = arguments
            .iter()
            .map(|word| {
                if word.contains(['{', ' ']) {
                    format!("'{word}'")
                } else {
                    (*word).to_owned()
                }
            })
            .collect();
        let long = shown.iter().position(|word| word.starts_with("'jsonpath"));
        let shown = match long {
            // the path itself is for the machine
            Some(at) => format!(
                "{} jsonpath=…",
                shown.get(..at).unwrap_or_default().join(" ")
            ),
            None => shown.join(" "),
        };
        self.line(&format!("  $ kubectl --context {} {shown}", cluster.name()));
        let output = cluster.kubectl(arguments).await?;
        for line in output.lines() {
            self.line(&format!("  {line}"));
        }
        Ok(())
    }

    fn begin(&self, step: &str) {
        let bar = self.bars.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(step.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        self.running.lock().insert(step.to_owned(), bar);
    }

    fn end(&self, step: &str, took: Duration) {
        if let Some(bar) = self.running.lock().remove(step) {
            bar.finish_and_clear();
        }
        self.line(&format!("  {step:<52} {:>7}", short(took)));
    }

    fn line(&self, text: &str) {
        self.bars.suspend(|| println!("{text}"));
    }
}

/// `24 ms`, `3.1 s`.
pub(crate) fn short(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
