//! What one cluster has.

use std::{collections::BTreeMap, net::IpAddr};

use crd::{
    annotations::{BUNDLE_VERSION, GATEWAY_CONTROLLER},
    conditions,
    gateway_class::GatewayClass,
    inference_pool::InferencePool,
};
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        core::v1::{Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
    },
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};

use super::{Pickers, workload};
use crate::{
    check::facts::{ClassFacts, Definition, Denied, Inside, Picker, Read, ServiceKind, Version},
    check::judge::definition_names,
    cluster::{CallError, Cluster},
    ignored,
    member::{MemberRights, Right, Subject},
};

/// Reviews side by side: some forty of them.
const REVIEWS_AT_ONCE: usize = 8;
/// Largest number of pods of a pool that are read.
const PODS: u32 = 200;
/// Where the gateway runs, and its Deployment.
const GATEWAY: (&str, &str) = ("isthmus-system", "isthmus-gateway");

/// `rights` are those that `subject` should have, and `pools` those that other clusters ask the endpoint picker of.
pub(super) async fn read(
    cluster: &Cluster,
    rights: &MemberRights,
    subject: Option<Subject>,
    pools: &[&InferencePool],
) -> Inside {
    let text = |error: CallError| error.to_string();
    let (uid, version, definitions, denied, gateway_class, gateway, pickers, pods) = futures::join!(
        cluster.uid(),
        version(cluster),
        definitions(cluster),
        denied(cluster, rights, subject),
        gateway_class(cluster),
        workload(cluster, GATEWAY.0, GATEWAY.1),
        pickers(cluster, pools),
        pods(cluster, pools),
    );
    Inside {
        uid: uid.ok().flatten(),
        version: version.map_err(text),
        definitions: definitions.map_err(text),
        denied: denied.map(|denied| denied.map_err(text)),
        gateway_class: gateway_class.map_err(text),
        gateway,
        pickers,
        pods,
    }
}

async fn version(cluster: &Cluster) -> Result<Version, CallError> {
    let client = cluster.client();
    let info = cluster.call("ask for its version", client.apiserver_version());
    let info = info.await?;
    // some add a plus to the minor version
    let number = |text: &str| {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        digits.parse().unwrap_or(0)
    };
    Ok(Version {
        major: number(&info.major),
        minor: number(&info.minor),
        text: info.git_version,
    })
}

async fn definitions(cluster: &Cluster) -> Result<BTreeMap<String, Definition>, CallError> {
    let asked = definition_names().map(async |name| {
        let found = cluster.get_global::<CustomResourceDefinition>(name).await?;
        Ok((name, found))
    });
    let found = join_all(asked).await;
    let found: Vec<_> = found.into_iter().collect::<Result<_, CallError>>()?;
    let there = found
        .into_iter()
        .filter_map(|(name, found)| Some((name.to_owned(), definition(&found?))));
    Ok(there.collect())
}

fn definition(crd: &CustomResourceDefinition) -> Definition {
    let status = crd.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let versions = crd.spec.versions.iter().filter(|version| version.served);
    let clusters = versions.clone().filter_map(|version| {
        let root = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        let status = root.properties.as_ref()?.get("status")?;
        status.properties.as_ref()?.get("clusters")
    });
    Definition {
        established: crd.metadata.deletion_timestamp.is_none()
            && conditions.any(|one| one.type_ == "Established" && one.status == "True"),
        served: versions.map(|version| version.name.clone()).collect(),
        bundle: crd.annotations().get(BUNDLE_VERSION).cloned(),
        has_clusters: clusters.clone().next().is_some(),
        has_networks: clusters.clone().any(has_networks),
    }
}

/// Whether the entries of a status have the networks of their pods.
fn has_networks(clusters: &JSONSchemaProps) -> bool {
    let Some(JSONSchemaPropsOrArray::Schema(entry)) = &clusters.items else {
        return false;
    };
    let fields = entry.properties.as_ref();
    fields.is_some_and(|fields| fields.contains_key("podCIDRs"))
}

/// What the controller may not do there, one by one; none where it is not known who it is.
async fn denied(
    cluster: &Cluster,
    rights: &MemberRights,
    subject: Option<Subject>,
) -> Option<Result<Denied, CallError>> {
    let subject = subject?;
    let reviews = rights.rights.iter().map(async |right| {
        let allowed = may(cluster, &subject, right).await?;
        Ok((!allowed).then(|| right.clone()))
    });
    let reviews = stream::iter(reviews).buffered(REVIEWS_AT_ONCE);
    let denied: Result<Vec<Option<Right>>, CallError> = reviews.try_collect().await;
    Some(denied.map(|denied| Denied {
        rights: denied.into_iter().flatten().collect(),
        subject,
    }))
}

