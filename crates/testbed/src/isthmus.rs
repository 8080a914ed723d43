//! Isthmus in a testbed's clusters: the manifests of `config/`, put where they belong and waited for.
//!
//! Nothing here knows how a cluster is made: it works through [`Cluster`] alone, on any cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::eventually::eventually;
use crate::manifests::Manifests;
use crate::testbed::Builder;

mod unserved;

pub use unserved::{UNSERVED_PORT, add_namespace, export_unserved};

/// Namespace of the controller and the gateway.
pub const NAMESPACE: &str = "isthmus-system";
/// Namespace of the sample pool and route.
pub const POOL_NAMESPACE: &str = "llm";
/// Name of the sample pool, of its import, and of the model it serves.
pub const POOL: &str = "llama";
/// Deployment of the sample pool's model servers.
pub const MODEL_SERVERS: &str = "llama-worker";
/// Secret of the kubeconfigs that the controller reads its members from.
pub const MEMBERS_SECRET: &str = "isthmus-members";
/// The networks of every member's pods, in any cluster of a testbed, as they are configured in the controller.
pub const POD_CIDRS: &str = "10.0.0.0/8";
/// ServiceAccount of the controller, in each member.
pub const CONTROLLER: &str = "isthmus-mci-controller";
/// Deployment and Service of the gateway's control plane.
pub const GATEWAY: &str = "isthmus-gateway";

const MEMBER: &str = include_str!("../../../config/rbac/member.yaml");
const HOME: &str = include_str!("../../../config/rbac/home.yaml");
const CONTROLLER_MANIFEST: &str = include_str!("../../../config/controller.yaml");
const GATEWAY_MANIFEST: &str = include_str!("../../../config/gateway.yaml");
const POOL_MANIFEST: &str = include_str!("../../../config/samples/pool.yaml");
const ROUTE_MANIFEST: &str = include_str!("../../../config/samples/route.yaml");
const FRONT_MANIFEST: &str = include_str!("../../../config/samples/front.yaml");

/// Programs start in a second; a busy machine of two cores takes several.
const ROLLOUT_LIMIT: Duration = Duration::from_mins(1);
const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// The programs behind the images `isthmus/<program>` that a ClusterSet needs.
const PROGRAMS: [&str; 4] = ["epp", "gateway", "mci-controller", "model-server-sim"];
/// Services that an endpoint picker may call; a build for the demo has none of them.
const SERVICES: [&str; 3] = ["metadata-center", "processor", "router"];
/// Directory of the programs; by default `target/debug`.
const PROGRAMS_DIR: &str = "ISTHMUS_BIN_DIR";

/// Adds the images of our programs to a testbed. A service that is not built has no image: a pod that names it is refused.
///
/// # Errors
/// Names a program other than a service that is not built.
pub fn with_programs(builder: Builder) -> Result<Builder, TestbedError> {
    let mut builder = builder;
    for name in PROGRAMS {
        builder = builder.image(&format!("isthmus/{name}"), program(name)?);
    }
    for name in SERVICES {
        if let Ok(path) = program(name) {
            builder = builder.image(&format!("isthmus/{name}"), path);
        }
    }
    Ok(builder)
}

/// The executable of one of our programs.
///
/// # Errors
/// When it is not built.
pub fn program(name: &str) -> Result<PathBuf, TestbedError> {
    let directory = std::env::var_os(PROGRAMS_DIR)
        .map_or_else(|| crate::workspace().join("target/debug"), PathBuf::from);
    let path = directory.join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(TestbedError::Program(path))
    }
}

/// Puts upstream's CRD of InferencePoolImport over ours, as an installation of the upstream bundle does.
///
/// # Errors
/// When the manifest is not found or the API server refuses.
pub async fn install_upstream_import_crd(cluster: &Cluster) -> Result<(), TestbedError> {
    replace(cluster, &[Manifests::find().await?.upstream_import]).await
}

/// Puts ours back.
///
/// # Errors
/// When the API server refuses.
pub async fn install_import_crd(cluster: &Cluster) -> Result<(), TestbedError> {
    replace(cluster, &Manifests::find().await?.own).await
}

/// `kubectl replace`: an apply would merge the two schemas.
async fn replace(cluster: &Cluster, files: &[PathBuf]) -> Result<(), TestbedError> {
    for file in files {
        cluster
            .kubectl(&["replace", "-f", &file.to_string_lossy()])
            .await?;
    }
    Ok(())
}

/// Makes a cluster a member of the ClusterSet: the controller's account and its rights there. Returns the kubeconfig
/// that the controller connects with.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn join(cluster: &Cluster) -> Result<String, TestbedError> {
    cluster.apply_yaml(MEMBER).await?;
    cluster
        .service_account_kubeconfig(NAMESPACE, CONTROLLER)
        .await
}

