//! Reads what clusters have.

use std::{collections::BTreeSet, fmt::Debug};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Resource, ResourceExt, api::ListParams, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;

use super::{Facts, Seen};
use crate::{
    cluster::{CallError, Cluster},
    fleet::Look,
};

/// Clusters looked at side by side: each is three lists.
const AT_ONCE: usize = 16;

/// What each cluster has, in a namespace or, with none, in all; in the order of `looks`.
pub(crate) async fn gather(looks: &[Look], namespace: Option<&str>) -> Vec<Seen> {
    let seen = looks.iter().map(async |look| {
        let facts = match &look.cluster {
            Ok(cluster) => cluster.in_time(Box::pin(read(cluster, namespace))).await,
            Err(problem) => Err(problem.clone()),
        };
        Seen {
            cluster: look.target.name.clone(),
            context: look.target.context.clone(),
            facts,
        }
    });
    stream::iter(seen).buffered(AT_ONCE).collect().await
}

async fn read(cluster: &Cluster, namespace: Option<&str>) -> Result<Facts, CallError> {
    let (namespaces, pools, imports) = futures::join!(
        namespaces(cluster, namespace),
        all_if_served(cluster, namespace),
        all_if_served(cluster, namespace),
    );
    Ok(Facts {
        namespaces,
        pools: pools?,
        imports: imports?,
    })
}

/// None where the user may not see them: not everybody who looks at pools may.
async fn namespaces(cluster: &Cluster, namespace: Option<&str>) -> Option<BTreeSet<String>> {
    if let Some(name) = namespace {
        let found = cluster.get_global::<Namespace>(name).await.ok()?;
        return Some(found.iter().map(ResourceExt::name_any).collect());
    }
    let api: Api<Namespace> = Api::all(cluster.client());
    let params = ListParams::default();
    let listed = cluster.call("list namespaces", api.list(&params)).await;
    Some(listed.ok()?.iter().map(ResourceExt::name_any).collect())
}

/// None where the kind is not served.
async fn all_if_served<K>(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> Result<Option<Vec<K>>, CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    match cluster.list(namespace, &ListParams::default()).await {
        Ok(items) => Ok(Some(items)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
