//! Reads what clusters have.

use std::collections::BTreeSet;

use crd::{InferencePoolImport, inference_pool::InferencePool};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Resource, ResourceExt, api::ListParams};

use super::{Facts, Seen, Unlisted};
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
    let params = ListParams::default();
    let (namespaces, pools, imports) = futures::join!(
        namespaces(cluster, namespace),
        cluster.list(namespace, &params),
        cluster.list(namespace, &params),
    );
    match (pools, imports) {
        // the cluster does not answer, or its user may read nothing
        (Err(error), Err(other)) if !error.is_not_found() && !other.is_not_found() => Err(error),
        (pools, imports) => Ok(Facts {
            namespaces,
            pools: pools.map_err(|error| unlisted::<InferencePool>(cluster, error)),
            imports: imports.map_err(|error| unlisted::<InferencePoolImport>(cluster, error)),
        }),
    }
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
