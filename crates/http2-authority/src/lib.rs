//! HTTP/2 connections whose callers send an authority that no URI may have.
//!
//! Envoy sends the name of its cluster as `:authority` of a gRPC call where its configuration has no other. Istio calls clusters
//! `outbound|9002||epp.llm.svc.cluster.local`, and sets no other. The HTTP/2 server refuses such a request before anything of
//! ours sees it. [`AnyAuthority`] stands between the connection and that server and exchanges the bytes that an authority may
//! not have for others that it may, in place.
//!
//! ```text
//!  TLS or TCP ─► AnyAuthority ─► HTTP/2 server
//!                  walk: preface ─ frames ─ fields: HPACK, the value of `:authority` alone
//!                                                     └─► name: valid, read with other bytes, or refused
//! ```
//!
//! The other bytes have Huffman codes of the same length. So no length of a frame or string changes, nothing moves, and a
//! dynamic table has entries of the sizes that the client gave them. A byte for which there is no such other one leaves its
//! authority as it is. The bytes that the names of clusters have are all exchanged.
//!
//! # Bounds
//! A connection has less than 160 bytes of state. Where the value of an `:authority` is split between reads, what has come of it is
//! held back until it is whole: [`MAX_VALUE`] bytes in [`MAX_FRAMES`] frames, and what is between its parts. Of a payload of DATA
//! nothing is looked at, and of a header block only the first `:authority`. What is not HTTP/2, or is malformed, passes as it is, and
//! the rest of its connection with it: the server answers for it.
//!
//! Bytes without a value that has to be held back are read into the buffer of the server; nothing is allocated or copied for them.

mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod huffman;
mod name;
mod stream;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
mod walk;

pub use stream::AnyAuthority;
pub use walk::{MAX_FRAMES, MAX_VALUE};

#[cfg(test)]
mod tests;
