//! Load for the controller, the EPP, the gateway and the data path. For the controller: fleets of scripted API servers, the controller as a process of its own, and figures.
//!
//! The load runs in this process and shares the machine with the controller: each figure says which of the two it is of.
//! The programs are `bench` (figures against their goals), `bare` and `floor` (the least that a controller and an EPP could
//! do, as their floors) and `soak` (random faults against a model).
//!
//! ```text
//!  Fleet (N servers, TLS or not) ◄── HTTP ── Controller (a process: CPU, RSS from /proc)
//!     └─ events, times of what was applied ──► Figure (name, value, unit, goal)
//! ```

mod bare;
mod controller;
pub mod datapath;
mod document;
mod encode;
mod epp;
mod figure;
mod fleet;
mod gateway;
mod grpc;
mod model;
mod quality;
mod replay;
pub mod router;
mod rows;
pub mod service;

pub use bare::{BARE_READY, Bare};
pub use controller::{Controller, Usage, own_cpu, raise_open_files};
pub use document::with_figures;
pub use encode::{EncodeCost, encode};
pub use epp::{
    Chunks, Cores, Endpoints, Load, Picker, Prompts, Sample, Script, Settings, http_page,
    sum_of_series,
};
pub use figure::{Figure, percentile, verdict};
pub use fleet::{Fleet, FleetOptions, NS, pool};
pub use gateway::{Arrival, Envoy};
pub use grpc::{Messages, grpc_frame};
pub use model::{Fault, Import, Member, Model, Pool};
pub use quality::{EngineModel, Outcome, Policy, Setup, Trace, Workload, capacity, simulate};
pub use replay::{Prompts as ReplayPrompts, Replayed, Routing, TraceFormat, replay};
pub use rows::{Bound, Goal, LATE, PEER, ROWS, Row, SetBy};
