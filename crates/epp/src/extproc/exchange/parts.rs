//! Answers to parts of bodies.

use bytes::Bytes;

use super::{Exchange, MAX_STREAMED, Outputs};
use crate::{
    edit::Edit,
    extproc::message::{BodyMode, Chunk, Output, Part, Phase, Reply, Route, Streamed},
};

// === impl Exchange ===

impl Exchange {
    pub(super) fn answer_response_body(&mut self, chunk: Chunk, outputs: &mut Outputs) {
        if self.transcodes() {
            return self.transcode_body(chunk, outputs);
        }
        let mode = self.modes.response;
        let tap = self.picked.as_mut().and_then(|picked| picked.tap.as_mut());
        let Some(tap) = tap else {
            return answer_body(Phase::Response, mode, chunk, outputs);
        };
        let Chunk { bytes, end } = chunk;
        let changes = tap.changes();
        if mode == BodyMode::FullDuplexStreamed {
            push_parts(Phase::Response, tap.on_chunk(bytes, end), end, outputs);
        } else if changes {
            // In all modes but this one a part is all there is, also where the proxy cut it off.
            let parts = tap.on_chunk(bytes, end || mode != BodyMode::Streamed);
            let body = Bytes::from(parts.concat());
            // Envoy answers 500 where the length does not fit in BUFFERED mode.
            let route = (mode == BodyMode::Buffered).then(|| {
                let mut edit = Edit::default();
                edit.set_header("content-length", body.len().to_string());
                Box::new(Route {
                    edit,
                    ..Route::default()
                })
            });
            outputs.push(Output::Reply(Reply::Body {
                phase: Phase::Response,
                route,
                part: Part::Replaced(body),
            }));
        } else {
            tap.on_chunk(bytes, end);
            outputs.push(Output::Reply(body_reply(Phase::Response, Part::Kept)));
        }
    }

    /// What the tap still holds goes before the trailers; only in full-duplex mode is there a place for it.
    pub(super) fn end_by_trailers(&mut self, outputs: &mut Outputs) {
        if self.transcodes() {
            return self.transcode_end_by_trailers(outputs);
        }
        let tap = self.picked.as_mut().and_then(|picked| picked.tap.as_mut());
        let Some(tap) = tap else { return };
        let rest = tap.on_chunk(Bytes::new(), true);
        if self.modes.response == BodyMode::FullDuplexStreamed {
            push_parts(Phase::Response, rest, false, outputs);
        }
    }
}

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
