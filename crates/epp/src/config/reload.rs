//! Keeps the configuration up to date with its file.

use std::path::{Path, PathBuf};

use futures::Stream;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use reread::{read_at_most, reread};
use scheduling::Freshness;
use tracing::{error, info, warn};

use super::{Compat, Config, CurrentConfig, Ignored, Refusal, Refusals, read::LIMITS};
use crate::llm::LlmFilter;

/// A configuration file, and how it is read.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The file; a symbolic link is followed at each reading, as a mounted ConfigMap needs.
    pub path: PathBuf,
    /// How strictly.
    pub compat: Compat,
    /// Of every profile that is read.
    pub freshness: Freshness,
    /// Finds what the text alone does not show: files that it names.
    pub check: fn(&Config) -> Result<(), Refusal>,
    /// The LLM filter has a file of its own, so that this one must have none.
    pub has_filter_file: bool,
    /// Somebody counts the tokens of prompts.
    pub counts_tokens: bool,
}

/// The file of an LLM filter, and how it is read.
#[derive(Clone, Debug)]
pub struct LlmFilterFile {
    /// The file; a symbolic link is followed at each reading.
    pub path: PathBuf,
    /// How strictly.
    pub compat: Compat,
    /// Somebody counts the tokens of prompts.
    pub counts_tokens: bool,
}

/// A file that is read again and again.
pub trait Reloaded {
    /// What it holds.
    type Value;

    /// What it is, for people, and an example.
    const EXPECTED: (&'static str, &'static str);

    /// Where it is.
    fn path(&self) -> &Path;

    /// Reads its text.
    ///
    /// # Errors
    /// [`Refusals`] that name all that cannot be used.
    fn parse(&self, text: &str) -> Result<Self::Value, Refusals>;

    /// Puts it in force.
    fn put(&self, value: Self::Value, current: &CurrentConfig);
}

/// Why a file gives no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read at all.
    #[error("cannot read it: {0}")]
    Unreadable(String),
    /// It can, and says what cannot be used.
    #[error("{0}")]
    Refused(Refusals),
}

/// Reads a file again and again, and puts what it says in force.
#[derive(Debug)]
pub struct Reload<F = ConfigFile> {
    file: F,
    /// The last reading, so that each change is judged, counted and logged once.
    last: Content,
}

/// Counts readings, and what of the configuration has no effect. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ConfigMetrics {
    reloads: Family<ResultLabel, Counter>,
    ignored: Family<Item, Gauge>,
}

type Content = reread::Content<String>;

/// What a reading came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unchanged,
    Replaced,
    Kept,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Item {
    item: String,
}

// === impl ConfigFile ===

impl Reloaded for ConfigFile {
    type Value = Config;

    const EXPECTED: (&'static str, &'static str) = (
        "an EndpointPickerConfig",
        "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [{type: queue-scorer}]}",
    );

    fn path(&self) -> &Path {
        &self.path
    }

    fn parse(&self, text: &str) -> Result<Config, Refusals> {
        let mut config = Config::parse(text, self.compat)?;
        if self.has_filter_file {
            config.refuse_llm_filter()?;
        }
        if !self.counts_tokens {
            config.refuse_tokens()?;
        }
        (self.check)(&config)?;
        config.profile.freshness = self.freshness;
        Ok(config)
    }

    fn put(&self, mut config: Config, current: &CurrentConfig) {
        let path = self.path.display();
        for item in config.keep_fixed(&current.load()) {
            warn!(%path, item, "only a restart changes this: it stays as it is");
        }
        current.replace(config);
        current.load().warn_of_objectives();
    }
}

// === impl LlmFilterFile ===

impl Reloaded for LlmFilterFile {
    type Value = LlmFilter;

    const EXPECTED: (&'static str, &'static str) = (
        "the configuration of an LLM filter",
        "{protocol: openai, model_mapping_rule: {qwen: {rules: [{cluster: ns/pool}]}}}",
    );

    fn path(&self) -> &Path {
        &self.path
    }

