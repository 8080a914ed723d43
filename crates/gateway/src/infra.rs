//! What runs for each Gateway: a ServiceAccount, the Secret of its Envoys' certificate, their Deployment, disruption budget and
//! Service (pure), and the writer that applies them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Map, Value, json};

use crate::parameters::Parameters;
use crate::world::{Gateway, Key, Labels, fit, part_key};

pub(crate) mod bootstrap;
pub(crate) mod credentials;
mod difference;
pub(crate) mod problems;
mod unwanted;
pub(crate) mod writer;

pub(crate) use difference::is_applied;
pub(crate) use unwanted::unwanted;

/// Value of label `app.kubernetes.io/managed-by`.
pub(crate) const MANAGED_BY: &str = "isthmus-gateway";
/// Label with the Gateway's name, by Gateway API's convention.
const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
const CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Annotation with the name of the controller that made the object: no other one deletes it.
const CONTROLLER: &str = "isthmus.dev/gateway-controller";

/// The volume of what Envoys show and whom they trust.
const VOLUME: &str = "ads-credentials";

/// Where Envoys answer `/ready` and `/stats/prometheus`.
const READY_PORT: u16 = 19_001;

/// The kinds of objects that run a Gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    ServiceAccount,
    /// Written before the Deployment, whose pods wait for it.
    ClientSecret,
    Deployment,
    DisruptionBudget,
    Service,
}

/// What is to become of an object that runs a Gateway.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// It is to be as this says.
    Apply(Value),
    /// It is to be gone, if this Gateway still controls it.
    Delete(Owner),
}

/// The Gateway whose object is deleted, and who made the object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owner {
    pub(crate) gateway: Key,
    /// UID of the Gateway: one that was made anew has the same name.
    pub(crate) uid: String,
    /// Name of this controller.
    pub(crate) controller: String,
}

/// What all Gateways' Envoys have in common.
#[derive(Clone, Debug)]
pub(crate) struct InfraSettings {
    /// The name in `GatewayClass.spec.controllerName`.
    pub(crate) controller: String,
    /// Where Envoys find ADS.
    pub(crate) ads_hostname: String,
    pub(crate) ads_port: u16,
    /// Envoys and ADS use TLS, and each verifies the other.
    pub(crate) ads_tls: bool,
    pub(crate) envoy_image: String,
}

/// The objects to apply, by kind and key: none of a Gateway that is being deleted, whose objects the
/// garbage collector removes.
pub(crate) fn make_parts(
    gateway: &Gateway,
    parameters: &Parameters,
    binds: &BTreeMap<u16, u16>,
    settings: &InfraSettings,
) -> BTreeMap<(Part, Key), Value> {
    if gateway.deleting {
        return BTreeMap::new();
    }
    let key = part_key(gateway);
    let parts = [
        (Part::ServiceAccount, service_account()),
        (Part::ClientSecret, client_secret()),
        (Part::Deployment, deployment(gateway, parameters, settings)),
        (Part::DisruptionBudget, disruption_budget(gateway)),
        (Part::Service, service(gateway, parameters, binds)),
    ];
    let wanted = |part| match part {
        Part::DisruptionBudget => parameters.pod_disruption_budget,
        Part::ClientSecret => settings.ads_tls,
        Part::ServiceAccount | Part::Deployment | Part::Service => true,
    };
    let parts = parts.into_iter().filter(|(part, _)| wanted(*part));
    let parts = parts.map(|(part, body)| {
        let full = with_metadata(part, gateway, &key, &settings.controller, body);
        ((part, key.clone()), full)
    });
    parts.collect()
}

/// The Gateway that controls the object, by its owner reference.
pub(crate) fn controlling_gateway(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true)
            && owner.kind == "Gateway"
            && group == Some(crd::annotations::GATEWAY_GROUP)
    })
}

/// Whether the controller of this name made the object, as far as the object says.
fn is_made_by(meta: &ObjectMeta, controller: &str) -> bool {
    let annotations = meta.annotations.as_ref();
    let by = annotations.and_then(|annotations| annotations.get(CONTROLLER));
    by.is_some_and(|by| by == controller)
}

