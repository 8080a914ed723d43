//! The suites, and what is known of each.

use std::str::FromStr;
use std::time::Duration;

/// An official conformance suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// That of the Gateway API Inference Extension: profile Gateway.
    Inference,
    /// That of Gateway API: profile GATEWAY-HTTP.
    Gateway,
}

/// A name that no suite has.
#[derive(Debug, thiserror::Error)]
#[error("suite {0:?} is unknown: expected inference or gateway")]
pub struct UnknownSuite(String);

/// All tests of the inference suite v1.6.0, in their order.
const INFERENCE: [&str; 14] = [
    "EppUnAvailableFailOpen",
    "GatewayDestinationEndpointServed",
    "GatewayFollowingEPPRouting",
    "GatewayFollowingEPPRoutingWithDataParallelism",
    "GatewayWeightedAcrossTwoInferencePools",
    "HTTPRouteInvalidInferencePoolRef",
    "HTTPRouteMultipleGatewaysDifferentPools",
    "InferencePoolAccepted",
    "InferencePoolAppProtocol",
    "InferencePoolHTTPRoutePortValidation",
    "InferencePoolInvalidEPPService",
    "InferencePoolMissingEPPRef",
    "HTTPRouteMultipleRulesDifferentPools",
    "InferencePoolResolvedRefsCondition",
];

// === impl Suite ===

impl Suite {
    /// As it is named on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Gateway => "gateway",
        }
    }

    /// Its tests, where they are known beforehand: which of those of Gateway API are run depends on the features that the
    /// GatewayClass lists.
    pub fn tests(self) -> &'static [&'static str] {
        match self {
            Self::Inference => &INFERENCE,
            Self::Gateway => &[],
        }
    }

    /// What stands before the names of its tests in the output of the Go program.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Inference => "TestConformance/Suite/",
            Self::Gateway => "TestConformance/",
        }
    }

    /// How long it may take: some ten times what it takes where all passes. A test that fails waits up to five minutes.
    pub(super) fn limit(self) -> Duration {
        match self {
            Self::Inference => Duration::from_mins(20),
            Self::Gateway => Duration::from_mins(40),
        }
    }
}

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Inference, Self::Gateway]
            .into_iter()
            .find(|suite| suite.name() == text)
            .ok_or_else(|| UnknownSuite(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_known_by_its_name_alone() {
        for suite in [Suite::Inference, Suite::Gateway] {
            assert_eq!(suite.name().parse::<Suite>().unwrap(), suite);
        }
        let error = "mesh".parse::<Suite>().unwrap_err().to_string();
        assert!(error.contains("inference or gateway"), "{error}");
    }
}
