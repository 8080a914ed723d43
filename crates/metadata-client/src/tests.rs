//! The client against a scripted service, under paused time.

mod cache_calls;
mod compat;
mod faults;
mod reads;
mod saves;
mod writes;
