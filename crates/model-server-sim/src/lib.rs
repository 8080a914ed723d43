//! A simulated vLLM server.
//!
//! Owns what a client, an endpoint picker and a scraper can see of a model server: the APIs with their
//! streams, the queue, the bounded batch and the KV cache behind them, and the metrics page. It holds no model: the
//! text is made up (or echoed), the time it takes comes from flags. It must not know anything of
//! Kubernetes, of the endpoint picker, or of the programs that it serves as a stand-in for.
//!
//! ```text
//!   fleet ──► server, one per address and rank: all below
//!
//!            listen (HTTP/1.1, h2c)
//!               │
//!   /v1/…  ──► api ── Work ──► engine::Engine ── submit, cancel ──► engine::Scheduler (pure)
//!               ▲                    │ one task: sleeps until the next token is due
//!               └── Progress ◄───────┤
//!   /metrics ◄─ metrics ◄── Stats ◄──┘            with KvCache, AdapterSlots, Latency (pure)
//!   /admin/… ── admin (knobs and the request log)
//!   ZeroMQ  ◄── kv_events ◄── what KvCache does
//! ```

mod admin;
mod api;
mod args;
mod duration;
mod engine;
mod fleet;
mod kv_events;
mod listen;
mod metrics;
mod models;
mod server;
mod text;

pub use crate::{
    admin::{Cut, Fail, FakeMetrics, FakeValue, FakeValueError, Knobs, LatencyKnobs},
    args::{
        AcceptError, AcceptTokens, Args, CacheSettings, EngineKind, EventForm, Identity,
        KvEventSettings, Mode, Settings, StreamOutput, TokenSettings,
    },
    duration::{DurationError, HumanDuration},
    engine::{
        BlockHash, Cancelled, Content, Dice, Engine, Event, Finish, Histogram, Latency, Limits,
        Load, Moment, PrefixSeed, Progress, Rejected, Scheduler, Sequence, SequenceId, Spread,
        Stats, Work, prefix_blocks,
    },
    fleet::serve_all,
    kv_events::BindError,
    listen::{ConnectionLimits, listen},
    models::{LoraError, LoraModule},
    server::{ServeError, Server, serve},
};
