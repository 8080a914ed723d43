//! The status each object should have, without times: those depend on what is there already.

use std::collections::BTreeMap;
use std::sync::Arc;

use crd::conditions::{ACCEPTED, PROGRAMMED, RESOLVED_REFS};
use foreign_text::{MAX_MESSAGE, clipped};

use crate::parameters;
use crate::select::{Selection, is_used, summary};
use crate::world::{Key, ParentRef, World};

use super::refs::GATEWAY_GROUP;
use super::{Import, Settings};

/// Longest message of a condition, in bytes: some texts of others. Gateway API's CRDs allow eight times as much, and past
/// that the API server takes none of the status.
const MAX_CONDITION: usize = 4 * MAX_MESSAGE;

/// What works, by the names of Gateway API's conformance suite; sorted.
const FEATURES: [&str; 29] = [
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
];

/// An object whose status we write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Without a namespace.
    Class(Key),
    Gateway(Key),
    Route(Key),
    Pool(Key),
    Import(Key),
    Policy(Key),
    TlsPolicy(Key),
}

/// Every object we may write to, also those that shall have none of our entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedStatus {
    pub(crate) classes: BTreeMap<String, ClassStatus>,
    pub(crate) gateways: BTreeMap<Key, GatewayStatus>,
    pub(crate) routes: BTreeMap<Key, Vec<ParentStatus>>,
    pub(crate) pools: BTreeMap<Key, Vec<ParentStatus>>,
    pub(crate) imports: BTreeMap<Key, ImportStatus>,
    /// Of policies, an entry for each import that they name.
    pub(crate) policies: BTreeMap<Key, Vec<ParentStatus>>,
    /// Of each `BackendTLSPolicy`, an entry for each Gateway that connects to what it names.
    pub(crate) tls_policies: BTreeMap<Key, Vec<ParentStatus>>,
}

/// An import and the Gateways that use it. What its status says follows from how requests are shared as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportStatus {
    pub(crate) generation: i64,
    /// Of one that no Gateway of ours uses, none is made.
    pub(crate) import: Option<Arc<Import>>,
    /// By Gateway with routes to it: whether such a route is accepted.
    pub(crate) gateways: BTreeMap<Key, bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassStatus {
    pub(crate) conditions: Vec<Cond>,
    /// Sorted.
    pub(crate) features: Vec<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayStatus {
    pub(crate) addresses: Vec<String>,
    pub(crate) conditions: Vec<Cond>,
    pub(crate) listeners: Vec<ListenerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerStatus {
    pub(crate) name: String,
    pub(crate) attached: i32,
    /// Whether HTTPRoutes may attach, the one kind there is.
    pub(crate) serves_http_routes: bool,
    pub(crate) conditions: Vec<Cond>,
}

/// One entry of a `parents` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParentStatus {
    pub(crate) parent: ParentRef,
    pub(crate) conditions: Vec<Cond>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cond {
    pub(crate) kind: &'static str,
    pub(crate) status: Truth,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) generation: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    True,
    False,
}

/// The condition of a pool or import at a Gateway with a route to it.
pub(crate) fn of_route(accepted: bool, generation: i64) -> Cond {
    if accepted {
        Cond::yes(ACCEPTED, generation)
    } else {
        let message = "no HTTPRoute with this backend is accepted by the Gateway";
        Cond::no(ACCEPTED, "HTTPRouteNotAccepted", message, generation)
    }
}

pub(crate) fn gateway_ref(key: &Key) -> ParentRef {
    ParentRef {
        group: Some(GATEWAY_GROUP.to_owned()),
        kind: Some("Gateway".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: key.name.clone(),
        section: None,
        port: None,
    }
}

// === impl Target ===

impl Target {
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Class(key)
            | Self::Gateway(key)
            | Self::Route(key)
            | Self::Pool(key)
            | Self::Import(key)
            | Self::Policy(key)
            | Self::TlsPolicy(key) => key,
        }
    }

    /// Group, version, kind.
    pub(crate) fn api(&self) -> (&'static str, &'static str, &'static str) {
        use crd::annotations::{GATEWAY_GROUP, IMPORT_GROUP, IMPORT_KIND, POOL_GROUP, POOL_KIND};
        use crd::selection_policy;
        match self {
            Self::Class(_) => (GATEWAY_GROUP, "v1", "GatewayClass"),
            Self::Gateway(_) => (GATEWAY_GROUP, "v1", "Gateway"),
            Self::Route(_) => (GATEWAY_GROUP, "v1", "HTTPRoute"),
            Self::Pool(_) => (POOL_GROUP, "v1", POOL_KIND),
            Self::Import(_) => (IMPORT_GROUP, crd::import::VERSION, IMPORT_KIND),
            Self::Policy(_) => (
                selection_policy::GROUP,
                selection_policy::VERSION,
                selection_policy::KIND,
            ),
            Self::TlsPolicy(_) => (GATEWAY_GROUP, "v1", "BackendTLSPolicy"),
        }
    }
}

// === impl ImportStatus ===

impl ImportStatus {
    pub(crate) fn parents(&self, selection: &Selection) -> Vec<ParentStatus> {
        let generation = self.generation;
        let Some(import) = &self.import else {
            return Vec::new();
        };
        let message = summary(import, selection);
        let programmed = if is_used(import, selection) {
            Cond::new(PROGRAMMED, Truth::True, PROGRAMMED, message, generation)
        } else {
            Cond::no(PROGRAMMED, "NoUsableCluster", message, generation)
        };
        let parents = self.gateways.iter();
        let parents = parents.map(|(gateway, route_accepted)| ParentStatus {
            parent: gateway_ref(gateway),
            conditions: vec![
                of_route(*route_accepted, generation),
                Cond::yes(RESOLVED_REFS, generation),
                programmed.clone(),
            ],
        });
        parents.collect()
    }
}

/// Status of the classes that name us.
pub(crate) fn classes(world: &World, settings: &Settings) -> BTreeMap<String, ClassStatus> {
    let ours = world
        .classes
        .iter()
        .filter(|(_, class)| class.controller == settings.controller);
    let status = ours.map(|(name, class)| {
        let accepted = match parameters::of_class(world, class) {
            Ok(_) => Cond::yes(ACCEPTED, class.generation),
            Err(bad) => Cond::no(ACCEPTED, "InvalidParameters", bad, class.generation),
        };
        let status = ClassStatus {
            conditions: vec![accepted],
            features: FEATURES.to_vec(),
        };
        (name.clone(), status)
    });
    status.collect()
}

// === impl Cond ===

impl Cond {
    /// True, the reason being the type's own name.
    pub(crate) fn yes(kind: &'static str, generation: i64) -> Self {
        Self::new(kind, Truth::True, kind, "", generation)
    }

    pub(crate) fn no(
        kind: &'static str,
        reason: &str,
        message: impl Into<String>,
        generation: i64,
    ) -> Self {
        Self::new(kind, Truth::False, reason, message, generation)
    }

    pub(crate) fn new(
        kind: &'static str,
        status: Truth,
        reason: &str,
        message: impl Into<String>,
        generation: i64,
    ) -> Self {
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message: clipped(message.into(), MAX_CONDITION),
            generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_any_length_is_cut() {
        let said = |length| Cond::no("Programmed", "Invalid", "x".repeat(length), 1).message;
        assert_eq!(said(MAX_CONDITION), "x".repeat(MAX_CONDITION));
        assert_eq!(said(3_000_000), "x".repeat(MAX_CONDITION));
    }
}
