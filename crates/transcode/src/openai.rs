//! The OpenAI API, as far as it can be put in the terms of a server that takes and gives text.

mod request;
mod response;
mod template;

pub(crate) use request::{Asked, Sampling};
pub(crate) use response::{DONE, Reply};

/// Which API was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Api {
    /// `chat/completions`
    #[default]
    Chat,
    /// `completions`
    Completions,
}
