//! Any text as a configuration file.

use super::{Compat, Config};
use crate::scrape::EngineTable;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let strict = Config::parse(text, Compat::Strict);
    let lenient = Config::parse(text, Compat::Lenient);
    match (strict, lenient) {
        (Ok(strict), lenient) => {
            assert_eq!(lenient.as_ref(), Ok(&strict));
            check(&strict);
        }
        (Err(refusals), lenient) => {
            assert!(!refusals.found().is_empty());
            let length = refusals.to_string().len();
            assert!(length < 64 * 1024, "{length} bytes");
            if let Ok(config) = lenient {
                assert!(!config.ignored.is_empty(), "what was refused is ignored");
                check(&config);
            }
        }
    }
}

fn check(config: &Config) {
    let shards = config.prefix.shards;
    assert!(shards.is_power_of_two() && config.prefix.max_bytes > 0);
    for scorer in &config.profile.scorers {
        assert!(scorer.weight.is_finite() && scorer.weight >= 0.0);
    }
    for rule in &config.rewrites {
        assert!(!rule.targets.is_empty());
    }
    // made or refused, as the names of metrics are
    let _ = EngineTable::configured(&config.engines);
}
