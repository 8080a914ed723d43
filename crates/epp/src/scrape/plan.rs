//! What a configuration says of scraping, ready for use, and what keeps it up to date.
//!
//! ```text
//!  configuration, files that it names ─► Sources ─► Plan ─► Planner (each 5 s) ─► Scraper
//! ```

use std::{path::Path, sync::Arc, time::Duration};

use futures::Stream;
use reread::{read_at_most, reread};
use scheduling::Entry;
use tokio::sync::watch;
use tracing::{error, info};

use super::{engine::EngineTable, fetch::Fetch};
use crate::config::{Config, CurrentConfig, Engines, MetricsSource, Refusal};

/// 1 MiB: what a Secret can hold.
const MAX_FILE: usize = 1024 * 1024;

/// How endpoints are scraped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) engines: EngineTable,
    pub(super) fetch: Arc<Fetch>,
    /// Absent: as the flag says.
    pub(super) interval: Option<Duration>,
    /// The pod label that names the engine, where it is not the ecosystem's.
    label_key: Option<Arc<str>>,
}

/// Makes a plan anew when the configuration or a file that it names has changed.
#[derive(Debug)]
pub struct Planner {
    config: CurrentConfig,
    /// The last look, so that each change is judged and logged once.
    last: Result<Sources, Refusal>,
    plans: watch::Sender<Plan>,
}

/// All that a plan is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sources {
    engines: Engines,
    source: MetricsSource,
    files: Files,
}

/// PEM files, by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
}

// === impl Plan ===

impl Plan {
    /// Reads the files that the configuration names. Blocks.
    ///
    /// # Errors
    /// [`Refusal`] that names the key whose value cannot be used.
    pub fn load(config: &Config) -> Result<Self, Refusal> {
        Sources::read(config)?.plan()
    }

    /// The engine that a member runs; empty: its pod does not say.
    pub(super) fn engine_of(&self, member: &Entry) -> Arc<str> {
        match &self.label_key {
            None => Arc::clone(&member.engine),
            Some(key) => member.labels.get(key).cloned().unwrap_or_default(),
        }
    }
}

impl Default for Plan {
    /// The built-in engines, over plain HTTP.
    fn default() -> Self {
        Self {
            engines: EngineTable::default(),
            fetch: Arc::default(),
            interval: None,
            label_key: None,
        }
    }
}

// === impl Sources ===

impl Sources {
    fn read(config: &Config) -> Result<Self, Refusal> {
        let source = config.metrics_source.clone();
        let mut files = Files::default();
        if source.uses_tls() {
            let authorities = source.ca_cert_path.as_deref();
            let authorities = authorities.filter(|_| !source.insecure_skip_verify);
            files.authorities = authorities
                .map(|path| read("caCertPath", path))
                .transpose()?;
            if let Some(pair) = &source.client_cert {
                files.certificate = Some(read("clientCertPath", &pair.cert_path)?);
                files.key = Some(read("clientKeyPath", &pair.key_path)?);
            }
        }
        Ok(Self {
            engines: config.engines.clone(),
            source,
            files,
        })
    }

    fn plan(&self) -> Result<Plan, Refusal> {
        let engines = EngineTable::configured(&self.engines).map_err(|error| Refusal {
            item: "parameters of core-metrics-extractor".to_owned(),
            line: None,
            problem: error.to_string(),
            expected: "names of metrics, and a default engine that is one of them".to_owned(),
            example: "queuedRequestsSpec: my_engine:requests_waiting{model=llama}".to_owned(),
        })?;
        Ok(Plan {
            engines,
            fetch: Arc::new(Fetch::new(&self.source, &self.files)?),
            interval: self.source.interval,
            label_key: self.engines.label_key.as_deref().map(Into::into),
        })
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, Refusal> {
    read_at_most(path, MAX_FILE).map_err(|problem| bad_file(key, path, &problem))
}

/// A file that cannot be used, by the key that names it.
pub(super) fn bad_file(key: &'static str, path: &Path, problem: &str) -> Refusal {
    Refusal {
        item: format!("parameters.{key} of metrics-data-source"),
        line: None,
        problem: format!("{}: {problem}", path.display()),
        expected: match key {
            "clientKeyPath" => "a PEM file with a private key that fits clientCertPath",
            "clientCertPath" => "a PEM file with a chain of certificates",
            _ => "a PEM file with the certificates of authorities",
        }
        .to_owned(),
        example: format!("{key}: /etc/epp/metrics-tls/tls.pem"),
    }
}

// === impl Planner ===

impl Planner {
    /// Begins with the plan of the configuration in force. Blocks.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn begin(config: CurrentConfig) -> Result<(Self, watch::Receiver<Plan>), Refusal> {
        let sources = Sources::read(&config.load())?;
        let (plans, receiver) = watch::channel(sources.plan()?);
        let planner = Self {
            config,
            last: Ok(sources),
            plans,
        };
        Ok((planner, receiver))
    }

    /// Looks every 5 s and at each of `hangups`. Never returns.
    pub async fn run(mut self, hangups: impl Stream<Item = ()> + Unpin) {
        let config = self.config.clone();
        let read = move || Sources::read(&config.load_full());
        reread(read, hangups, |sources, _| self.judge(sources)).await;
    }

    fn judge(&mut self, sources: Result<Sources, Refusal>) {
        if sources == self.last {
            return;
        }
        let plan = match &sources {
            Ok(sources) => sources.plan(),
            Err(refusal) => Err(refusal.clone()),
        };
        self.last = sources;
        match plan {
            Ok(plan) => {
                info!("endpoints are scraped in another way from now on");
                self.plans.send_replace(plan);
            }
            Err(error) => error!(%error, "endpoints are scraped as before"),
        }
    }
}
