//! Spans that a program makes, on their way to a collector over OTLP.
//!
//! Owns the standard variables of OpenTelemetry, what they mean, and the queue and the batches of ended spans. Knows nothing
//! of what the spans say.
//!
//! ```text
//!  TracingArgs ─► Setup ─► provider ─► a program's spans ─ end ─► bounded queue ─► Export (a task) ─► collector
//! ```

mod args;
mod export;
mod setup;

pub use args::TracingArgs;
pub use export::{Export, SpanMetrics};
pub use opentelemetry_otlp::SpanExporter;
pub use setup::{Setup, SetupError};
