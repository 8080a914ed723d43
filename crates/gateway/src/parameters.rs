//! `parameters.yaml` of the ConfigMap that a Gateway or its class names; `docs/gateway-parameters.md` describes it.

use foreign_text::Limits;
use k8s_openapi::api::core::v1::{
    LocalObjectReference, PodSecurityContext, SeccompProfile, Toleration,
};
use serde::{Deserialize, Serialize};

use crate::world::{Gateway, GatewayClass, Key, Labels, ParametersRef, World};

pub(crate) mod resources;

use resources::Resources;

/// The key of the ConfigMap.
pub(crate) const FILE: &str = "parameters.yaml";
/// The limits of the text. What the page describes has some fifty values and needs no alias.
const LIMITS: Limits = Limits {
    text: 64 << 10,
    expanded: 64 << 10,
    values: 1 << 11,
};
/// Entries of a list or map: more than any pod has use for, few enough for a Deployment.
const MAX_ENTRIES: usize = 64;
/// Largest `concurrency`: each of Envoy's worker threads has its own connections to each endpoint.
const MAX_CONCURRENCY: u32 = 1024;
/// An answer of the pool chart's route takes 300 s at most, connections are renewed within 15 s, and load balancers have
/// 15 s to learn that a pod ends.
pub(crate) const DRAIN_SECONDS: u32 = 300 + 15 + 15;
/// The usual number of a user without rights, as in distroless images.
const USER: i64 = 65_532;

/// As written; what is absent comes from the class, then from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct RawParameters {
    image: Option<String>,
    image_pull_policy: Option<PullPolicy>,
    image_pull_secrets: Option<Vec<LocalObjectReference>>,
    replicas: Option<i32>,
    concurrency: Option<u32>,
    service_type: Option<ServiceType>,
    load_balancer_class: Option<String>,
    drain_seconds: Option<u32>,
    pod_disruption_budget: Option<bool>,
    resources: Option<Resources>,
    node_selector: Option<Labels>,
    tolerations: Option<Vec<Toleration>>,
    pod_security_context: Option<PodSecurityContext>,
}

/// The parameters in a ConfigMap's text, or what is wrong with it.
pub(crate) type Parsed = Result<RawParameters, String>;

/// How the Service of a Gateway is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum ServiceType {
    LoadBalancer,
    NodePort,
    ClusterIP,
}

/// When nodes pull an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// How a Gateway's Envoys run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    /// `None`: `--envoy-image`.
    pub(crate) image: Option<String>,
    /// `None`: as Kubernetes does with this image's tag.
    pub(crate) image_pull_policy: Option<PullPolicy>,
    /// In the Gateway's namespace.
    pub(crate) image_pull_secrets: Vec<LocalObjectReference>,
    pub(crate) replicas: i32,
    /// Worker threads; `None`: one per CPU.
    pub(crate) concurrency: Option<u32>,
    pub(crate) service_type: ServiceType,
    pub(crate) load_balancer_class: Option<String>,
    /// How long a stopped Envoy serves on, while Services forget it.
    pub(crate) drain_seconds: u32,
    /// Whether the gateway makes one. Kubernetes evicts no pod that has two.
    pub(crate) pod_disruption_budget: bool,
    pub(crate) resources: Resources,
    pub(crate) node_selector: Labels,
    pub(crate) tolerations: Vec<Toleration>,
    /// Who the Envoys run as.
    pub(crate) pod_security_context: PodSecurityContext,
}

/// Reads the text of a ConfigMap, once for each change of it.
pub(crate) fn parse(text: &str) -> Parsed {
    foreign_text::read(text, LIMITS).map_err(|error| error.to_string())
}

/// The Gateway's own parameters over its class's, over the defaults.
pub(crate) fn of_gateway(world: &World, gateway: &Gateway) -> Result<Parameters, String> {
    let class = world.classes.get(&gateway.class);
    let of_class = class.map(|class| read_class(world, class)).transpose()?;
    let own = match &gateway.parameters {
        Some(reference) => read(world, reference, Some(&gateway.key.namespace))?,
        None => RawParameters::default(),
    };
    check(own.over(of_class.unwrap_or_default()))
}

pub(crate) fn of_class(world: &World, class: &GatewayClass) -> Result<Parameters, String> {
    check(read_class(world, class)?)
}

/// Whether a ConfigMap that the Gateway or its class names is not listed yet, so that nothing can be
/// said of its parameters.
pub(crate) fn is_unknown(world: &World, gateway: &Gateway) -> bool {
    let own = gateway.parameters.as_ref();
    let own = own.is_some_and(|one| is_unlisted(world, one, Some(&gateway.key.namespace)));
    let class = world.classes.get(&gateway.class);
    own || class.is_some_and(|class| is_unknown_of_class(world, class))
}

pub(crate) fn is_unknown_of_class(world: &World, class: &GatewayClass) -> bool {
    let reference = class.parameters.as_ref();
    reference.is_some_and(|reference| is_unlisted(world, reference, None))
}