async fn may(cluster: &Cluster, subject: &Subject, right: &Right) -> Result<bool, CallError> {
    let Right {
        group,
        resource,
        subresource,
        name,
        verb,
    } = right;
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(subject.user.clone()),
            groups: Some(subject.groups.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: some(group),
                resource: Some(resource.clone()),
                subresource: some(subresource),
                name: some(name),
                verb: Some(verb.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(cluster.client());
    let params = PostParams::default();
    let call = api.create(&params, &review);
    let answer = cluster.call("review the controller's rights", call).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn gateway_class(cluster: &Cluster) -> Result<Option<ClassFacts>, CallError> {
    let api: Api<GatewayClass> = Api::all(cluster.client());
    let params = ListParams::default();
    let listed = cluster.call("list gatewayclasses", api.list(&params)).await;
    let classes = match listed {
        Ok(classes) => classes,
        // without its CRD there is none
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let ours = classes
        .iter()
        .find(|class| class.spec.controller_name == GATEWAY_CONTROLLER);
    Ok(ours.map(|class| {
        let status = class.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref());
        let accepted = conditions.and_then(|all| conditions::find(all, conditions::ACCEPTED));
        // Gateway API sets Unknown until somebody has looked
        let decided = accepted.filter(|one| one.status != "Unknown");
        ClassFacts {
            name: class.name_any(),
            accepted: decided.map(|one| one.status == "True"),
            message: decided.map_or_else(String::new, |one| one.message.clone()),
        }
    }))
}

/// Their Services.
async fn pickers(cluster: &Cluster, pools: &[&InferencePool]) -> Pickers<Read<Picker>> {
    let found = pools.iter().map(async |pool| {
        let key = (pool.namespace().unwrap_or_default(), pool.name_any());
        let picker = picker(cluster, pool).await;
        (key, picker.map_err(|error| error.to_string()))
    });
    let found = stream::iter(found).buffered(REVIEWS_AT_ONCE);
    found.collect().await
}

async fn picker(cluster: &Cluster, pool: &InferencePool) -> Result<Picker, CallError> {
    let namespace = pool.namespace().unwrap_or_default();
    let Some(reference) = &pool.spec.endpoint_picker_ref else {
        return Ok(Picker::NotNamed);
    };
    let is_core = reference.group.as_deref().unwrap_or_default().is_empty();
    if !is_core || reference.kind.as_deref().unwrap_or("Service") != "Service" {
        return Ok(Picker::NotNamed);
    }
    let name = &reference.name;
    let Some(service) = cluster.get::<Service>(&namespace, name).await? else {
        return Ok(Picker::NoService(name.clone()));
    };
    let params = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    let slices: Vec<EndpointSlice> = cluster.list(Some(&namespace), &params).await?;
    let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints);
    // absent means ready
    let ready = endpoints.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|one| one.ready).unwrap_or(true)
    });
    let ready: Vec<String> = ready.flat_map(|endpoint| endpoint.addresses).collect();
    let (kind, addresses) = kind_of(&service);
    Ok(Picker::Service {
        name: name.clone(),
        kind,
        addresses,
        ready: ready.len(),
        ignored: ignored::of_picker(pool, &service),
    })
}

/// The addresses of the pools' ready pods.
async fn pods(cluster: &Cluster, pools: &[&InferencePool]) -> Pickers<Read<Vec<IpAddr>>> {
    let found = pools.iter().map(async |pool| {
        let key = (pool.namespace().unwrap_or_default(), pool.name_any());
        let labels = pool.spec.selector.match_labels.iter();
        let selector: Vec<String> = labels
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        // a pool that selects nothing has no pod
        if selector.is_empty() {
            return (key, Ok(Vec::new()));
        }
        let params = ListParams::default()
            .labels(&selector.join(","))
            .limit(PODS);
        let listed = cluster.list::<Pod>(Some(&key.0), &params).await;
        let addresses = listed.map(|pods| pods.iter().flat_map(ready_addresses).collect());
        (key, addresses.map_err(|error| error.to_string()))
    });
    let found = stream::iter(found).buffered(REVIEWS_AT_ONCE);
    found.collect().await
}

fn ready_addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let mut conditions = status.conditions.iter().flatten();
    if !conditions.any(|one| one.type_ == "Ready" && one.status == "True") {
        return Vec::new();
    }
    // endpoint pickers use the first one
    let address = status.pod_ip.as_ref().and_then(|ip| ip.parse().ok());
    address.into_iter().collect()
}

/// How others reach a Service, and where.
fn kind_of(service: &Service) -> (ServiceKind, Vec<String>) {
    let spec = service.spec.clone().unwrap_or_default();
    let cluster_ips = spec.cluster_ips.or(spec.cluster_ip.map(|ip| vec![ip]));
    let cluster_ips = cluster_ips.unwrap_or_default();
    if cluster_ips.iter().any(|ip| ip == "None") {
        return (ServiceKind::Headless, Vec::new());
    }
    match spec.type_.as_deref() {
        Some("ExternalName") => (ServiceKind::ExternalName, Vec::new()),
        Some("LoadBalancer") => {
            let status = service.status.as_ref();
            let balancer = status.and_then(|status| status.load_balancer.as_ref());
            let ingress = balancer.and_then(|balancer| balancer.ingress.clone());
            let addresses = ingress.into_iter().flatten();
            let addresses = addresses.filter_map(|one| one.ip.or(one.hostname));
            (ServiceKind::LoadBalancer, addresses.collect())
        }
        _ => (ServiceKind::Virtual, cluster_ips),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_crd_of_upstream_or_of_an_earlier_release_is_told_from_ours() {
        for (status, expected) in [
            (json!({"controllers": {"type": "array"}}), (false, false)),
            (
                json!({"clusters": {"type": "array", "items": {"type": "object", "properties": {"name": {}}}}}),
                (true, false),
            ),
            (
                json!({"clusters": {"type": "array", "items": {"type": "object", "properties": {"podCIDRs": {}}}}}),
                (true, true),
            ),
        ] {
            let crd = json!({"metadata": {"name": "x"}, "spec": {
                "group": "x", "scope": "Namespaced", "names": {"kind": "X", "plural": "xs"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "properties": {"status": {"type": "object", "properties": status}}}}}]}});
            let found = definition(&serde_json::from_value(crd).expect("a CRD"));
            assert_eq!((found.has_clusters, found.has_networks), expected);
        }
    }
}
