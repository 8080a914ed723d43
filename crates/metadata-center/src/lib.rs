//! The load and the prompt caches that the endpoint pickers of a pool share, over HTTP.
//!
//! It owns the wire: paths, envelopes, codes. What is decided is in the crate `metadata`; [`Engine`]s are the
//! places where its state can be.
//!
//! ```text
//!  http_service::Server ─► Service ─► route ─► call ─► Engine ─► Memory, Redis
//!                                      reply ◄───────────┘
//! ```

mod args;
mod call;
mod engine;
mod json;
mod memory;
mod metrics;
mod openapi;
mod program;
mod query;
mod redis;
mod reply;
mod route;
mod service;
mod trace_id;

pub use args::{Args, Backend, ListenArgs, StateArgs};
pub use engine::{BootId, CacheLog, CacheSize, Engine};
pub use http_service::{Acceptor, Server, Tokens};
pub use memory::Memory;
pub use metrics::Metrics;
pub use program::run;
pub use service::{Service, Settings};

pub use self::redis::{Redis, RedisOptions, RedisUrl, RedisUrlError};