fn is_unlisted(world: &World, reference: &ParametersRef, namespace: Option<&str>) -> bool {
    let namespace = namespace.or(reference.namespace.as_deref());
    let is_map = reference.group.is_empty() && reference.kind == "ConfigMap";
    is_map
        && namespace.is_some_and(|namespace| {
            let key = Key::new(namespace, &reference.name);
            !world.parameters.contains_key(&key)
        })
}

/// The `ConfigMap`s that the world's classes and Gateways name.
pub(crate) fn wanted_maps(world: &World, controller: &str) -> Vec<Key> {
    let ours = |class: &GatewayClass| class.controller == controller;
    let of_classes = world
        .classes
        .values()
        .filter(|class| ours(class))
        .filter_map(|class| {
            let reference = class.parameters.as_ref()?;
            Some(Key::new(reference.namespace.as_ref()?, &reference.name))
        });
    let of_gateways = world
        .gateways
        .values()
        .filter(|gateway| world.classes.get(&gateway.class).is_some_and(ours))
        .filter_map(|gateway| {
            let reference = gateway.parameters.as_ref()?;
            Some(Key::new(&gateway.key.namespace, &reference.name))
        });
    of_classes.chain(of_gateways).collect()
}

fn read_class(world: &World, class: &GatewayClass) -> Result<RawParameters, String> {
    match &class.parameters {
        Some(reference) => read(world, reference, None),
        None => Ok(RawParameters::default()),
    }
}

fn read(
    world: &World,
    reference: &ParametersRef,
    namespace: Option<&str>,
) -> Result<RawParameters, String> {
    if !reference.group.is_empty() || reference.kind != "ConfigMap" {
        return Err(format!(
            "parametersRef is {}/{}: only a core ConfigMap is supported",
            reference.group, reference.kind
        ));
    }
    let Some(namespace) = namespace.or(reference.namespace.as_deref()) else {
        return Err("parametersRef names no namespace".to_owned());
    };
    let key = Key::new(namespace, &reference.name);
    let Some(parsed) = world.parameters.get(&key).and_then(Option::as_ref) else {
        return Err(format!("ConfigMap {key} with key {FILE} does not exist"));
    };
    let parsed = parsed.clone();
    parsed.map_err(|error| format!("ConfigMap {key}, {FILE}: {error}"))
}

fn check(raw: RawParameters) -> Result<Parameters, String> {
    let RawParameters {
        image,
        image_pull_policy,
        image_pull_secrets,
        replicas,
        concurrency,
        service_type,
        load_balancer_class,
        drain_seconds,
        pod_disruption_budget,
        resources,
        node_selector,
        tolerations,
        pod_security_context,
    } = raw;
    let replicas = replicas.unwrap_or(2);
    if !(0..=1000).contains(&replicas) {
        return Err(format!("replicas is {replicas}: expected 0 to 1000"));
    }
    if let Some(threads) = concurrency.filter(|one| !(1..=MAX_CONCURRENCY).contains(one)) {
        return Err(format!(
            "concurrency is {threads}: expected 1 to {MAX_CONCURRENCY}, or leave it out"
        ));
    }
    let lengths = [
        (
            "imagePullSecrets",
            image_pull_secrets.as_ref().map(Vec::len),
        ),
        ("nodeSelector", node_selector.as_ref().map(Labels::len)),
        ("tolerations", tolerations.as_ref().map(Vec::len)),
    ];
    for (name, length) in lengths {
        if let Some(length) = length.filter(|length| *length > MAX_ENTRIES) {
            return Err(format!(
                "{name} has {length} entries: expected at most {MAX_ENTRIES}"
            ));
        }
    }
    let drain_seconds = drain_seconds.unwrap_or(DRAIN_SECONDS);
    if drain_seconds > 3600 {
        return Err(format!(
            "drainSeconds is {drain_seconds}: expected 0 to 3600"
        ));
    }
    let service_type = service_type.unwrap_or(ServiceType::LoadBalancer);
    if load_balancer_class.is_some() && service_type != ServiceType::LoadBalancer {
        let service_type = service_type.as_str();
        return Err(format!(
            "loadBalancerClass is for the serviceType LoadBalancer: it is {service_type}"
        ));
    }
    Ok(Parameters {
        image,
        image_pull_policy,
        image_pull_secrets: image_pull_secrets.unwrap_or_default(),
        replicas,
        concurrency,
        service_type,
        load_balancer_class,
        drain_seconds,
        pod_disruption_budget: pod_disruption_budget.unwrap_or(true),
        resources: resources.unwrap_or_else(Resources::of_an_envoy),
        node_selector: node_selector.unwrap_or_default(),
        tolerations: tolerations.unwrap_or_default(),
        pod_security_context: pod_security_context.unwrap_or_else(unprivileged),
    })
}

/// What Pod Security admission asks for at its strictest level. The user is a number: a node cannot tell from a name that it
/// is not root.
fn unprivileged() -> PodSecurityContext {
    let seccomp = SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        ..SeccompProfile::default()
    };
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(seccomp),
        ..PodSecurityContext::default()
    }
}

// === impl RawParameters ===

