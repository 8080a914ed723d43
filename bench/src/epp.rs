//! Load for the EPP: an Envoy's end of ext_proc, the EPP or its floor as a process, and the endpoints that are picked from.
//!
//! The load and the model servers run on one core, what is measured on another.
//!
//! ```text
//!  Endpoints (files, model servers) ◄── discovery, scrapes ── Picker (a process: EPP or floor; CPU, memory)
//!  Load (closed, open) ─► exchange ─► frames ═══ h2 connections ═════▲
//!    └─ Sample: times of picks, wrong answers
//! ```

mod endpoints;
mod exchange;
mod frames;
mod load;
mod picker;

pub use endpoints::{Endpoints, Settings};
pub use frames::{Chunks, Prompts, Script};
pub use load::{Load, Sample};
pub use picker::{Cores, Picker, http_page, sum_of_series};
