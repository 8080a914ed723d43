//! The Envoy side: one ext_proc stream per HTTP request.
//!
//! ```text
//!  ProcessingRequest ─ wire ─► Input ─► Exchange ─► Output ─ wire ─► ProcessingResponse
//!                                          ▲  │
//!                               Decided ───┘  └─► Decide ─► director
//! ```
//!
//! [`exchange::Exchange`] is the protocol, pure; the stream adapter moves messages and keeps the timer. The
//! adapter is polled by the HTTP/2 server itself, so a stream needs no task and no channel: a peer that
//! stops reading stops being read. [`overdue`] ends what such a peer would hold for ever.

mod exchange;
mod live;
mod message;
mod messages;
mod overdue;
mod reader;
mod service;
mod stream;
mod wire;

pub use exchange::Limits;
pub use message::BodyMode;
pub use service::{ExtProc, Settings};

pub(crate) use message::{Answer, Phase, PrefixMatch, Query, RequestHead, Route, StagedAnswer};
pub(crate) use wire::REQUEST_ID;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use {exchange::fuzz::run as fuzz_stream, wire::fuzz::run as fuzz_attributes};