/// Runs the ClusterSet controller in `home` with these members, by name, and waits until it is ready.
///
/// # Errors
/// When the API server refuses, or the controller is not ready in a minute.
pub async fn install_controller(
    home: &Cluster,
    members: &BTreeMap<String, String>,
) -> Result<(), TestbedError> {
    home.apply_yaml(HOME).await?;
    home.apply_yaml(CONTROLLER_MANIFEST).await?;
    set_members(home, members).await?;
    available(home, NAMESPACE, CONTROLLER).await
}

/// Runs the ClusterSet controller with its manifest changed: `change` gets the specification of its pod. What it adds or
/// takes away lasts until [`install_controller`].
///
/// # Errors
/// When the API server refuses, or the controller is not ready in a minute.
pub async fn change_controller(
    home: &Cluster,
    change: impl FnOnce(&mut Value),
) -> Result<(), TestbedError> {
    home.apply_yaml(&changed_controller(change)).await?;
    available(home, NAMESPACE, CONTROLLER).await
}

/// Sets environment variables of the controller (each flag has one of its name) and waits until it runs with them.
///
/// # Errors
/// When the API server refuses, or the controller is not ready in a minute.
pub async fn configure_controller(
    home: &Cluster,
    variables: &[(&str, &str)],
) -> Result<(), TestbedError> {
    let env: Vec<_> = variables
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let patch = json!({"spec": {"template": {"spec": {"containers": [{
        "name": "mci-controller", "env": env,
    }]}}}});
    let deployments: Api<Deployment> = Api::namespaced(home.client(), NAMESPACE);
    let params = PatchParams::default();
    let what = "Deployment of the controller";
    within(
        home,
        what,
        deployments.patch(CONTROLLER, &params, &Patch::Strategic(&patch)),
    )
    .await?;
    available(home, NAMESPACE, CONTROLLER).await
}

/// The Deployment alone, as JSON, which is YAML.
fn changed_controller(change: impl FnOnce(&mut Value)) -> String {
    let mut deployment = document(CONTROLLER_MANIFEST, "Deployment");
    change(&mut deployment["spec"]["template"]["spec"]);
    deployment.to_string()
}

/// The first document of this kind.
fn document(manifest: &str, kind: &str) -> Value {
    let mut documents = serde_yaml::Deserializer::from_str(manifest)
        .filter_map(|document| Value::deserialize(document).ok());
    let found = documents.find(|document| document["kind"] == kind);
    found.unwrap_or_default()
}

/// Replaces the controller's member kubeconfigs: member name to kubeconfig text. Each may export all namespaces, and has its
/// pods in [`POD_CIDRS`].
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn set_members(
    home: &Cluster,
    members: &BTreeMap<String, String>,
) -> Result<(), TestbedError> {
    let data = members
        .iter()
        .flat_map(|(name, kubeconfig)| {
            [
                (format!("{name}.yaml"), kubeconfig.as_str()),
                (format!(".{name}.pod-cidrs"), POD_CIDRS),
                (format!(".{name}.export-namespaces"), "*"),
            ]
            .map(|(key, text)| (key, ByteString(text.as_bytes().to_vec())))
        })
        .collect();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(MEMBERS_SECRET.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    };
    let secrets: Api<Secret> = Api::namespaced(home.client(), NAMESPACE);
    let params = PatchParams::apply("testbed").force();
    let what = "Secret of the members";
    within(
        home,
        what,
        secrets.patch(MEMBERS_SECRET, &params, &Patch::Apply(&secret)),
    )
    .await?;
    Ok(())
}

/// Runs the gateway's control plane, and waits until it is ready. The testbed's clusters have no DNS, so Envoys are told
/// the address of its Service instead of the name.
///
/// # Errors
/// When the API server refuses, or the gateway is not ready in a minute.
pub async fn install_gateway(cluster: &Cluster) -> Result<(), TestbedError> {
    cluster.apply_yaml(GATEWAY_MANIFEST).await?;
    let services: Api<Service> = Api::namespaced(cluster.client(), NAMESPACE);
    let service = within(cluster, "Service of the gateway", services.get(GATEWAY)).await?;
    let address = service
        .spec
        .and_then(|spec| spec.cluster_ip)
        .unwrap_or_default();
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), NAMESPACE);
    let patch = json!({"spec": {"template": {"spec": {"containers": [{
        "name": "gateway",
        "env": [
            {"name": "ADS_HOSTNAME", "value": address},
            {"name": "CLUSTER_NAME", "value": cluster.name()},
        ],
    }]}}}});
    let params = PatchParams::default();
    let what = "Deployment of the gateway";
    within(
        cluster,
        what,
        deployments.patch(GATEWAY, &params, &Patch::Strategic(&patch)),
    )
    .await?;
    available(cluster, NAMESPACE, GATEWAY).await
}

/// Runs the sample pool: three simulated model servers and their endpoint picker; waits until all are available.
///
/// # Errors
/// When the API server refuses, or they are not available in a minute.
pub async fn install_pool(cluster: &Cluster) -> Result<(), TestbedError> {
    cluster.apply_yaml(POOL_MANIFEST).await?;
    available(cluster, POOL_NAMESPACE, MODEL_SERVERS).await?;
    available(cluster, POOL_NAMESPACE, "llama-epp").await
}

