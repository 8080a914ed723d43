//! Messages of engines: a number and a batch of events, behind frames that do not matter.
//!
//! Subscribers get a topic before them. Replays have an empty frame before them, and in vLLM since 0.26, in `SGLang` and in
//! TensorRT-LLM the topic behind that.

use bytes::Bytes;
use zmtp::Message;

/// A batch that is not read yet, and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) number: u64,
    pub(crate) batch: Bytes,
}

/// Ends a replay, with an empty batch.
pub(crate) const END: u64 = u64::MAX;

// === impl Payload ===

impl Payload {
    /// The sequence number of a message; none if the last frame but one is not a number of 8 bytes.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let [.., number, batch] = message.frames() else {
            return None;
        };
        Some(Self {
            number: u64::from_be_bytes(number.as_ref().try_into().ok()?),
            batch: batch.clone(),
        })
    }

    /// The same without what it was received with, of which it is a part: topic, number and maybe other messages.
    pub(crate) fn alone(self) -> Self {
        Self {
            batch: Bytes::copy_from_slice(&self.batch),
            ..self
        }
    }

    /// It ends a replay.
    pub(crate) fn is_end(&self) -> bool {
        self.number == END && self.batch.is_empty()
    }
}

/// Asks for all batches from `from` on.
pub(crate) fn ask(from: u64) -> Message {
    [Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_number_of_eight_bytes_behind_its_topic() {
        let frame = Bytes::from_static;
        let message = |number| Message::from([frame(b"kv"), frame(number), frame(b"x")]);
        let payload = Payload::of(&message(&[0, 0, 0, 0, 0, 0, 1, 2])).unwrap();
        assert_eq!((payload.number, &payload.batch[..]), (258, &b"x"[..]));
        assert!(!payload.is_end());
        assert_eq!(Payload::of(&message(&[1])), None);
        assert_eq!(Payload::of(&[frame(b"x")].into()), None);
        for end in [
            Message::from([frame(b""), frame(&[0xff; 8]), frame(b"")]),
            Message::from([frame(b""), frame(b""), frame(&[0xff; 8]), frame(b"")]),
        ] {
            assert!(Payload::of(&end).unwrap().is_end());
        }
    }
}
