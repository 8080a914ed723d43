//! The Processor: an endpoint picker sends it a client's request, and gets the ids of its prompt, and the worker that has
//! most of them cached.

mod encoders;
mod members;
mod metrics;
mod models;
mod steps;
mod transfer;

pub use encoders::{Encoders, NotDone};
pub use metrics::{CatalogueMetrics, Metrics};
pub use models::{Models, ModelsError, ModelsFile};
pub use steps::{Failure, NotKept, RouteCall, RouteFailure, Routes, Shared, Steps, Tokens};
pub use transfer::{TokenTransfer, Transfer};