/// Applies the sample Gateway and its route to the import; `http://…` of the Gateway once it is programmed.
///
/// # Errors
/// When the API server refuses, or the Gateway is not programmed in a minute.
pub async fn install_route(cluster: &Cluster) -> Result<String, TestbedError> {
    cluster.apply_yaml(ROUTE_MANIFEST).await?;
    gateway_url(cluster, POOL_NAMESPACE, "inference").await
}

/// Applies the route of the sample alone: to the import, and nowhere else.
///
/// # Errors
/// When the API server refuses.
pub async fn apply_route(cluster: &Cluster) -> Result<(), TestbedError> {
    let route = document(ROUTE_MANIFEST, "HTTPRoute");
    cluster.apply_yaml(&route.to_string()).await
}

/// Applies the Gateway through which other clusters reach the sample pool in ParentMode; `http://…` of it once it is
/// programmed.
///
/// # Errors
/// When the API server refuses, or the Gateway is not programmed in a minute.
pub async fn install_front(cluster: &Cluster) -> Result<String, TestbedError> {
    cluster.apply_yaml(FRONT_MANIFEST).await?;
    gateway_url(cluster, POOL_NAMESPACE, "front").await
}

/// Exports the sample pool, as its owner would.
///
/// # Errors
/// With what kubectl said.
pub async fn export(cluster: &Cluster) -> Result<String, TestbedError> {
    annotate(cluster, "inference.networking.x-k8s.io/export=ClusterSet").await
}

/// Withdraws it.
///
/// # Errors
/// With what kubectl said.
pub async fn withdraw(cluster: &Cluster) -> Result<String, TestbedError> {
    annotate(cluster, "inference.networking.x-k8s.io/export-").await
}

/// `kubectl annotate` on the sample pool.
///
/// # Errors
/// With what kubectl said.
pub async fn annotate(cluster: &Cluster, annotation: &str) -> Result<String, TestbedError> {
    let command = [
        "annotate",
        "--overwrite",
        "-n",
        POOL_NAMESPACE,
        "inferencepool",
        POOL,
        annotation,
    ];
    cluster.kubectl(&command).await
}

/// The address of a Gateway once it is programmed, as a URL.
///
/// # Errors
/// When it is not programmed in a minute; the error holds its conditions.
pub async fn gateway_url(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<String, TestbedError> {
    let gateways: Api<crd::gateway::Gateway> = Api::namespaced(cluster.client(), namespace);
    let what = format!(
        "Gateway {namespace}/{name} in {} is programmed",
        cluster.name()
    );
    let url = eventually(&what, ROLLOUT_LIMIT, async || {
        let gateway = gateways
            .get(name)
            .await
            .map_err(|error| error.to_string())?;
        let status = gateway.status.ok_or("no status")?;
        let conditions = status.conditions.unwrap_or_default();
        let address = status.addresses.unwrap_or_default().into_iter().next();
        match address {
            Some(address) if crd::conditions::is_true(&conditions, crd::conditions::PROGRAMMED) => {
                Ok(format!("http://{}", address.value))
            }
            _ => Err(format!("{conditions:?}")),
        }
    });
    Ok(url.await?)
}

/// Waits until a Deployment has all its replicas available, and none of an older generation.
///
/// # Errors
/// When that takes more than a minute; the error holds its status.
pub async fn available(cluster: &Cluster, namespace: &str, name: &str) -> Result<(), TestbedError> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), namespace);
    let what = format!(
        "Deployment {namespace}/{name} in {} is available",
        cluster.name()
    );
    let wait = eventually(&what, ROLLOUT_LIMIT, async || {
        let deployment = deployments
            .get(name)
            .await
            .map_err(|error| error.to_string())?;
        let wanted = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let generation = deployment.metadata.generation;
        let status = deployment.status.ok_or("no status")?;
        let done = status.observed_generation >= generation
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.available_replicas.unwrap_or(0) == wanted
            && status.replicas.unwrap_or(0) == wanted;
        if done {
            Ok(())
        } else {
            Err(format!(
                "{} updated, {} available, {} in all, {wanted} wanted",
                status.updated_replicas.unwrap_or(0),
                status.available_replicas.unwrap_or(0),
                status.replicas.unwrap_or(0),
            ))
        }
    });
    Ok(wait.await?)
}

async fn within<T>(
    cluster: &Cluster,
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, TestbedError> {
    let failed = |problem: String| TestbedError::Request {
        cluster: cluster.name().to_owned(),
        what: what.to_owned(),
        problem,
    };
    tokio::time::timeout(REQUEST_LIMIT, request)
        .await
        .map_err(|elapsed| failed(elapsed.to_string()))?
        .map_err(|error| failed(error.to_string()))
}
