//! What a source reports, and what a source is.

use std::{collections::VecDeque, future::Future};

use futures::{StreamExt, stream, stream::BoxStream};
use scheduling::Member;

/// A source of members.
pub trait Discovery: Send {
    /// Follows the source from now on, for ever. To be called in a tokio runtime.
    fn updates(self: Box<Self>) -> Updates;
}

/// Never ends.
pub type Updates = BoxStream<'static, Update>;

/// One thing that was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Everything of this kind was read.
    Listed(Kind),
    /// All members, whenever they changed; none is as good as any number. The first one means that they are known.
    Members(Vec<Member>),
    /// There is no such pool: it has no members until the next [`Update::Members`].
    Gone {
        /// `namespace/name`.
        pool: String,
    },
    /// The source could not be read. The members stay, a retry follows by itself.
    Failed {
        /// What was read.
        kind: Kind,
        /// Stable, for labels.
        reason: &'static str,
        /// What went wrong, for a person.
        error: String,
    },
    /// An object or entry is not as it should be. The others count as they are.
    Odd {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
        /// What is wrong and what becomes of it, for a person.
        error: String,
    },
}

/// What sources read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The InferencePool.
    Pool,
    /// The pods.
    Pod,
    /// The file of endpoints.
    File,
    /// InferenceObjectives.
    Objective,
    /// InferenceModelRewrites.
    Rewrite,
    /// InferenceModels.
    Model,
}

/// Updates that wait to be read; emptied before the source is asked for more, so at most what one step adds.
pub(crate) type Outbox<U = Update> = VecDeque<U>;

/// A source that goes from one event to the next.
pub(crate) trait Steps<U = Update>: Send + 'static {
    /// Waits for the next event and reports what it changed, which may be nothing.
    fn step(&mut self, out: &mut Outbox<U>) -> impl Future<Output = ()> + Send;
}

// === impl Kind ===

impl Kind {
    /// Stable: metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "InferencePool",
            Self::Pod => "Pod",
            Self::File => "file",
            Self::Objective => "InferenceObjective",
            Self::Rewrite => "InferenceModelRewrite",
            Self::Model => "InferenceModel",
        }
    }
}

/// The stream of what the steps report.
pub(crate) fn updates<U: Send + 'static>(steps: impl Steps<U>) -> BoxStream<'static, U> {
    let begin = (steps, Outbox::<U>::new());
    let next = |(mut steps, mut out): (_, Outbox<U>)| async move {
        loop {
            if let Some(update) = out.pop_front() {
                return Some((update, (steps, out)));
            }
            Steps::step(&mut steps, &mut out).await;
        }
    };
    stream::unfold(begin, next).boxed()
}