fn selector(gateway: &Gateway) -> Labels {
    [
        (GATEWAY_LABEL, fit(&gateway.key.name)),
        (CLASS_LABEL, fit(&gateway.class)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}

/// The user's labels, under ours.
fn labels(gateway: &Gateway) -> Labels {
    let mut labels = gateway.labels.clone();
    labels.extend(selector(gateway));
    let managed = crd::annotations::MANAGED_BY.to_owned();
    labels.insert(managed, MANAGED_BY.to_owned());
    labels
}

fn with_metadata(part: Part, gateway: &Gateway, key: &Key, controller: &str, body: Value) -> Value {
    let mut annotations = gateway.annotations.clone();
    annotations.insert(CONTROLLER.to_owned(), controller.to_owned());
    let (api_version, kind) = part.api();
    let mut object = Map::new();
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    let metadata = json!({
        "namespace": key.namespace,
        "name": key.name,
        "labels": labels(gateway),
        "annotations": annotations,
        "ownerReferences": [{
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "name": gateway.key.name,
            "uid": gateway.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    object.insert("metadata".into(), metadata);
    if let Value::Object(body) = body {
        object.extend(body);
    }
    let mut object = Value::Object(object);
    difference::mark(&mut object);
    object
}

/// Envoys call no API: they get no token.
fn service_account() -> Value {
    json!({ "automountServiceAccountToken": false })
}

/// The rest is secret: the writer adds it.
fn client_secret() -> Value {
    json!({ "type": "kubernetes.io/tls" })
}

fn deployment(gateway: &Gateway, parameters: &Parameters, settings: &InfraSettings) -> Value {
    let Parameters {
        image: _, // these are of the container
        image_pull_policy: _,
        concurrency: _,
        resources: _,
        image_pull_secrets,
        replicas,
        service_type: _,
        load_balancer_class: _, // both of the Service
        pod_disruption_budget: _,
        drain_seconds,
        node_selector,
        tolerations,
        pod_security_context,
    } = parameters;
    let envoy = container(gateway, parameters, settings);
    let (key, selector) = (part_key(gateway), selector(gateway));
    let mut deployment = json!({
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": selector },
            "template": {
                "metadata": { "labels": labels(gateway), "annotations": gateway.annotations },
                "spec": {
                    "serviceAccountName": key.name,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "securityContext": pod_security_context,
                    "nodeSelector": node_selector,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": { "matchLabels": selector },
                    }],
                    "terminationGracePeriodSeconds": drain_seconds + 10,
                    "containers": [envoy],
                },
            },
        },
    });
    // what nobody asks for is left to the cluster's own webhooks
    if let Some(pod) = deployment["spec"]["template"]["spec"].as_object_mut() {
        if !image_pull_secrets.is_empty() {
            pod.insert("imagePullSecrets".into(), json!(image_pull_secrets));
        }
        if !tolerations.is_empty() {
            pod.insert("tolerations".into(), json!(tolerations));
        }
        if settings.ads_tls {
            // by its name alone: a renewal restarts nothing
            let volume = json!({ "name": VOLUME, "secret": { "secretName": key.name } });
            pod.insert("volumes".into(), json!([volume]));
        }
    }
    deployment
}

fn container(gateway: &Gateway, parameters: &Parameters, settings: &InfraSettings) -> Value {
    let credentials = settings.ads_tls.then_some(bootstrap::CREDENTIALS);
    let config = bootstrap::make(&settings.ads_hostname, settings.ads_port, credentials);
    let mut args = vec![
        "--config-yaml".to_owned(),
        config.to_string(),
        "--service-node".to_owned(),
        "$(POD_NAME).$(POD_NAMESPACE)".to_owned(),
        "--service-cluster".to_owned(),
        gateway.key.to_string(),
        "--log-level".to_owned(),
        "warning".to_owned(),
    ];
    if let Some(concurrency) = parameters.concurrency {
        args.extend(["--concurrency".to_owned(), concurrency.to_string()]);
    }
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } });
    let mut envoy = json!({
        "name": "envoy",
        "image": parameters.image.as_ref().unwrap_or(&settings.envoy_image),
        "args": args,
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{ "name": "ready", "containerPort": READY_PORT, "protocol": "TCP" }],
        "readinessProbe": {
            "httpGet": { "path": "/ready", "port": READY_PORT, "scheme": "HTTP" },
            "periodSeconds": 1,
            "timeoutSeconds": 1,
            "failureThreshold": 3,
        },
        // SIGTERM ends Envoy at once: it serves on while Services forget it.
        "lifecycle": { "preStop": { "sleep": { "seconds": parameters.drain_seconds } } },
        "resources": parameters.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
    });
    if let Some(object) = envoy.as_object_mut() {
        if parameters.drain_seconds == 0 {
            object.remove("lifecycle"); // the API wants at least a second
        }
        if let Some(policy) = &parameters.image_pull_policy {
            object.insert("imagePullPolicy".into(), json!(policy));
        }
        if settings.ads_tls {
            let mount =
                json!({ "name": VOLUME, "mountPath": bootstrap::CREDENTIALS, "readOnly": true });
            object.insert("volumeMounts".into(), json!([mount]));
        }
    }
    envoy
}

/// Nodes are drained one Envoy at a time. It is there for any number of them: of one that is alone it forbids nothing, and so
/// none has to be deleted when `replicas` changes.
fn disruption_budget(gateway: &Gateway) -> Value {
    json!({
        "spec": {
            "maxUnavailable": 1,
            // an Envoy that is not ready may go, however many are not
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": { "matchLabels": selector(gateway) },
        },
    })
}

