//! The client against a scripted service, under paused time.

mod compat;
mod faults;
mod reads;
mod saves;
mod writes;
