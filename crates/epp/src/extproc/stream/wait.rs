//! What a request waits for on its way to a pick: one after the other, and each only where it is needed.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use crate::director::{Asking, PickedElsewhere, Picking, Prepared, Staged, Staging, Waiting};

/// One wait. Dropping it gives up what is waited for.
pub(super) enum Wait {
    /// For its turn.
    Queue(Waiting<Box<Prepared>>),
    /// For a Processor.
    Stage(Box<Staging>),
    /// For a pick that is made elsewhere.
    Pick(Box<Asking>),
}

/// What a wait led to.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Waited {
    Turn(Picking),
    Staged(Box<Staged>),
    Picked(PickedElsewhere),
    /// It was over before.
    Nothing,
}

// === impl Wait ===

impl Wait {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Waited> {
        let or_nothing = |waited: Option<Waited>| waited.unwrap_or(Waited::Nothing);
        match self {
            Self::Queue(waiting) => Pin::new(waiting).poll(cx).map(Waited::Turn),
            Self::Stage(staging) => {
                let staged = Pin::new(staging).poll(cx);
                staged.map(|staged| or_nothing(staged.map(Waited::Staged)))
            }
            Self::Pick(asking) => {
                let picked = Pin::new(asking).poll(cx);
                picked.map(|picked| or_nothing(picked.map(Waited::Picked)))
            }
        }
    }
}
