//! Sockets of the real ZeroMQ library, for tests.
//!
//! [`Peer`] is a process with such sockets, which it opens, uses and closes as it is told, and which can be killed as an
//! engine can. The library is [found](find) like other tools; Python, which has it loaded, is needed anyway.

mod find;
mod peer;

pub use find::{MissingLibrary, find};
pub use peer::{Kind, Peer, PeerError, Socket};
