//! What the engine is given and what it tells.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use super::BlockHash;

/// The bounds of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that make tokens at the same time.
    pub max_running: NonZeroUsize,
    /// Sequences that wait for a place; one more is [`Rejected::QueueFull`].
    pub max_waiting: usize,
    /// Tokens in one KV-cache block.
    pub block_tokens: NonZeroU32,
    /// Blocks of the KV cache.
    pub blocks: NonZeroU32,
    /// LoRA adapters that running sequences can use at the same time.
    pub max_adapters: NonZeroUsize,
}

/// Why a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The text was complete.
    Stop,
    /// The request's or the model's token limit was reached.
    Length,
}

/// A sequence to be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The full blocks of the prompt, for the prefix cache; as many as fit into `prompt_tokens`, or none.
    pub prefix: Vec<BlockHash>,
    /// What those blocks are made of, if somebody is told of what the cache does.
    pub content: Option<Content>,
    /// The LoRA adapter; `None`: the base model.
    pub adapter: Option<Arc<str>>,
    /// Tokens that will be made: known here, because the text is made up before it is "computed". 0 for
    /// an embedding.
    pub output_tokens: u32,
    /// How it will end.
    pub finish: Finish,
}

/// What the full blocks of a prompt are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Their tokens.
    pub ids: Vec<u32>,
    /// `cache_salt` of the request, or empty.
    pub salt: String,
}

/// Names one sequence; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceId(pub(super) u64);

/// What happened to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It left the queue.
    Started {
        /// Which one.
        id: SequenceId,
        /// Time from arrival to start.
        queued: Duration,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Those of them that the prefix cache held.
        cached_tokens: u32,
    },
    /// Its prompt is computed.
    Prefilled {
        /// Which one.
        id: SequenceId,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Time from start to now.
        took: Duration,
    },
    /// It made its first token.
    FirstToken {
        /// Which one.
        id: SequenceId,
        /// Time from arrival to this token.
        since_arrival: Duration,
    },
    /// It made another token.
    Token {
        /// Which one.
        id: SequenceId,
        /// Tokens made so far.
        produced: u32,
        /// Time since the token before.
        since_last: Duration,
    },
    /// It made its last token (told before, as a token) and gave its place back.
    Finished {
        /// Which one.
        id: SequenceId,
        /// How it ended.
        finish: Finish,
        /// Time from arrival to the end.
        since_arrival: Duration,
        /// Time from the first token to the end.
        decode: Duration,
    },
    /// It was cancelled, waiting or running, and gave its place back.
    Aborted {
        /// Which one.
        id: SequenceId,
        /// Time from arrival to the end.
        since_arrival: Duration,
    },
}

/// Why work is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Everything runs and the queue is full: later there may be room.
    #[error("{waiting} requests are waiting already, which is the limit: try again later")]
    QueueFull {
        /// Length of the queue.
        waiting: usize,
    },
    /// It would never fit into the KV cache.
    #[error(
        "prompt and output need {needed} KV-cache blocks, the cache has {blocks}: shorten the prompt or the output"
    )]
    TooLarge {
        /// Blocks for prompt and output.
        needed: u32,
        /// Blocks that exist.
        blocks: u32,
    },
}

// === impl Rejected ===

impl Rejected {
    /// Stable: metric label and error code alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue-full",
            Self::TooLarge { .. } => "too-large",
        }
    }
}
