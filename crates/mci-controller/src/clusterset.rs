//! Which ClusterSet this is.
//!
//! The lease and the labels of imports bear its name, so it is settled before anything else: the flag, else the label of
//! the ClusterProfiles' namespace, else home's ClusterProperty, else `default`. A question that gets no answer is asked
//! again: a name taken for want of an answer would make strangers of all imports. Members are asked at each connect, and
//! refused if they name another.

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

/// Where nobody says anything else.
pub(crate) const DEFAULT: &str = "default";
/// One question.
const TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The ClusterSet that a cluster says it belongs to; none where it does not say, or we may not read it.
/// # Errors
/// When there is no answer.
pub(crate) async fn stated(client: &Client) -> Result<Option<String>, kube::Error> {
    match property(client).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::debug!("may not read ClusterProperties");
            Ok(None)
        }
        stated => stated,
    }
}

/// As [`stated`], but a refusal is an error.
async fn property(client: &Client) -> Result<Option<String>, kube::Error> {
    for version in cluster_property::VERSIONS {
        let kind = GroupVersionKind::gvk("about.k8s.io", version, "ClusterProperty");
        let resource = ApiResource::from_gvk_with_plural(&kind, "clusterproperties");
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        match api.get(cluster_property::CLUSTERSET).await {
            Ok(object) => {
                let property: Option<ClusterProperty> = object.try_parse().ok();
                // what is cut is no label, and so names no ClusterSet
                let value =
                    property.map(|property| clipped(&property.spec.value, MAX_MESSAGE).to_owned());
                return Ok(value.filter(|value| !value.is_empty()));
            }
            // of a group that is not served, in plain text
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What home says, however long that takes.
/// # Errors
/// When what it says cannot name a ClusterSet.
pub(crate) async fn discover(home: &Home, profiles: Option<&str>) -> Result<String, ConfigError> {
    let mut failures = 0_u32;
    let found = loop {
        let error = match timeout(TIMEOUT, ask(&home.client, profiles)).await {
            Ok(Ok(found)) => break found,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        tracing::warn!(
            error,
            "cannot tell which ClusterSet this is: asking again; --clusterset would settle it"
        );
        failures = failures.saturating_add(1);
        let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
        sleep(wait).await;
    };
    let Some((said, by)) = found else {
        return Ok(DEFAULT.to_owned());
    };
    tracing::info!(clusterset = said, by, "ClusterSet");
    if is_label(&said) {
        Ok(said)
    } else {
        Err(ConfigError::new(
            format!("ClusterSet {said:?}, as named by the {by}"),
            "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
            "--clusterset prod",
        ))
    }
}

/// The name, and who says so.
async fn ask(
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
    let stated = match property(client).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::warn!(
                clusterset = DEFAULT,
                "may not read home's ClusterProperty: a grant made later may change the ClusterSet; grant get on \
                 clusterproperties of about.k8s.io, or set --clusterset"
            );
            None
        }
        stated => stated?,
    };
    Ok(stated.map(|name| (name, "ClusterProperty of home")))
}

#[cfg(test)]
mod tests;
