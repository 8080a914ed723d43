//! What can be wrong with a call, as the service's clients see it.

use thiserror::Error;

/// Why a call was refused. Each has a code for programs, a reason for metrics and logs, and a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A field is missing, of another type, or out of its range.
    #[error("{field}: {why}")]
    InvalidParameter {
        /// As in the JSON or the query, such as `puts[3].ip`.
        field: String,
        /// What was expected.
        why: String,
    },
    /// No bearer token, or another.
    #[error("this service needs a bearer token")]
    Unauthorized,
    /// No such path.
    #[error("{0} is not served")]
    NotFound(String),
    /// The path knows other methods.
    #[error("use {allowed} here")]
    Method {
        /// Separated by commas.
        allowed: &'static str,
    },
    /// The body is larger than the service reads.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// A delete of a request that is not known; only where the client asks for strictness.
    #[error("request {0} is unknown")]
    UnknownRequest(String),
    /// An add of a request that another endpoint has; only where the client asks for strictness.
    #[error("request {0} is charged to another endpoint")]
    Duplicate(String),
    /// The owner has no live lease: its next batch must be full.
    #[error("the lease is over: send a full batch")]
    LeaseLost,
    /// The instance has reported with a higher epoch.
    #[error("the instance is at epoch {current}")]
    StaleEpoch {
        /// The highest epoch of the instance.
        current: u64,
    },
    /// The owner's batches are further.
    #[error("the owner is at batch {last}")]
    StaleSeq {
        /// The last batch that was applied.
        last: u64,
        /// It is this very batch: its first reply was lost.
        applied: bool,
    },
    /// Nothing more fits.
    #[error("no room for more {}", .0.what())]
    Limit(Bound),
    /// A fault of the service.
    #[error("internal error")]
    Internal,
    /// The shared store does not answer.
    #[error("the backend does not answer: {0}")]
    BackendUnavailable(String),
    /// The service ends.
    #[error("the service is shutting down")]
    ShuttingDown,
}

/// What there can be too many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Charges and reservations of all clusters.
    Requests,
    /// Endpoints of one cluster.
    Endpoints,
    /// Clusters.
    Clusters,
    /// Instances that report: live leases.
    Instances,
}

// === impl Fault ===

impl Fault {
    /// Of a field by its name.
    pub fn invalid(field: impl Into<String>, why: impl ToString) -> Self {
        Self::InvalidParameter {
            field: field.into(),
            why: why.to_string(),
        }
    }

    /// For programs; its first three digits are the HTTP status.
    pub fn code(&self) -> u32 {
        match self {
            Self::InvalidParameter { .. } => 40_001_400,
            Self::Unauthorized => 40_101_001,
            Self::NotFound(_) => 40_401_000,
            Self::UnknownRequest(_) => 40_401_404,
            Self::Method { .. } => 40_501_000,
            Self::Duplicate(_) => 40_901_000,
            Self::LeaseLost => 40_901_001,
            Self::StaleEpoch { .. } => 40_901_002,
            Self::StaleSeq { .. } => 40_901_003,
            Self::TooLarge { .. } => 41_301_000,
            Self::Limit(_) => 42_901_000,
            Self::Internal => 50_001_000,
            Self::BackendUnavailable(_) => 50_301_000,
            Self::ShuttingDown => 50_301_001,
        }
    }

    /// Stable: metric label, log field and `reason` of the reply alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidParameter { .. } => "invalid-parameter",
            Self::Unauthorized => "unauthorized",
            Self::NotFound(_) => "not-found",
            Self::UnknownRequest(_) => "unknown-request",
            Self::Method { .. } => "method",
            Self::Duplicate(_) => "duplicate",
            Self::LeaseLost => "lease-lost",
            Self::StaleEpoch { .. } => "stale-epoch",
            Self::StaleSeq { .. } => "stale-seq",
            Self::TooLarge { .. } => "too-large",
            Self::Limit(Bound::Requests) => "limit-requests",
            Self::Limit(Bound::Endpoints) => "limit-endpoints",
            Self::Limit(Bound::Clusters) => "limit-clusters",
            Self::Limit(Bound::Instances) => "limit-instances",
            Self::Internal => "internal",
            Self::BackendUnavailable(_) => "backend-unavailable",
            Self::ShuttingDown => "shutting-down",
        }
    }
}

// === impl Bound ===

impl Bound {
    fn what(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Endpoints => "endpoints in this cluster",
            Self::Clusters => "clusters",
            Self::Instances => "instances",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Fault::invalid("ip", "expected an address"), 400, "invalid-parameter")]
    #[case(Fault::Unauthorized, 401, "unauthorized")]
    #[case(Fault::NotFound("/x".into()), 404, "not-found")]
    #[case(Fault::UnknownRequest("r".into()), 404, "unknown-request")]
    #[case(Fault::Method { allowed: "GET" }, 405, "method")]
    #[case(Fault::Duplicate("r".into()), 409, "duplicate")]
    #[case(Fault::StaleSeq { last: 3, applied: true }, 409, "stale-seq")]
    #[case(Fault::TooLarge { limit: 4 }, 413, "too-large")]
    #[case(Fault::Limit(Bound::Clusters), 429, "limit-clusters")]
    #[case(Fault::Internal, 500, "internal")]
    #[case(Fault::ShuttingDown, 503, "shutting-down")]
    fn the_code_begins_with_the_status(
        #[case] fault: Fault,
        #[case] status: u32,
        #[case] reason: &str,
    ) {
        assert_eq!(fault.code() / 100_000, status);
        assert_eq!(fault.reason(), reason);
    }
}
