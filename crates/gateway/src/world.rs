//! What the Kubernetes API says, projected to what routing needs: plain values, no kube types.
//!
//! The watch adapters build these with [`project`]; the model reads nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crd::networks::Cidr;

use crate::parameters;

mod backend_tls;
mod endpoints;
mod former;
mod headers;
mod names;
mod policy;
pub(crate) mod project;
mod secret;
mod touched;

#[cfg(test)]
pub(crate) use backend_tls::TlsTarget;
#[cfg(test)]
pub(crate) use backend_tls::tests as authorities;
pub(crate) use backend_tls::{
    Authorities, AuthorityRef, BackendTlsPolicy, BadBundle, Bundle, MAX_BUNDLE, RawTlsPolicy,
    SubjectName, TlsValidation, backend_tls_policy,
};
pub(crate) use endpoints::{Endpoints, Slice};
pub(crate) use former::Formers;
pub(crate) use names::{fit, part_key};
pub(crate) use policy::{SelectionPolicy, selection_policy};
#[cfg(test)]
pub(crate) use secret::credentials;
#[cfg(test)]
pub(crate) use secret::tests as secrets;
pub(crate) use secret::{
    BadCredential, BadSecret, Certificate, Credential, Listed, ListedCredential, ListedSecret,
    RawSecret,
};

pub(crate) use touched::Touched;

/// Namespace and name of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Everything the model may look at, at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) classes: BTreeMap<String, GatewayClass>,
    pub(crate) gateways: BTreeMap<Key, Gateway>,
    pub(crate) routes: BTreeMap<Key, HttpRoute>,
    pub(crate) services: BTreeMap<Key, Service>,
    pub(crate) pools: BTreeMap<Key, InferencePool>,
    pub(crate) imports: BTreeMap<Key, InferencePoolImport>,
    /// Of these imports, the entries in the former modes of their clusters.
    pub(crate) formers: Formers,
    pub(crate) grants: BTreeMap<Key, ReferenceGrant>,
    pub(crate) policies: BTreeMap<Key, SelectionPolicy>,
    pub(crate) tls_policies: BTreeMap<Key, BackendTlsPolicy>,
    /// What those asked for before whose authorities are not all listed yet: it holds until they are.
    pub(crate) tls_before: BTreeMap<Key, TlsValidation>,
    /// Labels by namespace.
    pub(crate) namespaces: BTreeMap<String, Labels>,
    /// `parameters.yaml` of the `ConfigMap`s that Gateways and classes name; `None`: no such map or key;
    /// absent: not listed yet, so nothing is known of it.
    pub(crate) parameters: BTreeMap<Key, Option<parameters::Parsed>>,
    /// The authorities in the `ConfigMap`s that are watched, which a `BackendTLSPolicy` names; absent: not listed yet.
    pub(crate) authorities: BTreeMap<Key, Result<Bundle, BadBundle>>,
    /// The Secrets that listeners name and may name; absent: not listed yet, so nothing is known of it.
    pub(crate) certificates: BTreeMap<Key, Result<Certificate, BadSecret>>,
    /// The Secrets that imports name for metrics; absent: not listed yet.
    pub(crate) credentials: BTreeMap<Key, Listed>,
    /// Objects that went with their CRD and stay in use for now, by kind.
    pub(crate) kept: BTreeSet<(&'static str, Key)>,
    /// Pools whose selector the API server refuses, and what it says.
    pub(crate) bad_selectors: BTreeMap<Key, String>,
    /// Networks of this cluster's Services, their load balancers, nodes and their pods, and API servers, merged. No endpoint of another cluster is in them.
    pub(crate) own_networks: Vec<Cidr>,
    /// The same without pods, and pods alone.
    pub(crate) own_but_pods: Vec<Cidr>,
    pub(crate) own_pods: Vec<Cidr>,
}

pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayClass {
    pub(crate) generation: i64,
    pub(crate) controller: String,
    pub(crate) parameters: Option<ParametersRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParametersRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    /// The class's reference may name none, which is an error there.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gateway {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    /// It is being deleted, and what it owns with it.
    pub(crate) deleting: bool,
    pub(crate) class: String,
    pub(crate) listeners: Vec<Listener>,
    /// `spec.addresses` is not empty.
    pub(crate) wants_addresses: bool,
    pub(crate) labels: Labels,
    pub(crate) annotations: Labels,
    pub(crate) parameters: Option<ParametersRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    /// `None`: any host.
    pub(crate) hostname: Option<String>,
    pub(crate) tls: Option<ListenerTls>,
    /// Clients are to be authenticated by certificates of theirs.
    pub(crate) checks_clients: bool,
    pub(crate) from: RoutesFrom,
    /// (group, kind) of `allowedRoutes.kinds`; empty: the protocol's own.
    pub(crate) kinds: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerTls {
    /// Mode Passthrough: TLS ends at a backend.
    pub(crate) passthrough: bool,
    pub(crate) certificates: Vec<CertificateRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RoutesFrom {
    #[default]
    Same,
    All,
    Selector(LabelSelector),
    None,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    pub(crate) labels: Labels,
    pub(crate) expressions: Vec<LabelExpression>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelExpression {
    pub(crate) key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`; anything else matches nothing.
    pub(crate) operator: String,
    pub(crate) values: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpRoute {
    pub(crate) key: Key,
    pub(crate) generation: i64,
    /// Seconds since 1970.
    pub(crate) created: i64,
    pub(crate) parents: Vec<ParentRef>,
    pub(crate) hostnames: Vec<String>,
    pub(crate) rules: Vec<RouteRule>,
}

/// As the route says it, absent fields kept absent: status repeats it verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParentRef {
    pub(crate) group: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) section: Option<String>,
    pub(crate) port: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteRule {
    pub(crate) matches: Vec<RouteMatch>,
    pub(crate) filters: Vec<RouteFilter>,
    pub(crate) backends: Vec<BackendRef>,
    /// Gateway API durations (`10s`, `1m30s`), unparsed.
    pub(crate) request_timeout: Option<String>,
    pub(crate) backend_timeout: Option<String>,
    /// What of it this version does not know, for people. Nothing may be served by what is left of it.
    pub(crate) problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteMatch {
    pub(crate) path: PathMatch,
    pub(crate) method: Option<String>,
    pub(crate) headers: Vec<ValueMatch>,
    pub(crate) query: Vec<ValueMatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathMatch {
    Exact(String),
    Prefix(String),
    Regex(String),
}

/// Its debug text has no value, which may be a credential: a match on an API key is common, and the text is on a debug page.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct ValueMatch {
    pub(crate) name: String,
    pub(crate) value: String,
    /// By a regular expression, or in a way that this version does not know.
    pub(crate) inexact: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteFilter {
    RequestHeaders(HeaderEdit),
    ResponseHeaders(HeaderEdit),
    Redirect(Redirect),
    Rewrite(Rewrite),
    /// The type's name.
    Unsupported(String),
}

/// Its debug text has no values: they may be credentials, and the text is on a debug page.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct HeaderEdit {
    pub(crate) set: Vec<(String, String)>,
    pub(crate) add: Vec<(String, String)>,
    pub(crate) remove: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) scheme: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) path: Option<NewPath>,
    /// 301, 302, 303, 307 or 308.
    pub(crate) code: u16,
}

/// Changes of a request on its way to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub(crate) hostname: Option<String>,
    pub(crate) path: Option<NewPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NewPath {
    /// In place of the whole path.
    Full(String),
    /// In place of the prefix that the rule matched.
    Prefix(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
    pub(crate) weight: u32,
    pub(crate) filters: Vec<RouteFilter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) external_name: bool,
    /// Its addresses at load balancers. Those of `spec.externalIPs` are not here: who makes Services chooses them at will.
    pub(crate) balanced: Vec<Cidr>,
    pub(crate) ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServicePort {
    /// Empty where the Service has one unnamed port; EndpointSlices then have it empty too.
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) app_protocol: Option<String>,
    pub(crate) tcp: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InferencePool {
    pub(crate) generation: i64,
    pub(crate) selector: Labels,
    pub(crate) target_ports: Vec<u16>,
    pub(crate) app_protocol: Option<String>,
    pub(crate) picker: Option<PickerRef>,
    /// Annotation `isthmus.dev/health-port`, number or Service port name.
    pub(crate) health_port: Option<String>,
    /// Annotation `isthmus.dev/metrics-port`, number or Service port name.
    pub(crate) metrics_port: Option<String>,
    /// Annotation `isthmus.dev/metrics-secret`, the name of a Secret of its namespace.
    pub(crate) metrics_secret: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PickerRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
    pub(crate) fail_open: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InferencePoolImport {
    pub(crate) generation: i64,
    pub(crate) clusters: Vec<ImportedCluster>,
}

/// One entry of an import's `clusters`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportedCluster {
    pub(crate) name: String,
    pub(crate) parent_mode: bool,
    pub(crate) target_ports: Vec<u16>,
    pub(crate) app_protocol: Option<String>,
    pub(crate) picker: Option<RemotePicker>,
    pub(crate) parents: Vec<RemoteParent>,
    /// Networks of its pods, as the controller has them; those that are no network are left out.
    pub(crate) pod_cidrs: Vec<Cidr>,
    pub(crate) accepted: bool,
    /// Condition Ready is False, with its reason.
    pub(crate) not_ready: Option<String>,
    /// When it goes, in seconds since 1970: its export is being withdrawn.
    pub(crate) drain_until: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemotePicker {
    /// Of its Service in the exporting cluster, unchecked.
    pub(crate) name: String,
    /// IPs of ready EPP pods.
    pub(crate) endpoints: Vec<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) port: Option<u16>,
    pub(crate) app_protocol: Option<String>,
    pub(crate) health_port: Option<u16>,
    pub(crate) metrics: Option<MetricsPort>,
    pub(crate) fail_open: bool,
}

/// A Gateway of an exporting cluster that leads to the pool there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteParent {
    pub(crate) addresses: Vec<String>,
    /// Under which its routes lead to the pool; empty: any, or not known.
    pub(crate) hostnames: Vec<String>,
    pub(crate) listeners: Vec<RemoteListener>,
    /// Condition Programmed is False.
    pub(crate) unprogrammed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteListener {
    pub(crate) port: u16,
    pub(crate) https: bool,
    /// `None`: any host.
    pub(crate) hostname: Option<String>,
}

/// Where an endpoint picker serves its metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetricsPort {
    pub(crate) port: u16,
    pub(crate) secret: Option<SecretRef>,
}

/// As the import says it, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecretRef {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReferenceGrant {
    /// (group, kind, namespace)
    pub(crate) from: Vec<(String, String, String)>,
    /// (group, kind, name)
    pub(crate) to: Vec<(String, String, Option<String>)>,
}

// === impl Key ===

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl ValueMatch ===

impl fmt::Debug for ValueMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value: _,
            inexact,
        } = self;
        f.debug_struct("ValueMatch")
            .field("name", name)
            .field("inexact", inexact)
            .finish_non_exhaustive()
    }
}

// === impl HeaderEdit ===

impl fmt::Debug for HeaderEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| -> Vec<String> {
            pairs.iter().map(|(name, _)| name.clone()).collect()
        };
        f.debug_struct("HeaderEdit")
            .field("set", &names(&self.set))
            .field("add", &names(&self.add))
            .field("remove", &self.remove)
            .finish()
    }
}

// === impl RemotePicker ===

impl RemotePicker {
    /// Where it is reached: at its ready pods, where they are known.
    pub(crate) fn given(&self) -> &[String] {
        if self.endpoints.is_empty() {
            &self.addresses
        } else {
            &self.endpoints
        }
    }
}

// === impl LabelSelector ===

impl LabelSelector {
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.expressions.iter().all(|e| e.matches(labels))
    }
}

impl LabelExpression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

// === impl PathMatch ===

impl Default for PathMatch {
    fn default() -> Self {
        Self::Prefix("/".into())
    }
}

// === impl Redirect ===

impl Default for Redirect {
    fn default() -> Self {
        Self {
            scheme: None,
            hostname: None,
            port: None,
            path: None,
            code: 302,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_not_in_debug_text() {
        let edit = HeaderEdit {
            set: vec![("authorization".into(), "Bearer hidden".into())],
            add: vec![("x-key".into(), "hidden".into())],
            remove: Vec::new(),
        };
        let text = format!("{:#?}", RouteFilter::RequestHeaders(edit));
        assert!(
            text.contains("authorization") && !text.contains("hidden"),
            "{text}"
        );
    }

    #[test]
    fn values_of_matches_are_not_in_debug_text() {
        let one = |name: &str| ValueMatch {
            name: name.into(),
            value: "hidden".into(),
            inexact: false,
        };
        let matcher = RouteMatch {
            headers: vec![one("x-api-key")],
            query: vec![one("api_key")],
            ..RouteMatch::default()
        };
        let text = format!("{matcher:#?}");
        assert!(
            text.contains("x-api-key") && text.contains("api_key") && !text.contains("hidden"),
            "{text}"
        );
    }
}
