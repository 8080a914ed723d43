//! The Processor: an endpoint picker sends it a client's request, and gets the ids of its prompt, and the worker that has
//! most of them cached.
//!
//! Owns the program, its ports, its threads and the order of its steps. How prompts become ids is in `tokenization`, how
//! ids are kept in `token-cache`, what goes over the wire in `processor-api`.
//!
//! ```text
//!  endpoint picker ─► Service ─► Steps ─┬─ Encoders ─► Models (templates, tokenizers)
//!                                       ├─ Router
//!                                       └─ Store ◄─ TokenPort ◄─ workers
//! ```

mod args;
mod encoders;
mod members;
mod metrics;
mod models;
mod path;
mod program;
mod reply;
mod router;
mod service;
mod spans;
mod steps;
mod token_port;
mod transfer;
mod verify;

pub use args::{
    Args, Command, ListenArgs, PeerArgs, PromptArgs, RouterArgs, RouterUrl, TokenArgs,
    TokenCachePlace, VerifyArgs,
};
pub use encoders::{Encoders, NotDone};
pub use metrics::{CatalogueMetrics, Metrics};
pub use models::{Models, ModelsError, ModelsFile};
pub use program::run;
pub use router::Router;
pub use service::{Service, Settings};
pub use spans::Spans;
pub use steps::{Failure, NotKept, RouteCall, RouteFailure, Routes, Shared, Steps, Tokens};
pub use token_port::TokenPort;
pub use transfer::{TokenTransfer, Transfer};
