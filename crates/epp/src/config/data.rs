//! Where members and their metrics come from: `dataLayer` and its plugins.

use std::{path::PathBuf, time::Duration};

use super::{
    Config,
    plugins::{Plugin, Plugins},
    section::Section,
};

/// How the metrics of model servers are fetched: `metrics-data-source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSource {
    /// The protocol.
    pub scheme: Scheme,
    /// The path, from `/` on.
    pub path: String,
    /// The port of all endpoints' metrics; absent: each endpoint's own.
    pub port: Option<u16>,
    /// Time between two scrapes of one endpoint; absent: as the flag says.
    pub interval: Option<Duration>,
    /// Certificates of model servers are not checked.
    pub insecure_skip_verify: bool,
    /// PEM file of the authorities that sign the model servers' certificates.
    pub ca_cert_path: Option<PathBuf>,
    /// PEM files that this EPP shows to model servers.
    pub client_cert: Option<ClientCert>,
}

/// A protocol of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCert {
    /// The certificate's file.
    pub cert_path: PathBuf,
    /// The key's.
    pub key_path: PathBuf,
}

/// What engines call their metrics: `core-metrics-extractor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines {
    /// The pod label that names the engine; absent: the ecosystem's.
    pub label_key: Option<String>,
    /// The engine of pods without the label: a built-in one, or one of `configs`.
    pub default_engine: String,
    /// Engines beside the built-in ones; one of the same name replaces that one.
    pub configs: Vec<EngineConfig>,
}

/// One engine; each spec is `name{label=value}` as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineConfig {
    /// The engine's name, as pods' labels have it.
    pub name: String,
    /// Requests that wait.
    pub queued_requests: Option<String>,
    /// Requests that run.
    pub running_requests: Option<String>,
    /// Used share of the KV cache.
    pub kv_usage: Option<String>,
    /// LoRA adapters.
    pub lora: Option<String>,
    /// The series whose labels tell the layout of the KV cache.
    pub cache_info: Option<String>,
    /// Its label with the tokens of a block.
    pub cache_block_size_label: Option<String>,
    /// Its label with the number of blocks.
    pub cache_num_blocks_label: Option<String>,
    /// Tokens of a block, as a value.
    pub cache_block_size: Option<String>,
    /// Number of blocks, as a value.
    pub cache_num_blocks: Option<String>,
}

/// Members from a file: `file-discovery`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiscovery {
    /// The file.
    pub path: PathBuf,
    /// It is read again when it changes.
    pub watch: bool,
}

/// The engines that need no config.
const BUILT_IN_ENGINES: [&str; 4] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm"];

/// As for the flag: a hundred scrapes a second are the most.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Reads `dataLayer`.
pub(super) fn read<'a>(root: &mut Section<'a>, plugins: &Plugins<'a>, config: &mut Config) {
    let mut layer = root.section("dataLayer");
    layer.no_effect(
        "injectDefaults",
        "load is always read from metrics, with the defaults if nothing else is said",
    );
    let mut source = None;
    let mut engines = None;
    for value in layer.list("sources") {
        let item = value.item().to_owned();
        let Some(mut section) = value.section() else {
            continue;
        };
        let reference = section.value("pluginRef");
        let picked = reference.and_then(|reference| {
            plugins.resolve(reference, "a data source", |plugin| match plugin {
                Plugin::Source(source) => Some(source.clone()),
                _ => None,
            })
        });
        let extractors = section.list("extractors");
        section.finish();
        if picked.is_some() && source.is_some() {
            layer.findings().refuse(
                item,
                "it is a second source of metrics",
                "one source",
                "pluginRef: metrics-data-source",
            );
        }
        source = source.or(picked);
        for extractor in extractors {
            let Some(mut section) = extractor.section() else {
                continue;
            };
            let reference = section.value("pluginRef");
            section.finish();
            let picked = reference.and_then(|reference| {
                plugins.resolve(reference, "an extractor", |plugin| match plugin {
                    Plugin::Extractor(engines) => Some(engines.clone()),
                    _ => None,
                })
            });
            engines = engines.or(picked);
        }
    }
    let mut discovery = layer.section("discovery");
    if let Some(reference) = discovery.value("pluginRef") {
        config.discovery = plugins.resolve(reference, "a discovery", |plugin| match plugin {
            Plugin::Discovery(discovery) => Some(discovery.clone()),
            _ => None,
        });
    }
    discovery.finish();
    layer.finish();
    // a plugin that no source names is still the one there is
    let source = source.or_else(|| {
        plugins.only(|plugin| match plugin {
            Plugin::Source(source) => Some(source.clone()),
            _ => None,
        })
    });
    let engines = engines.or_else(|| {
        plugins.only(|plugin| match plugin {
            Plugin::Extractor(engines) => Some(engines.clone()),
            _ => None,
        })
    });
    config.metrics_source = source.unwrap_or_default();
    config.engines = engines.unwrap_or_default();
}

// === impl MetricsSource ===