fn service(gateway: &Gateway, parameters: &Parameters, binds: &BTreeMap<u16, u16>) -> Value {
    let has_tls = |port: u16| {
        let mut here = gateway.listeners.iter().filter(|one| one.port == port);
        here.any(|one| one.protocol == "HTTPS")
    };
    let ports = binds.iter().map(|(port, bind)| {
        // others choose a protocol by it
        let protocol = if has_tls(*port) { "https" } else { "http" };
        json!({
            "name": format!("{protocol}-{port}"),
            "port": port,
            "targetPort": bind,
            "protocol": "TCP",
        })
    });
    let mut service = json!({
        "spec": {
            "type": parameters.service_type.as_str(),
            "selector": selector(gateway),
            "ports": ports.collect::<Vec<_>>(),
        },
    });
    // a webhook may set it, and the API server refuses to take it away
    if let Some(class) = &parameters.load_balancer_class {
        service["spec"]["loadBalancerClass"] = json!(class);
    }
    service
}

// === impl Part ===

impl Part {
    /// `apiVersion` and kind.
    pub(crate) fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("v1", "ServiceAccount"),
            Self::ClientSecret => ("v1", "Secret"),
            Self::Deployment => ("apps/v1", "Deployment"),
            Self::DisruptionBudget => ("policy/v1", "PodDisruptionBudget"),
            Self::Service => ("v1", "Service"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{mk_gateway, mk_https_listener, mk_listener, mk_world};
    use crate::parameters;

    fn mk_settings() -> InfraSettings {
        InfraSettings {
            controller: crate::fixture::CONTROLLER.into(),
            ads_hostname: "isthmus-gateway.isthmus-system.svc".into(),
            ads_port: 18_000,
            ads_tls: true,
            envoy_image: "envoyproxy/envoy:distroless-v1.40.0".into(),
        }
    }

    fn mk_parts(gateway: &Gateway) -> BTreeMap<(Part, Key), Value> {
        let parameters = parameters::of_gateway(&mk_world(), gateway).unwrap();
        make_parts(
            gateway,
            &parameters,
            &BTreeMap::from([(80, 10_080)]),
            &mk_settings(),
        )
    }

    #[test]
    fn each_gateway_gets_account_secret_deployment_budget_and_service() {
        let mut parts = mk_parts(&mk_gateway("gw", Vec::new()));
        // The bootstrap has a test of its own.
        let key = Key::new("ns", "gw-isthmus");
        let deployment = parts.get_mut(&(Part::Deployment, key)).unwrap();
        deployment["spec"]["template"]["spec"]["containers"][0]["args"][1] = "BOOTSTRAP".into();
        let named: BTreeMap<String, Value> = parts
            .into_iter()
            .map(|((part, key), mut value)| {
                value["metadata"]["annotations"][difference::HASH] = "HASH".into();
                (format!("{part:?} {key}"), value)
            })
            .collect();
        insta::assert_yaml_snapshot!(named);
    }

    #[test]
    fn budget_is_left_out_where_it_is_not_wanted() {
        let gateway = mk_gateway("gw", Vec::new());
        let mut parameters = parameters::of_gateway(&mk_world(), &gateway).unwrap();
        parameters.pod_disruption_budget = false;
        let parts = make_parts(&gateway, &parameters, &BTreeMap::new(), &mk_settings());
        let kinds: Vec<Part> = parts.into_keys().map(|(part, _)| part).collect();
        let all = [
            Part::ServiceAccount,
            Part::ClientSecret,
            Part::Deployment,
            Part::Service,
        ];
        assert_eq!(kinds, all);
    }

    /// Without TLS there is nothing to mount, and no Secret.
    #[test]
    fn envoys_without_tls_need_no_secret() {
        let gateway = mk_gateway("gw", Vec::new());
        let parameters = parameters::of_gateway(&mk_world(), &gateway).unwrap();
        let parts = |ads_tls| {
            let settings = InfraSettings {
                ads_tls,
                ..mk_settings()
            };
            let parts = make_parts(&gateway, &parameters, &BTreeMap::new(), &settings);
            let deployment = parts[&(Part::Deployment, part_key(&gateway))].to_string();
            let has_secret = parts.keys().any(|(part, _)| *part == Part::ClientSecret);
            (
                has_secret,
                deployment.contains("ads-credentials"),
                deployment.contains("/var/run/isthmus"),
            )
        };
        assert_eq!(parts(true), (true, true, true));
        assert_eq!(parts(false), (false, false, false));
    }

    #[test]
    fn port_of_the_service_is_named_after_its_protocol() {
        let https = mk_https_listener("https", 443, None, &[]);
        let gateway = mk_gateway("gw", vec![mk_listener("http", 80, None), https]);
        let parameters = parameters::of_gateway(&mk_world(), &gateway).unwrap();
        let binds = BTreeMap::from([(80, 10_080), (443, 10_443)]);
        let service = service(&gateway, &parameters, &binds);
        let ports = service["spec"]["ports"].as_array().unwrap().iter();
        let ports: Vec<_> = ports
            .map(|port| format!("{} {}", port["name"], port["targetPort"]))
            .collect();
        assert_eq!(ports, ["\"http-80\" 10080", "\"https-443\" 10443"]);
    }

    #[test]
    fn gateway_that_is_being_deleted_gets_nothing_back() {
        let mut gateway = mk_gateway("gw", Vec::new());
        gateway.deleting = true;
        assert_eq!(mk_parts(&gateway), BTreeMap::new());
    }
}
