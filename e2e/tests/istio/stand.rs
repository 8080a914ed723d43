//! A cluster with Istio's kinds and istiod, and two Envoys that are its gateways.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::programs::Programs;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, api::ListParams};
use serde::Deserialize as _;
use serde_json::{Value, json};
use testbed::{Cluster, Inside, Requests, Testbed, eventually, isthmus};
use tokio::time::timeout;

use crate::{
    page,
    picks::{SOON, Server},
};

/// Release, namespace and pool; what istiod makes of these names is in the fixture.
pub(crate) const RELEASE: &str = "llama";
pub(crate) const NAMESPACE: &str = "llm";
/// Namespace that stands for another cluster: no route names what is in it.
pub(crate) const FAR: &str = "far";
const MESH: &str = include_str!("mesh.yaml");
const GATEWAY: &str = include_str!("gateway.yaml");
const SYSTEM: &str = "istio-system";
/// A release that is waited for, and helm's own work.
const HELM_LIMIT: Duration = Duration::from_mins(3);
/// Port of Envoy's admin page.
const ADMIN: u16 = 15000;
/// Port that both gateways listen on.
const LISTENER: u16 = 8080;
/// Port of the simulated model servers.
const SERVERS: u16 = 8000;
/// What the page leaves to its reader, and what tests need: simulated model servers, and picks that a request can force.
const SETS: &str = "image.hub=registry.example.com/isthmus,worker.kind=sim,worker.replicas=3,\
    inferenceExtension.replicas=1,inferenceExtension.flags.conformance-headers=true";

pub(crate) struct Stand {
    testbed: Testbed,
    pub(crate) cluster: Cluster,
    helm: PathBuf,
}

/// A gateway of Istio's.
#[derive(Clone, Copy)]
pub(crate) struct Gateway {
    name: &'static str,
    namespace: &'static str,
    /// As a flow mapping in YAML.
    labels: &'static str,
    /// Port of its Service.
    port: u16,
}

/// Of a Gateway of Gateway API. By the second label istiod knows it as one.
pub(crate) const OF_GATEWAY_API: Gateway = Gateway {
    name: "gw",
    namespace: NAMESPACE,
    labels: "{app: gw, gateway.networking.k8s.io/gateway-name: gw}",
    port: 8080,
};
/// As Istio installs it beside istiod.
pub(crate) const CLASSIC: Gateway = Gateway {
    name: "istio-ingressgateway",
    namespace: SYSTEM,
    labels: "{istio: ingressgateway}",
    port: 80,
};

// === impl Programs ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        let mut builder = Testbed::builder(inside)
            .image("istio/pilot", e2e::tools::pilot_discovery()?)
            .cluster("mesh")
            .manifest(e2e::tools::istio_definitions()?);
        for name in ["epp", "metadata-center", "model-server-sim"] {
            builder = builder.image(&format!("isthmus/{name}"), isthmus::program(name)?);
        }
        let testbed = builder.start(|_| {}).await?;
        let stand = Self {
            cluster: testbed.cluster("mesh")?.clone(),
            helm: e2e::tools::helm()?,
            testbed,
        };
        let cluster = &stand.cluster;
        cluster.apply_yaml(MESH).await?;
        isthmus::available(cluster, SYSTEM, "istiod").await?;
        let services: Api<Service> = Api::namespaced(cluster.client(), SYSTEM);
        let istiod = services.get("istiod").await?.spec;
        let istiod = istiod.and_then(|spec| spec.cluster_ip);
        let istiod = istiod.context("the Service of istiod has no address")?;
        for gateway in [OF_GATEWAY_API, CLASSIC] {
            cluster.apply_yaml(&gateway.manifest(&istiod)).await?;
            isthmus::available(cluster, gateway.namespace, gateway.name).await?;
        }
        cluster
            .apply_yaml(&manual("Gateway of Gateway API")?)
            .await?;
        Ok(stand)
    }

    async fn stop(self) {
        self.testbed.stop().await;
    }
}

// === impl Gateway ===

