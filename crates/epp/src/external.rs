//! The external stage: a Processor renders and tokenizes prompts, and may have its Router choose the worker.
//!
//! Owns what is asked of the Processor, what its replies mean, and the life cycle of what the Router booked. How a request
//! waits for it, and what the pick is made of, is the director's.
//!
//! ```text
//!  Facts, Switches ─ plan ─► Skip: pick here
//!                       └──► Ask ─► CallProcessor ─► ProcessReply ─ resolve ─► workers or Internal, Tokens
//!                             │                                                    └► for_worker ─► Edit
//!                             └► Reservation: prefill_complete ─► DELETE, kept alive each 15 s ─► CallProcessor
//! ```

mod call;
mod client;
mod edits;
#[cfg(test)]
pub(crate) mod fixtures;
mod label;
mod lifecycle;
mod metrics;
mod plan;
mod processor;
mod resolve;
mod switches;

pub(crate) use call::{Choice, Outgoing, Question, QuestionHead};
pub(crate) use client::{Client, ClientSettings};
pub(crate) use edits::{Found, model_header, removes_ids};
pub(crate) use lifecycle::{LifeCycle, Reservation};
pub(crate) use metrics::{
    ExternalMetrics, Outcome, Overwritten, Pending, PickedBy, Stage, Transfer,
};
pub(crate) use plan::{Ask, Facts, Plan, Skip, plan};
pub(crate) use processor::{CallProcessor, External, NoReply};
pub(crate) use resolve::{Internal, Members, RefusedWorker, Resolution, Tokens, resolve};
pub(crate) use switches::Switches;
