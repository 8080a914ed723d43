//! The service over real sockets.
#![cfg(test)]

mod calls;
mod client;
mod codes;
mod limits;
mod stub;
