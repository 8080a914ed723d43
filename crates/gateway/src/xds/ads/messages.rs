//! What a stream takes in, and what it is to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moment::Moment;

use crate::xds::{Kind, Resource, Snapshot};

/// What happens to the stream.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Request(Request),
    /// The newest snapshot of the Envoy's Gateway.
    Snapshot(Arc<Snapshot>),
    /// The edges that Envoys of the Gateway serve that are ready.
    Served(Arc<BTreeSet<String>>),
    /// When a stream of an Envoy of the Gateway was denied that shows a former certificate.
    Denied(Moment),
    /// The moment of [`Ads::wake_at`](super::Ads::wake_at) has come.
    Tick,
}

/// What Envoy says, decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) kind: Option<Kind>,
    pub(crate) subscribe: Vec<String>,
    pub(crate) unsubscribe: Vec<String>,
    /// Versions Envoy has from an earlier stream.
    pub(crate) initial: BTreeMap<String, u64>,
    pub(crate) nonce: Option<u64>,
    /// Why Envoy refuses the response with that nonce.
    pub(crate) error: Option<String>,
}

/// What to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Send(Response),
    /// Envoy refused it; it is not sent again unchanged, or only after a while ([`Refusal::passing`]).
    Refused(Refusal),
    /// Envoy took what it refused before for a passing reason.
    Recovered(Kind, String, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) kind: Kind,
    pub(crate) nonce: u64,
    pub(crate) resources: Vec<(String, Arc<Resource>)>,
    pub(crate) removed: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) message: String,
    /// The reason may pass by itself: it is tried again unchanged.
    pub(crate) passing: bool,
}
