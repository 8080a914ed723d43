//! The simulator as its clients see it.
#![cfg(test)]

mod admin;
mod apis;
mod completions;
mod connections;
mod errors;
mod fleet;
mod kv_events;
mod responses;
mod support;
mod tokens;
mod triton;
