//! Requests and responses between what clients speak and what model servers speak.
//!
//! Owns the names of protocols and backends, and what happens to the bytes between them: bytes in, bytes out.
//! Knows no HTTP beyond a path, a status and a content type, no clock and no randomness: ids and times are given.
//!
//! ```text
//!  client                                                                        model server
//!  body ──► read_request ──► RequestData (the pick) ──► encode_request ──► Edit: path, body ──►
//!  body ◄── Piece ◄── read_response ◄────────────────── read_response_headers ◄────────────────
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod backend;
mod error;
mod events;
mod openai;
mod passthrough;
mod transcoder;
mod triton;

pub use backend::{
    Backend, ChatTemplate, Protocol, StreamOutput, Transcoders, Triton, TrtLlm, Wire,
};
pub use error::{Failure, Refusal, error_body};
pub use transcoder::{
    BodyEdit, Call, Edit, Piece, RequestData, ResponseHead, Target, Transcoder, Usage, transcoder,
};
