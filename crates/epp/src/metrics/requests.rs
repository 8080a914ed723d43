//! Requests per model and flow, under today's names and the former ones.
//!
//! ```text
//!  request ─ series() ─► table of the 1000 most recently used ─┐
//!     └────► Running ──► counts of one series (atomics) ◄──────┴─ page, when a scrape asks for it
//! ```
//!
//! A request looks its series up once, under one short lock, and then counts without any. The former names have fewer
//! labels; their values are sums made for the page. What the series that left the table counted is kept for these sums
//! as long as the model has a series at all, so that no counter of a model on the page goes back.

mod definitions;
mod labels;
mod page;
mod queued;
mod running;
mod series;
mod table;

pub(crate) use labels::Labels;
pub(super) use page::{Page, QueuePage};
pub(super) use queued::Outcomes;
pub(crate) use queued::{Outcome, Queued};
pub(crate) use running::Running;
pub(crate) use series::Series;
pub(super) use table::Requests;

#[cfg(test)]
mod tests;
