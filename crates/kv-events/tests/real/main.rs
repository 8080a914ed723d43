//! Streams against sockets of the real ZeroMQ library.
#![cfg(test)]

mod connections;
mod faults;
mod gaps;
mod support;
