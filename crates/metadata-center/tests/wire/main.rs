//! The service over real sockets.
#![cfg(test)]

mod callers;
mod calls;
mod client;
mod codes;
mod limits;
mod stub;
