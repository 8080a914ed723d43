//! How calls reach a service, as a seam: over HTTP, or by a script in tests.

use std::{borrow::Cow, future::Future, io, net::SocketAddr};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};

/// Finds the addresses of a service and makes what calls them.
pub trait Transport: Send + Sync + 'static {
    /// Calls one address.
    type Peer: Peer;

    /// The addresses that the service has now.
    fn resolve(&self) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;

    /// What calls this address. It connects when it is first asked to, and closes its connections when it is dropped.
    fn peer(&self, address: SocketAddr) -> Self::Peer;

    /// Waits until all connections are closed. Comes after the last peer was dropped.
    fn closed(&self) -> impl Future<Output = ()> + Send;
}

/// One address of a service.
pub trait Peer: Send + Sync + 'static {
    /// Makes a call. It has no deadline of its own: dropping it gives it up.
    fn call(&self, call: Call) -> impl Future<Output = Result<Reply, CallError>> + Send;
}

/// A request to the service.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of HTTP.
    pub method: Method,
    /// With the query.
    pub path: Cow<'static, str>,
    /// JSON, or nothing.
    pub body: Bytes,
    /// Of the request that waits for it; of a report nothing.
    pub trace: Trace,
}

/// Under which id a call is logged by the service.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Header `TraceId`.
    pub id: Option<HeaderValue>,
    /// Header `traceparent`.
    pub parent: Option<HeaderValue>,
}

/// What the service answered, whole.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Of HTTP.
    pub status: StatusCode,
    /// Header `X-Metadata-Boot`; another value than before: the service lost its state.
    pub boot: Option<u64>,
    /// At most [`MAX_REPLY`] bytes.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection ended, or what came over it was no answer.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The answer is longer than any that the service has.
    #[error("the answer is longer than {MAX_REPLY} bytes")]
    TooLarge,
}

/// 4 MiB: 4096 endpoints with 128 bytes each, several times over; as much as the service reads.
pub const MAX_REPLY: usize = 4 << 20;