impl MetricsSource {
    /// Whether the files count.
    pub(crate) fn uses_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    pub(super) fn read(parameters: &mut Section<'_>) -> Self {
        let default = Self::default();
        parameters.no_effect("families", "only the families that are needed are read");
        let path = parameters.text("path", "/metrics").unwrap_or(default.path);
        let is_path = path.starts_with('/') && path.parse::<http::Uri>().is_ok();
        if !is_path {
            let problem = format!("{path:?} is no path of a URL that begins with /");
            let place = parameters.place("path");
            let findings = parameters.findings();
            findings.refuse(place, problem, "a path of a URL", "path: /metrics");
        }
        let port = parameters.integer("port", 0..=i64::from(u16::MAX), 0);
        let schemes = [("http", Scheme::Http), ("https", Scheme::Https)];
        let scheme = parameters.choice("scheme", &schemes);
        if scheme.unwrap_or_default() == Scheme::Http {
            for name in [
                "insecureSkipVerify",
                "caCertPath",
                "clientCertPath",
                "clientKeyPath",
            ] {
                if parameters.has(name) {
                    let place = parameters.place(name);
                    parameters.findings().ignore(place, "the scheme is http");
                }
            }
        }
        let verify = parameters.flag("insecureSkipVerify", default.insecure_skip_verify);
        if verify && scheme == Some(Scheme::Https) && parameters.has("caCertPath") {
            let place = parameters.place("caCertPath");
            let why = "certificates are not checked unless insecureSkipVerify is false";
            parameters.findings().ignore(place, why);
        }
        let ca = parameters.text("caCertPath", "/etc/tls/ca.crt");
        Self {
            scheme: scheme.unwrap_or_default(),
            path,
            port: u16::try_from(port).ok().filter(|port| *port > 0),
            interval: interval(parameters),
            insecure_skip_verify: verify,
            ca_cert_path: ca.map(PathBuf::from),
            client_cert: client_cert(parameters),
        }
    }
}

impl Default for MetricsSource {
    /// `http://ENDPOINT/metrics`.
    fn default() -> Self {
        Self {
            scheme: Scheme::Http,
            path: "/metrics".to_owned(),
            port: None,
            interval: None,
            insecure_skip_verify: true,
            ca_cert_path: None,
            client_cert: None,
        }
    }
}

fn interval(parameters: &mut Section<'_>) -> Option<Duration> {
    let interval = parameters.value("interval")?.duration("50ms")?;
    if interval < MIN_INTERVAL {
        parameters.findings().refuse(
            parameters.place("interval"),
            format!("{interval:?} is too short"),
            "at least 10ms",
            "interval: 50ms",
        );
        return None;
    }
    Some(interval)
}

fn client_cert(parameters: &mut Section<'_>) -> Option<ClientCert> {
    let cert = parameters.text("clientCertPath", "/etc/tls/tls.crt");
    let key = parameters.text("clientKeyPath", "/etc/tls/tls.key");
    let missing = match (cert, key) {
        (None, None) => return None,
        (Some(cert), Some(key)) => {
            return Some(ClientCert {
                cert_path: cert.into(),
                key_path: key.into(),
            });
        }
        (Some(_), None) => "clientKeyPath",
        (None, Some(_)) => "clientCertPath",
    };
    parameters.findings().refuse(
        parameters.place(missing),
        "it is missing",
        "both clientCertPath and clientKeyPath, or neither",
        format!("{missing}: /etc/tls/tls.pem"),
    );
    None
}

// === impl Engines ===

impl Engines {
    pub(super) fn read(parameters: &mut Section<'_>) -> Self {
        let label_key = parameters.text("engineLabelKey", "llm-d.ai/engine-type");
        let mut configs: Vec<EngineConfig> = Vec::new();
        for value in parameters.list("engineConfigs") {
            let item = value.item().to_owned();
            let Some(section) = value.section() else {
                continue;
            };
            let engine = EngineConfig::read(section);
            if configs.iter().any(|other| other.name == engine.name) {
                parameters.findings().refuse(
                    format!("{item}.name"),
                    format!("an engine before it is named {:?} too", engine.name),
                    "a name of its own",
                    "name: my-engine",
                );
            }
            configs.push(engine);
        }
        let default_engine = parameters.value("defaultEngine").and_then(|value| {
            let built_in = BUILT_IN_ENGINES.iter().copied();
            let names = built_in.chain(configs.iter().map(|engine| engine.name.as_str()));
            let words: Vec<_> = names.map(|name| (name, name)).collect();
            value.choice(&words).map(str::to_owned)
        });
        let default = Self::default();
        Self {
            label_key,
            default_engine: default_engine.unwrap_or(default.default_engine),
            configs,
        }
    }
}

impl Default for Engines {
    /// vLLM, and the other built-in engines for pods that have their label.
    fn default() -> Self {
        Self {
            label_key: None,
            default_engine: "vllm".to_owned(),
            configs: Vec::new(),
        }
    }
}

// === impl EngineConfig ===

impl EngineConfig {
    fn read(mut section: Section<'_>) -> Self {
        section.no_effect("customMetrics", "no plugin here reads other metrics");
        let spec = "my_engine:requests_waiting{model=llama}";
        let engine = Self {
            name: section.required_text("name", "my-engine"),
            queued_requests: section.text("queuedRequestsSpec", spec),
            running_requests: section.text("runningRequestsSpec", spec),
            kv_usage: section.text("kvUsageSpec", spec),
            lora: section.text("loraSpec", spec),
            cache_info: section.text("cacheInfoSpec", spec),
            cache_block_size_label: section.text("cacheBlockSizeLabelName", "block_size"),
            cache_num_blocks_label: section.text("cacheNumBlocksLabelName", "num_gpu_blocks"),
            cache_block_size: section.text("cacheBlockSizeSpec", spec),
            cache_num_blocks: section.text("cacheNumBlocksSpec", spec),
        };
        section.finish();
        engine
    }
}

// === impl FileDiscovery ===

impl FileDiscovery {
    pub(super) fn read(parameters: &mut Section<'_>) -> Self {
        Self {
            path: parameters
                .required_text("path", "/etc/epp/endpoints.yaml")
                .into(),
            watch: parameters.flag("watchFile", false),
        }
    }
}
