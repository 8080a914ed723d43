//! The engines that the configuration adds or replaces.

use super::{
    engine::{CacheSpec, EngineSpec, EngineTable, UnknownEngine},
    spec::{MetricSpec, SpecError},
};
use crate::config::{EngineConfig, Engines};

/// Labels of vLLM's series, where the configuration names none.
const BLOCK_SIZE: &str = "block_size";
const NUM_BLOCKS: &str = "num_gpu_blocks";

/// Why engines of the configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EnginesError {
    /// What an engine calls a metric is no name of one.
    #[error("{key} of engine {engine:?}: {error}")]
    Spec {
        /// The engine.
        engine: String,
        /// The key of the text.
        key: &'static str,
        /// What is wrong.
        error: SpecError,
    },
    /// The default is none of them.
    #[error(transparent)]
    Default(#[from] UnknownEngine),
}

impl EngineTable {
    /// The built-in engines and those of the configuration.
    ///
    /// # Errors
    /// [`EnginesError`] for a text that names no metric, or a default that is not there.
    pub fn configured(engines: &Engines) -> Result<Self, EnginesError> {
        let specs = engines.configs.iter().map(spec);
        let table = Self::with(specs.collect::<Result<_, _>>()?);
        Ok(table.with_default(&engines.default_engine)?)
    }
}

fn spec(config: &EngineConfig) -> Result<EngineSpec, EnginesError> {
    // In the reference an empty text means that the value is not read.
    let parse = |key, text: &Option<String>| {
        let text = text.as_deref().filter(|text| !text.is_empty());
        let spec = text.map(MetricSpec::parse).transpose();
        spec.map_err(|error| EnginesError::Spec {
            engine: config.name.clone(),
            key,
            error,
        })
    };
    let label = |text: &Option<String>, default: &str| text.clone().unwrap_or(default.to_owned());
    let values = (
        parse("cacheBlockSizeSpec", &config.cache_block_size)?,
        parse("cacheNumBlocksSpec", &config.cache_num_blocks)?,
    );
    let cache = match (parse("cacheInfoSpec", &config.cache_info)?, values) {
        (Some(info), _) => Some(CacheSpec::Labels {
            info,
            block_size: label(&config.cache_block_size_label, BLOCK_SIZE),
            blocks: label(&config.cache_num_blocks_label, NUM_BLOCKS),
        }),
        (None, (Some(block_size), Some(blocks))) => Some(CacheSpec::Values { block_size, blocks }),
        (None, _) => None,
    };
    Ok(EngineSpec {
        name: config.name.clone(),
        waiting: parse("queuedRequestsSpec", &config.queued_requests)?,
        running: parse("runningRequestsSpec", &config.running_requests)?,
        kv: parse("kvUsageSpec", &config.kv_usage)?
            .into_iter()
            .collect(),
        lora: parse("loraSpec", &config.lora)?,
        cache,
    })
}

#[cfg(test)]
mod tests {
    use scheduling::CacheLayout;

    use super::{super::scanner::Scanner, *};

    fn mk_engines() -> Engines {
        let text = |text: &str| Some(text.to_owned());
        let config = EngineConfig {
            name: "mine".to_owned(),
            queued_requests: text("mine_queue{kind=\"waiting\"}"),
            running_requests: text(""),
            kv_usage: text("mine_kv"),
            cache_info: text("mine_cache"),
            cache_block_size_label: text("size"),
            ..EngineConfig::default()
        };
        Engines {
            default_engine: "mine".to_owned(),
            configs: vec![config],
            ..Engines::default()
        }
    }

    #[test]
    fn an_engine_of_the_configuration_is_read_by_its_names() {
        let table = EngineTable::configured(&mk_engines()).unwrap();
        let mut scanner = Scanner::new(std::sync::Arc::clone(table.engine("nobody")));
        scanner.feed(b"mine_queue{kind=\"waiting\"} 3\nmine_queue{kind=\"x\"} 9\nmine_kv 0.5\n");
        scanner.feed(b"mine_cache{size=\"16\",num_gpu_blocks=\"10\"} 1\n");
        let scraped = scanner.finish();
        assert_eq!(
            (scraped.waiting, scraped.running, scraped.kv),
            (Some(3.0), None, Some(0.5))
        );
        let layout = CacheLayout {
            block_tokens: 16,
            blocks: 10,
        };
        assert_eq!(scraped.cache, Some(layout));
    }

    #[test]
    fn a_bad_name_and_an_unknown_default_are_errors() {
        let mut engines = mk_engines();
        engines.default_engine = "none".to_owned();
        let error = EngineTable::configured(&engines).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
        engines.configs[0].kv_usage = Some("no name {".to_owned());
        let error = EngineTable::configured(&engines).unwrap_err().to_string();
        assert!(
            error.starts_with("kvUsageSpec of engine \"mine\": "),
            "{error}"
        );
    }
}
