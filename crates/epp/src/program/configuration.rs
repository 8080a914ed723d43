//! The configuration to begin with, and what keeps it up to date.

use std::time::Duration;

use process::ConfigError;
use scheduling::Freshness;

use super::{hangups, running::Tasks};
use crate::{
    args::{ConfigArgs, PoolArgs},
    config::{
        Config, ConfigFile, ConfigMetrics, CurrentConfig, LlmFilterFile, LoadError, Refusals,
        Reload, Reloaded,
    },
    scrape::Plan,
};

/// Beyond it, scraped values stop counting.
const STALE_FOR: Duration = Duration::from_secs(10);

/// What keeps files up to date.
#[derive(Default)]
pub(super) struct Reloads {
    config: Option<Reload>,
    llm_filter: Option<Reload<LlmFilterFile>>,
}

pub(super) fn freshness(args: &PoolArgs) -> Freshness {
    let fresh_for = args.metrics_staleness_threshold.0;
    Freshness {
        fresh_for,
        stale_for: fresh_for.max(STALE_FOR),
    }
}

/// The configuration to begin with, and what keeps it up to date if it is of files. `counts_tokens`: somebody counts those of
/// prompts.
pub(super) fn configuration(
    args: ConfigArgs,
    freshness: Freshness,
    counts_tokens: bool,
) -> anyhow::Result<(CurrentConfig, Reloads)> {
    let ConfigArgs {
        config_file,
        config_text,
        llm_filter_config,
        config_compat: compat,
    } = args;
    let has_filter_file = llm_filter_config.is_some();
    let mut reloads = Reloads::default();
    let mut config = match (config_file, config_text) {
        (Some(path), _) => {
            let file = ConfigFile {
                path,
                compat,
                freshness,
                check: |config| Plan::load(config).map(drop),
                has_filter_file,
                counts_tokens,
            };
            let (config, reload) = begin("--config-file", file)?;
            reloads.config = Some(reload);
            config
        }
        (None, Some(text)) => {
            let config = Config::parse(&text, compat);
            let config = config.and_then(|config| {
                if has_filter_file {
                    config.refuse_llm_filter()?;
                }
                if !counts_tokens {
                    config.refuse_tokens()?;
                }
                Ok(config)
            });
            config.map_err(|refusals| refused("--config-text", &refusals, ConfigFile::EXPECTED))?
        }
        (None, None) => Config::default(),
    };
    config.profile.freshness = freshness;
    let config = CurrentConfig::new(config);
    if let Some(path) = llm_filter_config {
        let file = LlmFilterFile {
            path,
            compat,
            counts_tokens,
        };
        let (filter, reload) = begin("--llm-filter-config", file)?;
        config.set_llm_filter(filter);
        reloads.llm_filter = Some(reload);
    }
    Ok((config, reloads))
}

/// Reads the file of a flag for the first time.
fn begin<F: Reloaded>(flag: &str, file: F) -> Result<(F::Value, Reload<F>), ConfigError> {
    let source = format!("{flag} {}", file.path().display());
    Reload::begin(file).map_err(|error| match error {
        LoadError::Refused(refusals) => refused(&source, &refusals, F::EXPECTED),
        LoadError::Unreadable(_) => ConfigError::new(
            format!("{source}: {error}"),
            "a file of text that can be read, of at most 1 MiB",
            format!("{flag} /etc/epp/config.yaml"),
        ),
    })
}

/// The error that ends the program for what a configuration says.
pub(super) fn refused(source: &str, refusals: &Refusals, expected: (&str, &str)) -> ConfigError {
    match refusals.found() {
        [one] => ConfigError::new(
            format!("{source}: {}: {}", one.place(), one.problem),
            &one.expected,
            &one.example,
        ),
        _ => ConfigError::new(format!("{source}: {refusals}"), expected.0, expected.1),
    }
}

// === impl Reloads ===

impl Reloads {
    pub(super) fn spawn(
        self,
        tasks: &mut Tasks,
        current: &CurrentConfig,
        metrics: &ConfigMetrics,
    ) -> anyhow::Result<()> {
        let Self { config, llm_filter } = self;
        if let Some(reload) = config {
            let run = reload.run(current.clone(), metrics.clone(), hangups()?);
            tasks.spawn(async move {
                run.await;
                ("reload of the configuration", Ok(()))
            });
        }
        if let Some(reload) = llm_filter {
            let run = reload.run(current.clone(), metrics.clone(), hangups()?);
            tasks.spawn(async move {
                run.await;
                ("reload of the LLM filter", Ok(()))
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
