//! The controller, as home shows it: its Lease, and its admin port through the proxy of the API server, for which no port
//! needs to be opened.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{ResourceExt, api::ListParams};
use mci_inventory::lease_name;
use serde::Deserialize;

use crate::cluster::{CallError, Cluster};

/// Deployment of the controller, and the value of its pods' label.
pub(crate) const CONTROLLER: &str = "isthmus-mci-controller";
const LABEL: &str = "app.kubernetes.io/name";
const PORT_NAME: &str = "admin";
/// Where no port of the pod has that name.
const PORT: i32 = 8080;

/// A Lease is renewed every few seconds; a clock may be a minute wrong.
const LEASE_IS_OLD: SignedDuration = SignedDuration::from_mins(1);

/// Why a page could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error(
        "{home}: no pod of the controller is ready in {namespace}: kubectl --context {context} -n {namespace} get pods -l {LABEL}={CONTROLLER}"
    )]
    NoPod {
        home: String,
        context: String,
        namespace: String,
    },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// `/debug/clusters`, as far as it is read here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct View {
    /// Whether it is the one that writes.
    #[serde(default)]
    pub(crate) leader: bool,
    /// Whether removals are held since many members were lost at once.
    #[serde(default)]
    pub(crate) guard: bool,
    #[serde(default)]
    pub(crate) clusters: Vec<MemberView>,
    #[serde(default)]
    pub(crate) unused: Vec<UnusedView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) active: ActiveView,
    /// `Removing` once it is to go.
    #[serde(default)]
    pub(crate) link: String,
    /// The object that defines it.
    #[serde(default)]
    pub(crate) source: String,
    /// Of the cluster, once that was identified.
    #[serde(default)]
    pub(crate) uid: Option<String>,
    #[serde(default)]
    pub(crate) detail: Option<String>,
    #[serde(default)]
    pub(crate) denied: Option<String>,
    /// Networks of its pods; none if the controller is of a release that does not report them.
    #[serde(default, rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<String>>,
    /// Namespaces that it may export; none if its object does not name any.
    #[serde(default)]
    pub(crate) export_namespaces: Option<String>,
    /// Values of its object that cannot be read.
    #[serde(default)]
    pub(crate) complaints: Vec<String>,
}

/// An object that should name a member and does not.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct UnusedView {
    pub(crate) source: String,
    pub(crate) active: ActiveView,
    pub(crate) detail: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ActiveView {
    pub(crate) status: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// What the controller says of its members.
pub(crate) async fn view(home: &Cluster, namespace: &str) -> Result<View, String> {
    let page = page(home, namespace, "/debug/clusters").await;
    let page = page.map_err(|error| error.to_string())?;
    serde_json::from_str(&page)
        .map_err(|error| format!("it answers in another way than this version does: {error}"))
}

/// A page of the controller's admin port; a standby knows as much as the leader.
pub(crate) async fn page(home: &Cluster, namespace: &str, path: &str) -> Result<String, PageError> {
    let params = ListParams::default().labels(&format!("{LABEL}={CONTROLLER}"));
    let pods = home.list::<Pod>(Some(namespace), &params).await?;
    let pod = pods
        .iter()
        .find(|pod| is_ready(pod))
        .ok_or_else(|| PageError::NoPod {
            home: home.name.clone(),
            context: home.context.clone(),
            namespace: namespace.to_owned(),
        })?;
    let (name, port) = (pod.name_any(), port_of(pod));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}");
    let what = format!("ask pod {namespace}/{name} for its admin port");
    Ok(home.page(&what, &path).await?)
}

/// Whether a controller of the ClusterSet renews its Lease.
pub(crate) async fn is_led(
    home: &Cluster,
    namespace: &str,
    clusterset: &str,
) -> Result<bool, CallError> {
    let lease: Option<Lease> = home.get(namespace, &lease_name(clusterset)).await?;
    let renewed = lease.and_then(|lease| lease.spec?.renew_time);
    Ok(renewed.is_some_and(|at| is_live(at.0, Timestamp::now())))
}

/// Whether a Lease that was renewed then has a holder.
pub(crate) fn is_live(renewed: Timestamp, now: Timestamp) -> bool {
    now.duration_since(renewed) < LEASE_IS_OLD
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|one| one.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True")
        })
}

fn port_of(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(PORT_NAME));
    named.map_or(PORT, |port| port.container_port)
}
