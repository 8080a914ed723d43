//! The load and the prompt caches that the endpoint pickers of a pool share, over HTTP.
//!
//! It owns the wire: paths, envelopes, codes, connections. What is decided is in the crate `metadata`; [`Engine`]s are the
//! places where its state can be.
//!
//! ```text
//!  connections ─► Server ─► Service ─► route ─► call ─► Engine ─┬─► Memory
//!                                       reply ◄─────────────────┘
//! ```

mod args;
mod body;
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
mod server;
mod service;
mod token;
mod trace_id;

pub use args::{Args, Backend, ListenArgs, StateArgs, TlsArgs};
pub use engine::{BootId, CacheLog, Engine};
pub use memory::Memory;
pub use metrics::Metrics;
pub use program::run;
pub use server::{ServeError, Server};
pub use service::{Service, Settings};
pub use tls::Acceptor;
pub use token::Tokens;

pub use self::redis::{Redis, RedisOptions, RedisUrl, RedisUrlError};
