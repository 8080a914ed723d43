//! ZeroMQ's transport protocol (ZMTP 3.0 and 3.1, mechanism NULL) over TCP.
//!
//! Owns the bytes of one connection: greeting, frames, heartbeats, subscriptions; and who publishes to whom. Knows nothing
//! of what messages mean, and never connects again by itself: whoever has the connection sees its end.
//!
//! ```text
//!  connect(address, Role::Subscriber | Role::Dealer) ──► Connection ◄── serve, Publisher
//!                                                          │  receive, send: one task, no queue but the buffers
//!                                        handshake ─ command ─ frame: pure
//! ```
//!
//! # Bounds
//! A frame or message above [`Limits::max_message`] is refused by its announced length, before room is made for it; there
//! is no queue: while nobody receives, TCP holds the peer back. Connecting takes [`Limits::handshake`] at most, and a peer
//! that is silent for 30 s is gone.

mod command;
mod connection;
mod error;
mod frame;
mod handshake;
mod message;
mod server;

pub use connection::{Connection, Limits, Received, connect};
pub use error::{Error, ProtocolError};
pub use handshake::Role;
pub use message::{MAX_FRAMES, Message};
pub use server::{Publisher, serve};