impl Gateway {
    fn manifest(self, istiod: &str) -> String {
        GATEWAY
            .replace("%name%", self.name)
            .replace("%namespace%", self.namespace)
            .replace("%labels%", self.labels)
            .replace("%port%", &self.port.to_string())
            .replace("%istiod%", istiod)
    }
}

// === impl Stand ===

impl Stand {
    /// Installs the chart with values of the page, or changes the release that is there; waits until it serves.
    pub(crate) async fn release(&self, values: &str, model: &str, more: &[&str]) -> Result<()> {
        self.release_in(NAMESPACE, page::block(values)?, model, more)
            .await
    }

    /// The same in any namespace, with any values.
    pub(crate) async fn release_in(
        &self,
        namespace: &str,
        values: &str,
        model: &str,
        more: &[&str],
    ) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(values.as_bytes())?;
        let file = file.path().to_string_lossy();
        let chart = chart();
        let chart = chart.to_string_lossy();
        let model = format!("worker.model={model}");
        let begin = [
            "upgrade",
            "--install",
            RELEASE,
            &*chart,
            "--namespace",
            namespace,
            "--values",
            &*file,
            "--set",
            SETS,
            "--set",
            &model,
            "--wait",
            "--timeout",
            "2m",
        ];
        self.helm(&[&begin, more].concat()).await?;
        Ok(())
    }

    async fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::new(&self.helm);
        let home = self.testbed.logs_dir().join("helm");
        command
            .args(arguments)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"))
            .env("KUBECONFIG", self.cluster.kubeconfig_path())
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let output = timeout(HELM_LIMIT, command.output()).await;
        let Ok(output) = output else {
            bail!("helm {arguments:?}: no end after {HELM_LIMIT:?}");
        };
        let output = output.context("running helm")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {arguments:?}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Applies a block of the page, as it stands.
    pub(crate) async fn apply(&self, block: &str) -> Result<()> {
        Ok(self.cluster.apply_yaml(page::block(block)?).await?)
    }

    /// Runs so many endpoint pickers of the release.
    pub(crate) async fn scale_picker(&self, replicas: u32) -> Result<()> {
        let deployment = format!("{RELEASE}-epp");
        let replicas = format!("--replicas={replicas}");
        let scale = [
            "scale",
            "deployment",
            "-n",
            NAMESPACE,
            &deployment,
            &replicas,
        ];
        self.cluster.kubectl(&scale).await?;
        Ok(isthmus::available(&self.cluster, NAMESPACE, &deployment).await?)
    }

    /// Takes back a route of a test.
    pub(crate) async fn forget(&self, route: &str) -> Result<()> {
        let delete = ["delete", "httproute", "-n", NAMESPACE, route];
        self.cluster.kubectl(&delete).await?;
        Ok(())
    }

    /// Requests through this gateway.
    pub(crate) async fn requests(&self, gateway: Gateway) -> Result<Requests> {
        let address = self.address(gateway).await?;
        Ok(Requests::new(format!("http://{address}:{LISTENER}")))
    }

    /// What this gateway is configured with, as its admin page shows it.
    pub(crate) async fn dump(&self, gateway: Gateway) -> Result<Value> {
        let address = self.address(gateway).await?;
        let page = Requests::new(format!("http://{address}:{ADMIN}"));
        let answer = page.get("/config_dump").await?;
        ensure!(answer.status == 200, "{}", answer.text());
        Ok(answer.json())
    }

    async fn address(&self, gateway: Gateway) -> Result<String> {
        let labels = gateway.labels.trim_matches(['{', '}']);
        let labels = labels.replace(": ", "=");
        let pods = self.pods(gateway.namespace, &labels).await?;
        let [(_, address)] = &*pods else {
            bail!("pods of the gateway {}: {pods:?}", gateway.name);
        };
        Ok(address.clone())
    }

    /// The model servers of the release in this namespace.
    pub(crate) async fn servers(&self, namespace: &str) -> Result<Vec<Server>> {
        let pods = self.pods(namespace, "isthmus.dev/component=worker").await?;
        let servers = pods.into_iter().map(|(pod, address)| Server {
            pod,
            endpoint: format!("{address}:{SERVERS}"),
        });
        Ok(servers.collect())
    }

    /// The address of the release's one endpoint picker in this namespace.
    pub(crate) async fn picker(&self, namespace: &str) -> Result<String> {
        let pods = self.pods(namespace, "isthmus.dev/component=epp").await?;
        let [(_, address)] = &*pods else {
            bail!("endpoint pickers in {namespace}: {pods:?}");
        };
        Ok(address.clone())
    }

    /// Names and addresses of pods with these labels, but those that are being deleted.
    async fn pods(&self, namespace: &str, labels: &str) -> Result<Vec<(String, String)>> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), namespace);
        let pods = pods.list(&ListParams::default().labels(labels)).await?;
        let living = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let named = living.map(|pod| {
            let address = pod.status.and_then(|status| status.pod_ip);
            let name = pod.metadata.name.unwrap_or_default();
            (name, address.unwrap_or_default())
        });
        Ok(named.collect())
    }

    /// Sum of the endpoint picker's series that begin so.
    pub(crate) async fn metric(&self, series: &str) -> Result<f64> {
        let address = self.picker(NAMESPACE).await?;
        let page = Requests::new(format!("http://{address}:9090"));
        let text = page.get("/metrics").await?.text();
        let lines = text.lines().filter(|line| line.starts_with(series));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// Waits until what the gateway is configured with is as wanted.
    pub(crate) async fn configured<T>(
        &self,
        gateway: Gateway,
        what: &str,
        wanted: impl Fn(&Value) -> Result<T>,
    ) -> Result<T> {
        let seen = eventually(what, SOON, async || {
            let dump = self.dump(gateway).await;
            let seen = dump.and_then(|dump| wanted(&dump));
            seen.map_err(|error| format!("{error:#}"))
        });
        Ok(seen.await?)
    }
}

