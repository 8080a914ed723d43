//! What the endpoint picker, the Processor, the Router and the workers send each other.
//!
//! Owns the wire types, the lists of token ids, the headers, and the edits of a JSON body that leave all its other bytes
//! as they are. Knows no HTTP client or server, no clock and no source of chance: time and chance are parameters.
//!
//! ```text
//!  endpoint picker ── ProcessRequest ──► Processor ── RouteRequest ──► Router
//!                  ◄── ProcessReply ───            ◄── RouteReply ───
//!        │ Splices, headers                │ TokenKey
//!        ▼                                 ▼
//!     worker ◄──────── ids ────────── token cache
//! ```
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod fields;
mod header;
mod ids;
mod name;
mod object;
mod process;
mod refusal;
mod route;
mod splice;
pub mod tokens;

pub use fields::{Fields, TokenField, present};
pub use header::{
    API_HEADER, API_VERSION, DEADLINE_HEADER, DESTINATION_HEADER, DP_RANK_HEADER, MODEL_HEADER,
    REQUEST_ID_HEADER, TOKENS_COUNT_HEADER, TOKENS_KEY_HEADER, TOKENS_MODEL_HEADER,
    TOKENS_TOKENIZER_HEADER, budget, deadline_value,
};
pub use ids::{IdList, IdsError, parse_ids, scan_ids, write_ids};
pub use name::{NameError, ReservationId, TokenKey};
pub use object::{MemberEdit, splice_object};
pub use process::{
    Degraded, MAX_CANDIDATES, MAX_REPLY, PROCESS_PATH, ProcessCall, ProcessReply, ProcessRequest,
    ReplyError,
};
pub use refusal::{ErrorBody, ErrorDetail, Fallback, Refusal, StageFailure};
pub use route::{
    Keepalive, MAX_KEEPALIVES, PrefillComplete, ROUTE_PATH, RouteReply, RouteRequest, RouteSource,
    TOKENS_TYPE, WireError,
};
pub use splice::{Splice, SpliceError, Splices};