    fn parse(&self, text: &str) -> Result<LlmFilter, Refusals> {
        let filter = LlmFilter::parse(text, self.compat)?;
        if !self.counts_tokens {
            filter.refuse_tokens()?;
        }
        Ok(filter)
    }

    fn put(&self, filter: LlmFilter, current: &CurrentConfig) {
        current.set_llm_filter(filter);
    }
}

fn read(path: &Path) -> Content {
    String::from_utf8(read_at_most(path, LIMITS.text)?)
        .map_err(|error| format!("it is not UTF-8: {error}"))
}

// === impl Reload ===

impl<F: Reloaded> Reload<F> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// [`LoadError`] when there is no configuration to begin with.
    pub fn begin(file: F) -> Result<(F::Value, Self), LoadError> {
        let last = read(file.path());
        let reload = Self { file, last };
        let value = reload.parse(&reload.last)?;
        Ok((value, reload))
    }

    /// Reads it every 5 s and at each of `hangups`. Never returns.
    pub async fn run(
        mut self,
        current: CurrentConfig,
        metrics: ConfigMetrics,
        hangups: impl Stream<Item = ()> + Unpin,
    ) {
        let path = self.file.path().to_owned();
        let judge = |content, asked| {
            let outcome = self.judge(content, &current);
            metrics.count(outcome);
            match outcome {
                Outcome::Unchanged if asked => info!("SIGHUP: the configuration has not changed"),
                Outcome::Replaced => metrics.report(current.load().ignored()),
                _ => {}
            }
        };
        reread(move || read(&path), hangups, judge).await;
    }

    /// Puts what the file says in force, if it has changed and can be used.
    fn judge(&mut self, content: Content, current: &CurrentConfig) -> Outcome {
        if content == self.last {
            return Outcome::Unchanged;
        }
        let parsed = self.parse(&content);
        self.last = content;
        let path = self.file.path().display();
        match parsed {
            Ok(value) => {
                self.file.put(value, current);
                info!(%path, "the configuration has changed");
                Outcome::Replaced
            }
            Err(error) => {
                error!(%path, %error, "the changed configuration cannot be used: the former one stays in force");
                Outcome::Kept
            }
        }
    }

    fn parse(&self, content: &Content) -> Result<F::Value, LoadError> {
        let text = content
            .as_ref()
            .map_err(|error| LoadError::Unreadable(error.clone()))?;
        self.file.parse(text).map_err(LoadError::Refused)
    }
}

// === impl ConfigMetrics ===

impl ConfigMetrics {
    /// Registers `epp_config_reloads_total` and `epp_config_ignored`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reloads: Family::default(),
            ignored: Family::default(),
        };
        let epp = registry.sub_registry_with_prefix("epp");
        epp.register(
            "config_reloads",
            "Changes of the configuration file: success is in force, failure could not be used",
            metrics.reloads.clone(),
        );
        epp.register(
            "config_ignored",
            "1 for each item of the configuration that has no effect",
            metrics.ignored.clone(),
        );
        // both are there from the start, so that a rate over them is
        for outcome in [Outcome::Replaced, Outcome::Kept] {
            metrics.counter(outcome);
        }
        metrics
    }

    /// Logs and shows what of the configuration in force has no effect: all that is ignored of it.
    pub fn report<'a>(&self, all: impl IntoIterator<Item = &'a Ignored>) {
        self.ignored.clear();
        for ignored in all {
            let (item, why) = (&ignored.item, &ignored.why);
            warn!(item, why, "this has no effect");
            let item = item.clone();
            self.ignored.get_or_create(&Item { item }).set(1);
        }
    }

    fn count(&self, outcome: Outcome) {
        if let Some(counter) = self.counter(outcome) {
            counter.inc();
        }
    }

    fn counter(&self, outcome: Outcome) -> Option<Counter> {
        let result = match outcome {
            Outcome::Unchanged => return None,
            Outcome::Replaced => "success",
            Outcome::Kept => "failure",
        };
        Some(self.reloads.get_or_create_owned(&ResultLabel { result }))
    }
}

#[cfg(test)]
mod tests;
