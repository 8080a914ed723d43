//! What is picked from, and how an EPP learns of it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;

use super::picker::Start;

/// Model servers on loopback, and files that name them: no Kubernetes is needed, and any EPP that reads such files can be
/// measured.
pub struct Endpoints {
    members: Vec<SocketAddr>,
    directory: TempDir,
    /// One process at all addresses.
    _model_servers: Child,
}

/// What an EPP is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// All that decides is written down: two programs are told the same.
    Written,
    /// Only where the endpoints are: each program has its own defaults.
    Defaults,
}

/// Of the default profile, as the ecosystem has it.
const SCORERS: [(&str, u32); 3] = [
    ("queue-scorer", 2),
    ("kv-cache-utilization-scorer", 2),
    ("prefix-cache-scorer", 3),
];
const DISCOVERY: &str = "file-discovery";
const HANDLER: &str = "single-profile-handler";
const PICKER: &str = "max-score-picker";

fn path_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("{} is not UTF-8", path.display()))
}

// === impl Endpoints ===

impl Endpoints {
    /// Starts so many, at most 250, with so many lines of padding on their metrics pages. Call it within a runtime.
    /// # Errors
    /// When they do not start.
    pub fn start(count: u8, padding: u32, model_server: &Path, logs: &Path) -> Result<Self> {
        let port = apiserver_sim::free_address()?.port();
        let members = (1..=count).map(|number| (Ipv4Addr::new(127, 0, 1, number), port).into());
        let flags = [
            ("--count", count.to_string()),
            ("--bind-base", Ipv4Addr::new(127, 0, 1, 1).to_string()),
            ("--port", port.to_string()),
            ("--model", "m".to_owned()),
            ("--metrics-padding-lines", padding.to_string()),
            ("--keep-alive-timeout", "0".to_owned()),
        ];
        // They share a core with the load, whose measured times must not have their time slices in them.
        let niced = ["-n".to_owned(), "19".to_owned(), path_text(model_server)?];
        let flags = flags.map(|(flag, value)| [flag.to_owned(), value]);
        let start = Start {
            program: "nice".into(),
            flags: niced
                .into_iter()
                .chain(flags.into_iter().flatten())
                .collect(),
        };
        let mut command = start.command(&logs.join("model-server-sim.log"))?;
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        let child = command.spawn();
        let child = child.with_context(|| format!("starting {}", model_server.display()))?;
        Ok(Self {
            members: members.collect(),
            directory: tempfile::tempdir().context("a directory")?,
            _model_servers: child,
        })
    }

    /// Where they are.
    pub fn members(&self) -> &[SocketAddr] {
        &self.members
    }

    /// A configuration file for an EPP that picks from the first `count` of them.
    /// # Errors
    /// When it cannot be written.
    pub fn config(&self, count: usize, settings: Settings) -> Result<PathBuf> {
        let write = |name: String, content: &Value| -> Result<PathBuf> {
            let file = self.directory.path().join(name);
            // JSON is YAML too
            std::fs::write(&file, content.to_string())
                .with_context(|| format!("writing {}", file.display()))?;
            Ok(file)
        };
        let members = self.members.iter().take(count).enumerate();
        let entries: Vec<Value> = members
            .map(|(number, member)| {
                json!({"name": format!("pod-{number:03}"), "namespace": "ml",
                    "address": member.ip().to_string(), "port": member.port().to_string()})
            })
            .collect();
        let endpoints = write(
            format!("endpoints-{count}.yaml"),
            &json!({"endpoints": entries}),
        )?;
        let config = config(&endpoints, settings);
        write(format!("config-{count}-{settings:?}.yaml"), &config)
    }
}

fn config(endpoints: &Path, settings: Settings) -> Value {
    let mut plugins = vec![json!({"type": DISCOVERY, "parameters": {"path": endpoints}})];
    let mut config = json!({
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "dataLayer": {"discovery": {"pluginRef": DISCOVERY}},
    });
    if settings == Settings::Written {
        let mut profile: Vec<Value> = SCORERS
            .iter()
            .map(|(scorer, weight)| json!({"pluginRef": scorer, "weight": weight}))
            .collect();
        profile.push(json!({"pluginRef": PICKER}));
        let types = SCORERS.iter().map(|(scorer, _)| *scorer);
        let types = types.chain([HANDLER, PICKER]);
        plugins.extend(types.map(|kind| json!({"type": kind})));
        plugins.push(json!({"type": "approx-prefix-cache-producer", "parameters":
            {"blockSizeTokens": 64, "maxPrefixTokensToMatch": 131_072, "lruCapacityPerServer": 31_250, "autoTune": false}}));
        config["schedulingProfiles"] = json!([{"name": "default", "plugins": profile}]);
    }
    config["plugins"] = json!(plugins);
    config
}
