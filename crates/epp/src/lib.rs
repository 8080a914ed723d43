//! The endpoint picker: an Envoy external processor that chooses the model server for each request of one
//! InferencePool.
//!
//! It owns the ext_proc protocol, the members of the pool and what is known of their load. It must not
//! know how the choice is made (crate `scheduling`), nor anything of routes, other pools or other
//! clusters.
//!
//! ```text
//!  API server ─► discovery ─┐                    ┌─► health, metrics
//!                           ├─► Pool (Snapshot) ─┤
//!  model servers ─► scrape ─┘                    └─► director ◄─► extproc ◄─► Envoy
//!  file ─► config ─► CurrentConfig ──────────────────────┘
//! ```

mod admin;
mod args;
mod body;
mod budget;
mod center;
mod config;
mod connection;
mod debug;
mod director;
mod discovery;
mod edit;
mod external;
mod extproc;
#[cfg(test)]
mod fixtures;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gather;
mod health;
mod leader;
mod llm;
mod metrics;
mod program;
mod proto;
mod reject;
mod scrape;
mod server;
mod spans;
mod tap;

pub use args::{
    Args, CenterApi, CenterEndpointId, CenterFallback, CenterSettings, CenterTls, ConfigArgs,
    Deadline, ElectionArgs, ExternalArgs, ListenArgs, MetadataCenterArgs, PoolArgs, RequestArgs,
    SetModelName, Size, Span, TlsArgs, TokenBodyField, TracingArgs, UnusedArgs,
};
pub use body::{Api, BadPath, BodyError, Parsed};
pub use budget::Budget;
pub use config::{
    Band, ClientCert, Compat, Config, ConfigFile, ConfigMetrics, CurrentConfig, EngineConfig,
    Engines, FairnessPolicy, FileDiscovery, FlowControl, Ignored, InForce, LlmFilterFile,
    LoadError, MetricsSource, OrderingPolicy, Parser, Parsers, Prefix, Refusal, Refusals, Reload,
    Reloaded, RewriteRule, RewriteTarget, Scheme, Session, TrustedHeaders,
};
pub use director::{
    Director, DirectorCollector, ModelMatch, Options, PickElsewhere, Pool, ReplyElsewhere,
};
pub use extproc::{BodyMode, ExtProc, Limits, Settings};
pub use health::{Part, Readiness};
pub use llm::{
    AccessLog, Algorithm, AskedElsewhere, Backend, Balance, ChatTemplate, Headers, LengthUnit,
    LlmError, LlmFilter, Match, Mode, PromptError, PromptFacts, Protocol, Rule, RuleError,
    StreamOutput, Subset as RuleSubset, Table, TraceId, Transcoders, Triton, TrtLlm, Wire,
    read as read_prompt,
};
pub use metrics::{Metrics, PoolCollector};
pub use moment::Clock;
pub use process::Panicked;
pub use program::run;
pub use scrape::{EngineTable, EnginesError, OnScraped, Plan, Planner, Scanner, Scraper};
pub use server::{ExtProcServer, ServeError, listen, serve_health};
pub use spans::{Export, Setup, SetupError, SpanMetrics, Tracing};
pub use tls::{
    Acceptor, Alpn, CaError, HandshakeError, MaybeTls, PairError, PortTls, San, SanError, TlsError,
    TlsFiles, TlsMetrics, TlsReload, TlsVersion,
};
