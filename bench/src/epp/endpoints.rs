//! What is picked from, and how an EPP learns of it.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result};
use apiserver_sim::{NAMESPACES, PODS, POOLS, Server};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Child;

use super::picker::Start;

/// Model servers on loopback, and the members of an InferencePool of a scripted API server.
///
/// Only `discovery` knows how an EPP finds them.
pub struct Endpoints {
    members: Vec<SocketAddr>,
    directory: TempDir,
    _api_server: Server,
    /// One process at all addresses: each is a server of its own only to the EPP.
    _model_server: Child,
}

const POOL: &str = "bench";
const NAMESPACE: &str = "ml";
const KUBECONFIG: &str = "kubeconfig";

// === impl Endpoints ===

impl Endpoints {
    /// Starts so many, at most 250. Call it within a runtime.
    /// # Errors
    /// When a server does not start.
    pub fn start(count: u8, model_server: &Path, logs: &Path) -> Result<Self> {
        let port = apiserver_sim::free_address()?.port();
        let members = (1..=count).map(|number| (Ipv4Addr::new(127, 0, 1, number), port).into());
        let members: Vec<SocketAddr> = members.collect();
        let flags = [("--port", port.to_string()), ("--model", "m".to_owned())];
        let start = Start {
            program: model_server.to_owned(),
            flags: flags
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect(),
            variables: Vec::new(),
        };
        let child = start.command(&logs.join("model-server-sim.log"))?.spawn();
        let child = child.with_context(|| format!("starting {}", model_server.display()))?;
        let api_server = Server::builder("epp").start()?;
        fill(&api_server, &members);
        let directory = tempfile::tempdir().context("a directory")?;
        let file = directory.path().join(KUBECONFIG);
        std::fs::write(file, api_server.kubeconfig()).context("writing a kubeconfig")?;
        Ok(Self {
            members,
            directory,
            _api_server: api_server,
            _model_server: child,
        })
    }

    /// Where they are.
    pub fn members(&self) -> &[SocketAddr] {
        &self.members
    }

    /// Flags and environment variables by which an EPP finds them.
    pub(super) fn discovery(&self) -> (Vec<String>, Vec<(&'static str, OsString)>) {
        let flags = ["--pool-name", POOL, "--pool-namespace", NAMESPACE];
        let file = self.directory.path().join(KUBECONFIG);
        let variables = vec![("KUBECONFIG", file.into_os_string())];
        (flags.map(str::to_owned).into(), variables)
    }
}

/// A pool, and a ready pod for each member.
fn fill(server: &Server, members: &[SocketAddr]) {
    server.put(&NAMESPACES, json!({"metadata": {"name": NAMESPACE}}));
    let mut pool = apiserver_sim::pool(NAMESPACE, POOL);
    pool["spec"]["targetPorts"] = members
        .first()
        .map(|member| json!([{"number": member.port()}]))
        .unwrap_or_default();
    server.put(&POOLS, pool);
    for (number, member) in members.iter().enumerate() {
        let pod = json!({
            "metadata": {"namespace": NAMESPACE, "name": format!("pod-{number:03}"), "labels": {"app": POOL}},
            "status": {"phase": "Running", "podIP": member.ip().to_string(),
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        server.put(&PODS, pod);
    }
}
