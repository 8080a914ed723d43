//! A real Redis, or Valkey, for tests, the demo and benchmarks.
//!
//! [`find`] finds the program, [`Server`] runs it in a directory of its own, on a Unix socket, without files that
//! outlive it. The crate knows nothing of what is stored there.

mod find;
mod server;

pub use find::{MissingRedis, find};
pub use server::{Server, StartError};
