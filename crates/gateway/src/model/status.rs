//! The status each object should have, without times: those depend on what is there already.

use std::collections::BTreeMap;

use crd::conditions::ACCEPTED;
use foreign_text::{MAX_MESSAGE, clipped};

use crate::infra::parameters;
use crate::world::{Key, ParentRef, World};

use super::Settings;

/// Longest message of a condition, in bytes: some texts of others. Gateway API's CRDs allow eight times as much, and past
/// that the API server takes none of the status.
const MAX_CONDITION: usize = 4 * MAX_MESSAGE;

/// What works, by the names of Gateway API's conformance suite; sorted.
const FEATURES: [&str; 27] = [
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

/// Every object we may write to, also those that shall have none of our entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedStatus {
    pub(crate) classes: BTreeMap<String, ClassStatus>,
    pub(crate) gateways: BTreeMap<Key, GatewayStatus>,
    pub(crate) routes: BTreeMap<Key, Vec<ParentStatus>>,
    pub(crate) pools: BTreeMap<Key, Vec<ParentStatus>>,
    pub(crate) imports: BTreeMap<Key, Vec<ParentStatus>>,
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