/// A Gateway of the page, for which istiod is to make no Envoy: it is there already.
fn manual(block: &str) -> Result<String> {
    let mut gateway: Value = serde_yaml::from_str(page::block(block)?)?;
    let name = OF_GATEWAY_API.name;
    let host = format!("{name}.{NAMESPACE}.svc.cluster.local");
    gateway["spec"]["addresses"] = json!([{"type": "Hostname", "value": host}]);
    Ok(gateway.to_string())
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/isthmus-pool")
}

/// Istio's kinds, of which no other target has the definitions.
pub(crate) async fn an_api_server_with_istios_kinds_takes_each_case_of_the_chart(
    stand: &Stand,
) -> Result<()> {
    let mut seen = 0;
    for entry in std::fs::read_dir(chart().join("tests"))? {
        let path = entry?.path();
        let file = path.to_string_lossy();
        if !file.ends_with(".values.yaml") {
            continue;
        }
        let chart = chart();
        let render = [
            "template",
            "pool",
            &*chart.to_string_lossy(),
            "--namespace",
            NAMESPACE,
            "--values",
            &*file,
        ];
        let rendered = stand.helm(&render).await?;
        let mut objects = tempfile::NamedTempFile::new()?;
        for document in serde_yaml::Deserializer::from_str(&rendered) {
            let mut object = Value::deserialize(document)?;
            let version = object["apiVersion"].as_str().unwrap_or_default();
            if version.starts_with("networking.istio.io/") {
                // a namespace that is not here is not what is tried
                object["metadata"]["namespace"] = NAMESPACE.into();
                writeln!(objects, "---\n{object}")?;
                seen += 1;
            }
        }
        if objects.as_file().metadata()?.len() == 0 {
            continue;
        }
        let objects = objects.path().to_string_lossy();
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--force-conflicts",
            "--validate=strict",
            "-f",
            &*objects,
        ];
        let applied = stand.cluster.kubectl(&apply).await;
        applied.with_context(|| file.into_owned())?;
    }
    // a DestinationRule alone, and twice with an EnvoyFilter and one for the model servers
    ensure!(seen == 7, "{seen} objects of Istio's kinds");
    Ok(())
}
