//! The client of a Metadata-Center, as an endpoint picker holds it.
//!
//! Owns how the service is reached, how long a request waits for it, and how what is to be reported gets there. Knows
//! nothing of endpoint pickers: what is picked, put and saved are values, and what to do without the service is decided
//! by who holds the [`Client`].
//!
//! ```text
//!  request ── pick, view ──► Client ──► Service: deadline, addresses in turn, breakers ──► Transport ──► service
//!          ── put, end ────► Charges ─► Outbox ──► workers ───────┤
//!          ── save, purge ─► Saves ───► their task ───────────────┘
//! ```

mod addresses;
mod answer;
mod backoff;
mod breaker;
mod cache_calls;
mod calls;
mod client;
mod connect;
mod http;
mod metrics;
mod outbids;
mod outboxes;
mod reporter;
mod run;
mod saves;
#[cfg(test)]
mod script;
mod service;
mod settings;
#[cfg(test)]
mod tests;
mod token;
mod transport;
mod view;
mod worker;

pub use self::{
    answer::{RefusedCall, Unavailable},
    client::{Client, Degraded},
    http::{HostError, Http, HttpPeer},
    metrics::ClientCollector,
    outboxes::{Charges, TooManyClusters},
    run::{TaskDied, Tasks},
    settings::{Api, Settings},
    token::{BearerToken, TokenError, TokenFile},
    transport::{Call, CallError, MAX_REPLY, Peer, Reply, Trace, Transport},
    view::{Asked, View},
};
