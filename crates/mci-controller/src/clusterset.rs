//! The name of the ClusterSet.
//!
//! The lease and the labels of imports contain it, so it is determined first: the flag, else the label of the
//! ClusterProfiles' namespace, else the ClusterProperty of home, else `default`. A failed request is retried: with the
//! default name instead, all imports would count as foreign. The ClusterProperty of a member is read at each connect, and
//! a member of another ClusterSet is refused.

use std::time::Duration;

use crd::{
    cluster_profile::CLUSTERSET_LABELS,
    cluster_property::{self, ClusterProperty},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use process::ConfigError;
use tokio::time::{sleep, timeout};

use crate::{
    name::is_label,
    text::{MAX_MESSAGE, clipped},
};
use mci_inventory::Home;
use watch::backoff;

/// The name if nothing else sets one.
pub(crate) const DEFAULT: &str = "default";
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The ClusterSet in the ClusterProperty of a cluster; none if there is none, or we may not read it.
/// # Errors
/// When there is no answer.
pub(crate) async fn declared(client: &Client) -> Result<Option<String>, kube::Error> {
    match property(client).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::debug!("may not read ClusterProperties");
            Ok(None)
        }
        declared => declared,
    }
}

/// As [`declared`], but a refusal is an error.
async fn property(client: &Client) -> Result<Option<String>, kube::Error> {
    for version in cluster_property::VERSIONS {
        let kind = GroupVersionKind::gvk("about.k8s.io", version, "ClusterProperty");
        let resource = ApiResource::from_gvk_with_plural(&kind, "clusterproperties");
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        match api.get(cluster_property::CLUSTERSET).await {
            Ok(object) => {
                let property: Option<ClusterProperty> = object.try_parse().ok();
                // a value that is cut is no label, and so names no ClusterSet
                let value =
                    property.map(|property| clipped(&property.spec.value, MAX_MESSAGE).to_owned());
                return Ok(value.filter(|value| !value.is_empty()));
            }
            // also for a group that is not served
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads the name from the home cluster; retries without end.
/// # Errors
/// When it cannot name a ClusterSet.
pub(crate) async fn discover(home: &Home, profiles: Option<&str>) -> Result<String, ConfigError> {
    let mut failures = 0_u32;
    let found = loop {
        let error = match timeout(TIMEOUT, read_name(&home.client, profiles)).await {
            Ok(Ok(found)) => break found,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        tracing::warn!(
            error,
            "cannot read the name of the ClusterSet: retrying; --clusterset would set it"
        );
        failures = failures.saturating_add(1);
        let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
        sleep(wait).await;
    };
    let Some((name, by)) = found else {
        return Ok(DEFAULT.to_owned());
    };
    tracing::info!(clusterset = name, by, "ClusterSet");
    if is_label(&name) {
        Ok(name)
    } else {
        Err(ConfigError::new(
            format!("ClusterSet {name:?}, as named by the {by}"),
            "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
            "--clusterset prod",
        ))
    }
}

/// The name, and the object that contains it.
async fn read_name(
    client: &Client,
    profiles: Option<&str>,
) -> Result<Option<(String, &'static str)>, kube::Error> {
    if let Some(namespace) = profiles {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let labels = match namespaces.get_metadata(namespace).await {
            Ok(found) => found.metadata.labels,
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => return Err(error),
        };
        let named = labels.and_then(|labels| {
            let mut wanted = CLUSTERSET_LABELS.iter();
            wanted.find_map(|label| labels.get(*label).cloned())
        });
        if let Some(name) = named {
            return Ok(Some((name, "label of the ClusterProfiles' namespace")));
        }
    }
    let declared = match property(client).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::warn!(
                clusterset = DEFAULT,
                "may not read home's ClusterProperty: a grant made later may change the ClusterSet; grant get on \
                 clusterproperties of about.k8s.io, or set --clusterset"
            );
            None
        }
        declared => declared?,
    };
    Ok(declared.map(|name| (name, "ClusterProperty of home")))
}

#[cfg(test)]
mod tests;
