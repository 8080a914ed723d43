//! Answers to parts of bodies.

use bytes::Bytes;

use super::{MAX_STREAMED, Outputs};
use crate::extproc::message::{BodyMode, Chunk, Output, Part, Phase, Reply, Streamed};

/// Answers a part of a body that may go on as it is.
pub(super) fn answer_body(phase: Phase, mode: BodyMode, chunk: Chunk, outputs: &mut Outputs) {
    if mode == BodyMode::FullDuplexStreamed {
        push_streamed(phase, chunk.bytes, chunk.end, outputs);
    } else {
        outputs.push(Output::Reply(body_reply(phase, Part::Kept)));
    }
}

pub(super) fn body_reply(phase: Phase, part: Part) -> Reply {
    Reply::Body {
        phase,
        route: None,
        part,
    }
}

/// Streams one part after the other, the end with the last.
pub(super) fn push_parts(
    phase: Phase,
    parts: impl IntoIterator<Item = Bytes>,
    end: bool,
    outputs: &mut Outputs,
) {
    let mut last = Bytes::new();
    for part in parts {
        push_streamed(phase, std::mem::replace(&mut last, part), false, outputs);
    }
    push_streamed(phase, last, end, outputs);
}

/// Splits bytes into streamed replies. No bytes and no end: no reply, as none is counted in this mode.
pub(super) fn push_streamed(phase: Phase, mut bytes: Bytes, end: bool, outputs: &mut Outputs) {
    while bytes.len() > MAX_STREAMED {
        let part = Part::Streamed(Streamed {
            bytes: bytes.split_to(MAX_STREAMED),
            end: false,
        });
        outputs.push(Output::Reply(body_reply(phase, part)));
    }
    if end || !bytes.is_empty() {
        let part = Part::Streamed(Streamed { bytes, end });
        outputs.push(Output::Reply(body_reply(phase, part)));
    }
}
