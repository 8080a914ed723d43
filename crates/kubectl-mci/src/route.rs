//! `kubectl mci route`: an HTTPRoute to start from.

use std::io::Write;

use crd::{
    InferencePoolImport,
    annotations::{GATEWAY_CONTROLLER, IMPORT_GROUP, IMPORT_KIND, POOL_GROUP, POOL_KIND},
    gateway::{Gateway, GatewayListenersAllowedRoutesNamespacesFrom as Namespaces},
    gateway_class::GatewayClass,
    http_route::HttpRoute,
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
    /// A route of the name that the printed one has.
    has_route: bool,
    /// Namespace and name of a Gateway of ours that takes the route in.
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
    if found.has_route {
        eprintln!(
            "note: {context} has an HTTPRoute {namespace}/{name} already, and applying this one changes it"
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
    let route = cluster.get::<HttpRoute>(namespace, name).await?;
    let api: Api<GatewayClass> = Api::all(cluster.client());
    let params = ListParams::default();
    let classes = cluster
        .call("list gatewayclasses", api.list(&params))
        .await?;
    let ours = classes.iter();
    let ours = ours.filter(|class| class.spec.controller_name == GATEWAY_CONTROLLER);
    let ours: Vec<String> = ours.map(ResourceExt::name_any).collect();
    let gateways = cluster.list::<Gateway>(None, &params).await?;
    Ok(Found {
        has_import: import.is_some(),
        has_pool: pool.is_some(),
        has_route: route.is_some(),
        gateway: choose_gateway(&gateways, &ours, namespace),
        class: ours.into_iter().next(),
    })
}

/// A Gateway of these classes that takes routes of the namespace in; one in the namespace itself before others. Pure.
fn choose_gateway(
    gateways: &[Gateway],
    classes: &[String],
    namespace: &str,
) -> Option<(String, String)> {
    let ours = gateways
        .iter()
        .filter(|gateway| classes.contains(&gateway.spec.gateway_class_name))
        .filter(|gateway| admits(gateway, namespace));
    let named = ours.map(|one| (one.namespace().unwrap_or_default(), one.name_any()));
    named.min_by_key(|(of, name)| (of != namespace, of.clone(), name.clone()))
}

/// Whether a listener takes routes of the namespace in for sure: labels, which a selector may ask for, are not looked at.
fn admits(gateway: &Gateway, namespace: &str) -> bool {
    let is_own = gateway.namespace().is_some_and(|own| own == namespace);
    gateway.spec.listeners.iter().any(|listener| {
        let allowed = listener.allowed_routes.as_ref();
        let allowed = allowed.and_then(|routes| routes.namespaces.as_ref()?.from.as_ref());
        match allowed.unwrap_or(&Namespaces::Same) {
            Namespaces::All => true,
            Namespaces::Same => is_own,
            Namespaces::Selector => false,
        }
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
    // without a pool there is nothing else to lead to, and the import may still come
    let kinds = [
        (found.has_pool, POOL_GROUP, POOL_KIND),
        (
            found.has_import || !found.has_pool,
            IMPORT_GROUP,
            IMPORT_KIND,
        ),
    ];
    let kinds = kinds.into_iter().filter(|(is_there, ..)| *is_there);
    let backends: Vec<Value> = kinds
        .map(|(_, group, kind)| json!({"group": group, "kind": kind, "name": name, "weight": 1}))
        .collect();
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
    use rstest::rstest;

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

    #[rstest]
    #[case::same_is_the_default(&[("infra", "edge", "isthmus", None)], None)]
    #[case::all(&[("infra", "edge", "isthmus", Some("All"))], Some(("infra", "edge")))]
    #[case::by_labels(&[("infra", "edge", "isthmus", Some("Selector"))], None)]
    #[case::own_first(&[("infra", "edge", "isthmus", Some("All")), ("llm", "own", "isthmus", None)], Some(("llm", "own")))]
    #[case::second_class(&[("llm", "own", "isthmus-internal", None)], Some(("llm", "own")))]
    #[case::foreign_class(&[("llm", "own", "nginx", None)], None)]
    fn a_gateway_is_chosen_that_takes_the_route_in(
        #[case] gateways: &[(&str, &str, &str, Option<&str>)],
        #[case] expected: Option<(&str, &str)>,
    ) {
        let gateways = gateways.iter().map(|(namespace, name, class, from)| {
            let gateway = json!({
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"gatewayClassName": class, "listeners": [{
                    "name": "http", "protocol": "HTTP", "port": 80,
                    "allowedRoutes": {"namespaces": {"from": from}},
                }]},
            });
            serde_json::from_value(gateway).expect("a Gateway")
        });
        let gateways: Vec<Gateway> = gateways.collect();
        let classes = ["isthmus".to_owned(), "isthmus-internal".to_owned()];
        let chosen = choose_gateway(&gateways, &classes, "llm");
        let chosen = chosen.as_ref().map(|(of, name)| (&**of, &**name));
        assert_eq!(chosen, expected);
    }

    #[test]
    fn an_import_that_is_not_there_gets_no_share_of_a_pool_s_requests() {
        let found = Found {
            has_pool: true,
            ..Found::default()
        };
        let documents = documents(&mk_wanted(), &found);
        let backends = &documents[1]["spec"]["rules"][0]["backendRefs"];
        assert_eq!(kinds(backends), [POOL_KIND]);
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
            ..Found::default()
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
