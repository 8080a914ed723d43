//! Bodies of the service's calls, as JSON.
//!
//! The calls of [`load`] and [`cache`] are those of existing clients, byte for byte; [`batch`] and [`pick`] are ours.

pub mod batch;
pub mod cache;
pub mod load;
pub mod pick;

use std::{fmt::Display, ops::RangeInclusive};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// Endpoints that one call names at most: those of a whole cluster.
pub const MAX_CANDIDATES: usize = 4096;

/// Around each answer but those of probes and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<T> {
    /// Whether the call did what it was to do.
    pub status: Status,
    /// Why not.
    pub error: Option<ErrorBody>,
    /// The answer; `null` where there is none.
    pub data: Option<T>,
    /// As the caller sent it, or ours.
    pub trace_id: String,
}

/// Whether a call succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It did.
    Ok,
    /// It did not.
    Error,
}

/// A [`Fault`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// [`Fault::code`].
    pub code: u32,
    /// For people.
    pub message: String,
    /// [`Fault::reason`].
    pub reason: String,
}

// === impl ErrorBody ===

impl From<&Fault> for ErrorBody {
    fn from(fault: &Fault) -> Self {
        Self {
            code: fault.code(),
            message: fault.to_string(),
            reason: fault.reason().to_owned(),
        }
    }
}

/// Refuses a number outside of a range.
fn in_range<T: PartialOrd + Display>(
    field: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Fault> {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = range.into_inner();
    Err(Fault::invalid(
        field,
        format!("expected {from} to {to}, got {value}"),
    ))
}
