//! `kubectl mci route`: an HTTPRoute to start from.

use std::io::Write;

use crd::{
    InferencePoolImport,
    annotations::{GATEWAY_CONTROLLER, IMPORT_GROUP, IMPORT_KIND, POOL_GROUP, POOL_KIND},
    gateway::Gateway,
    gateway_class::GatewayClass,
    inference_pool::InferencePool,
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{args::RouteArgs, cluster::Cluster, contexts::Contexts};

/// Name of a Gateway where there is none yet, as in the samples.
const GATEWAY: &str = "inference";
/// Name of our GatewayClass in config/gateway.yaml.
const CLASS: &str = "isthmus";

/// What there is in the cluster that the route is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    has_import: bool,
    /// A pool of the same name in the cluster itself.
    has_pool: bool,
    /// Namespace and name of a Gateway of ours.
    gateway: Option<(String, String)>,
    /// Our GatewayClass.
    class: Option<String>,
}

/// What was asked for.
struct Wanted<'a> {
    namespace: &'a str,
    name: &'a str,
    hostname: Option<&'a str>,
    /// By flag: as NAME or NAMESPACE/NAME.
    gateway: Option<(String, String)>,
}

pub(crate) async fn route(
    args: RouteArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let RouteArgs {
        pool,
        gateway,
        hostname,
    } = args;
    let context = contexts.choose(pool.context.as_deref(), "--context")?;
    let (namespace, name) = pool.name(contexts.namespace(&context));
    let cluster = Cluster::connect(contexts, &context, &context).await?;
    let found = look(&cluster, &namespace, &name).await?;
    let wanted = Wanted {
        namespace: &namespace,
        name: &name,
        hostname: hostname.as_deref(),
        gateway: gateway.map(|gateway| gateway.of(None, &namespace)),
    };
    if !found.has_import {
        eprintln!(
            "note: {context} has no InferencePoolImport {namespace}/{name} yet: kubectl mci status says why"
        );
    }
    let mut text = String::new();
    for document in documents(&wanted, &found) {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&serde_yaml::to_string(&document)?);
    }
    Ok(out.write_all(text.as_bytes())?)
}

async fn look(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Found> {
    let import = cluster.get::<InferencePoolImport>(namespace, name).await?;
    let pool = cluster.get::<InferencePool>(namespace, name).await?;
    let api: Api<GatewayClass> = Api::all(cluster.client());
    let params = ListParams::default();
    let classes = cluster
        .call("list gatewayclasses", api.list(&params))
        .await?;
    let class = classes
        .iter()
        .find(|class| class.spec.controller_name == GATEWAY_CONTROLLER);
    let class = class.map(ResourceExt::name_any);
    let gateways = cluster.list::<Gateway>(None, &params).await?;
    let ours = gateways
        .iter()
        .filter(|gateway| Some(&gateway.spec.gateway_class_name) == class.as_ref());
    let named = ours.map(|one| (one.namespace().unwrap_or_default(), one.name_any()));
    // one in the route's own namespace takes it in for sure
    let gateway = named.min_by_key(|(of, name)| (of != namespace, of.clone(), name.clone()));
    Ok(Found {
        has_import: import.is_some(),
        has_pool: pool.is_some(),
        gateway,
        class,
    })
}

/// A Gateway where there is none to attach to, and the route. Pure.
fn documents(wanted: &Wanted<'_>, found: &Found) -> Vec<Value> {
    let Wanted {
        namespace,
        name,
        hostname,
        gateway,
    } = wanted;
    let mut documents = Vec::new();
    let chosen = gateway.as_ref().or(found.gateway.as_ref());
    let (of, gateway) = chosen.cloned().unwrap_or_else(|| {
        documents.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": GATEWAY, "namespace": namespace},
            "spec": {
                "gatewayClassName": found.class.as_deref().unwrap_or(CLASS),
                "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}],
            },
        }));
        ((*namespace).to_owned(), GATEWAY.to_owned())
    });
    let mut parent = json!({"name": gateway});
    if of != *namespace {
        parent["namespace"] = of.into();
    }
    let mut backends =
        vec![json!({"group": IMPORT_GROUP, "kind": IMPORT_KIND, "name": name, "weight": 1})];
    if found.has_pool {
        let own = json!({"group": POOL_GROUP, "kind": POOL_KIND, "name": name, "weight": 1});
        backends.insert(0, own);
    }
    let mut spec = json!({
        "parentRefs": [parent],
        "rules": [{
            "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
            "backendRefs": backends,
        }],
    });
    if let Some(hostname) = hostname {
        spec["hostnames"] = json!([hostname]);
    }
    documents.push(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }));
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_wanted() -> Wanted<'static> {
        Wanted {
            namespace: "llm",
            name: "llama",
            hostname: None,
            gateway: None,
        }
    }

    fn kinds(backends: &Value) -> Vec<&str> {
        let backends = backends.as_array().expect("a list");
        backends
            .iter()
            .filter_map(|one| one["kind"].as_str())
            .collect()
    }

    #[test]
    fn without_a_gateway_one_is_made_of_our_class() {
        let found = Found {
            has_import: true,
            class: Some("inference-class".to_owned()),
            ..Found::default()
        };
        let documents = documents(&mk_wanted(), &found);
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0]["spec"]["gatewayClassName"], "inference-class");
        let spec = &documents[1]["spec"];
        assert_eq!(spec["parentRefs"], json!([{"name": GATEWAY}]));
        assert_eq!(kinds(&spec["rules"][0]["backendRefs"]), [IMPORT_KIND]);
    }

    #[test]
    fn a_gateway_that_is_there_is_used_and_a_pool_beside_the_import_gets_its_share() {
        let found = Found {
            has_import: true,
            has_pool: true,
            gateway: Some(("infra".to_owned(), "edge".to_owned())),
            class: None,
        };
        let wanted = Wanted {
            hostname: Some("llm.example.com"),
            ..mk_wanted()
        };
        let documents = documents(&wanted, &found);
        assert_eq!(documents.len(), 1);
        let spec = &documents[0]["spec"];
        assert_eq!(
            spec["parentRefs"],
            json!([{"name": "edge", "namespace": "infra"}])
        );
        assert_eq!(spec["hostnames"], json!(["llm.example.com"]));
        assert_eq!(
            kinds(&spec["rules"][0]["backendRefs"]),
            [POOL_KIND, IMPORT_KIND]
        );
    }
}