impl RawParameters {
    fn over(self, below: Self) -> Self {
        Self {
            image: self.image.or(below.image),
            image_pull_policy: self.image_pull_policy.or(below.image_pull_policy),
            image_pull_secrets: self.image_pull_secrets.or(below.image_pull_secrets),
            replicas: self.replicas.or(below.replicas),
            concurrency: self.concurrency.or(below.concurrency),
            service_type: self.service_type.or(below.service_type),
            load_balancer_class: self.load_balancer_class.or(below.load_balancer_class),
            drain_seconds: self.drain_seconds.or(below.drain_seconds),
            pod_disruption_budget: self.pod_disruption_budget.or(below.pod_disruption_budget),
            resources: self.resources.or(below.resources),
            node_selector: self.node_selector.or(below.node_selector),
            tolerations: self.tolerations.or(below.tolerations),
            pod_security_context: self.pod_security_context.or(below.pod_security_context),
        }
    }
}

// === impl ServiceType ===

impl ServiceType {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIP => "ClusterIP",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_world(class: &str, own: Option<&str>) -> (World, Gateway) {
        let reference = |namespace: Option<&str>, name: &str| ParametersRef {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
        };
        let mut world = World::default();
        let parameters = Some(reference(Some("system"), "class"));
        world.classes.insert(
            "c".into(),
            GatewayClass {
                parameters,
                ..GatewayClass::default()
            },
        );
        world
            .parameters
            .insert(Key::new("system", "class"), Some(parse(class)));
        let own = own.map(parse);
        world.parameters.insert(Key::new("ns", "own"), own);
        let gateway = Gateway {
            key: Key::new("ns", "g"),
            class: "c".into(),
            parameters: Some(reference(None, "own")),
            ..Gateway::default()
        };
        (world, gateway)
    }

    #[test]
    fn gateway_parameters_go_over_the_classs_field_by_field() {
        let (world, gateway) = mk_world("replicas: 5\nimage: a", Some("replicas: 1"));
        let found = of_gateway(&world, &gateway).unwrap();
        assert_eq!((found.replicas, found.image.as_deref()), (1, Some("a")));
        assert_eq!(found.drain_seconds, DRAIN_SECONDS);
    }

    #[test]
    fn missing_map_unknown_field_and_bad_value_are_named() {
        let (world, gateway) = mk_world("{}", None);
        assert!(of_gateway(&world, &gateway).unwrap_err().contains("ns/own"));
        for (text, part) in [
            ("replica: 1", "replica"),
            ("replicas: -1", "0 to 1000"),
            ("concurrency: 0", "1 to 1024"),
            ("concurrency: 4294967295", "1 to 1024"),
            ("replicas: 1\nreplicas: 2", "\"replicas\" is there twice"),
            ("serviceType: Headless", "Headless"),
            (
                "serviceType: ClusterIP\nloadBalancerClass: example.com/internal",
                "it is ClusterIP",
            ),
        ] {
            let (world, gateway) = mk_world("{}", Some(text));
            let error = of_gateway(&world, &gateway).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    /// 112 kB of which aliases make 100 MB, and the same below the limit of the text.
    #[test]
    fn aliases_do_not_multiply_and_what_is_refused_is_not_quoted_at_length() {
        for (length, aliases) in [(100_000, 1000), (50_000, 1000), (1000, 100)] {
            let long = "x".repeat(length);
            let tolerations = "{key: *a},".repeat(aliases);
            let text = format!("image: &a {long}\ntolerations: [{tolerations}]");
            let (world, gateway) = mk_world("{}", Some(&text));
            let error = of_gateway(&world, &gateway).unwrap_err();
            assert!(error.len() < 2000, "{} bytes", error.len());
            assert!(error.contains("ns/own"), "{error}");
        }
    }

    #[rstest]
    #[case("tolerations: [LIST]", "{key: k},")]
    #[case("imagePullSecrets: [LIST]", "{name: s},")]
    fn lists_are_bounded(#[case] text: &str, #[case] entry: &str) {
        for (entries, is_taken) in [(MAX_ENTRIES, true), (MAX_ENTRIES + 1, false)] {
            let text = text.replace("LIST", &entry.repeat(entries));
            let (world, gateway) = mk_world("{}", Some(&text));
            let found = of_gateway(&world, &gateway);
            assert_eq!(found.is_ok(), is_taken, "{found:?}");
        }
    }

    /// In the page that describes them, and in what the chart lets through.
    #[test]
    fn each_key_is_described_and_a_value_of_the_chart() {
        let error = parse("x: 1").unwrap_err();
        let (_, expected) = error.split_once("expected one of").unwrap();
        let mut keys: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        let page = include_str!("../../../docs/gateway-parameters.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut described: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let schema = include_str!("../../../charts/isthmus/values.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let of_chart = schema["$defs"]["parameters"]["properties"].as_object();
        let mut of_chart: Vec<&str> = of_chart.unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        described.sort_unstable();
        of_chart.sort_unstable();
        assert_eq!((&described, &of_chart), (&keys, &keys));
    }
}
