//! Reads what clusters have.

use std::collections::BTreeSet;

use crd::{
    InferencePoolImport,
    annotations::{IMPORT_GROUP, POOL_KIND},
    inference_pool::InferencePool,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};

use super::{Facts, Seen, Unlisted};
use crate::{
    cluster::{CallError, Cluster},
    fleet::Look,
    ignored::{self, Ignored, Kind},
};

/// Clusters looked at side by side: each is four lists.
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
    let params = ListParams::default();
    let (namespaces, pools, imports, mut ignored) = futures::join!(
        namespaces(cluster, namespace),
        cluster.list(namespace, &params),
        cluster.list(namespace, &params),
        old_pools(cluster, namespace),
    );
    let (namespaces, others) = namespaces.unzip();
    ignored.extend(others.into_iter().flatten());
    match (pools, imports) {
        // the cluster does not answer, or its user may read nothing
        (Err(error), Err(other)) if !error.is_not_found() && !other.is_not_found() => Err(error),
        (pools, imports) => Ok(Facts {
            namespaces,
            pools: pools.map_err(|error| unlisted::<InferencePool>(cluster, error)),
            imports: imports.map_err(|error| unlisted::<InferencePoolImport>(cluster, error)),
            ignored,
        }),
    }
}

/// Their names, and annotations of theirs without effect. None where the user may not see them: not everybody who looks
/// at pools may.
async fn namespaces(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> Option<(BTreeSet<String>, Vec<Ignored>)> {
    let found: Vec<Namespace> = if let Some(name) = namespace {
        let found = cluster.get_global(name).await.ok()?;
        found.into_iter().collect()
    } else {
        let api: Api<Namespace> = Api::all(cluster.client());
        let params = ListParams::default();
        let listed = cluster.call("list namespaces", api.list(&params)).await;
        listed.ok()?.items
    };
    let names = found.iter().map(ResourceExt::name_any).collect();
    let ignored = found
        .iter()
        .flat_map(|one| ignored::of_other(Kind::Namespace, &cluster.name, &one.metadata));
    Some((names, ignored.collect()))
}

/// Annotations of pools of the old API group, which are not exported: `kubectl annotate inferencepool` may mean either.
/// None where these cannot be listed: most clusters do not serve them.
async fn old_pools(cluster: &Cluster, namespace: Option<&str>) -> Vec<Ignored> {
    let resource = ApiResource {
        group: IMPORT_GROUP.to_owned(),
        version: "v1alpha2".to_owned(),
        api_version: format!("{IMPORT_GROUP}/v1alpha2"),
        kind: POOL_KIND.to_owned(),
        plural: "inferencepools".to_owned(),
    };
    let api: Api<DynamicObject> = match namespace {
        Some(name) => Api::namespaced_with(cluster.client(), name, &resource),
        None => Api::all_with(cluster.client(), &resource),
    };
    let params = ListParams::default();
    let listed = cluster.call("list old pools", api.list_metadata(&params));
    let found = listed.await.map(|listed| listed.items).unwrap_or_default();
    let found = found
        .iter()
        .flat_map(|one| ignored::of_other(Kind::OldPool, &cluster.name, &one.metadata));
    found.collect()
}

/// A kind that is not served in the version that is read may still have objects.
fn unlisted<K>(cluster: &Cluster, error: CallError) -> Unlisted
where
    K: Resource<DynamicType = ()>,
{
    let is_served = !error.is_not_found();
    let problem = if is_served {
        error.to_string()
    } else {
        format!(
            "{}: its {} could not be listed: it does not serve {}: see kubectl --context {} get crds",
            cluster.name,
            K::plural(&()),
            K::api_version(&()),
            cluster.context
        )
    };
    Unlisted { is_served, problem }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock;

    use super::*;

    /// Reads a cluster whose API server answers a list of pools and one of imports with these codes.
    async fn read_answered(pools: u16, imports: u16) -> Result<Facts, CallError> {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let server = async move {
            while let Some((request, send)) = handle.next_request().await {
                let path = request.uri().path();
                let code = match path {
                    _ if path.ends_with("/inferencepools") => pools,
                    _ if path.ends_with("/inferencepoolimports") => imports,
                    _ => 200,
                };
                let answer = if code == 200 {
                    json!({"metadata": {}, "items": []})
                } else {
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "no", "reason": "", "code": code})
                };
                let response = Response::builder().status(code);
                let response = response.body(Body::from(answer.to_string().into_bytes()));
                send.send_response(response.expect("an answer"));
            }
        };
        let client = kube::Client::new(service, "default");
        let cluster = Cluster::behind(client, "east", "east");
        tokio::select! {
            facts = read(&cluster, None) => facts,
            () = server => panic!("the client is gone"),
        }
    }

    #[tokio::test]
    async fn a_kind_that_is_not_served_or_may_not_be_listed_hides_no_other() {
        for (code, is_served) in [(404, false), (403, true)] {
            let facts = read_answered(code, 200).await.expect("imports were listed");
            assert!(facts.imports.is_ok());
            let unlisted = facts.pools.expect_err("pools were not listed");
            assert_eq!(unlisted.is_served, is_served);
            assert!(unlisted.problem.starts_with("east: "), "{unlisted:?}");
        }
        read_answered(403, 403).await.expect_err("nothing was seen");
    }
}
