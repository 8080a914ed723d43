//! The cache in memory, over HTTP and in a real Redis.
#![cfg(test)]

mod faults;
mod setup;
mod suite;
mod tls;
