//! The Processor over real sockets.
#![cfg(test)]

mod calls;
mod hostile;
mod life;
mod refusals;
mod router;
mod secrets;
mod served;
mod tokens;
mod verify;
