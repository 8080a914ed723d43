//! Frames: a byte of flags, a length, a body.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::ProtocolError;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Flags and a long length.
const MAX_HEADER: usize = 9;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) body: Bytes,
    /// The next frame is of the same message.
    pub(crate) has_more: bool,
    /// It is for the connection itself.
    pub(crate) is_command: bool,
}

/// Takes the frame at the beginning of `input`; none if it is not all there. A length above `max` is refused as soon as it
/// is there.
pub(crate) fn take(input: &mut BytesMut, max: usize) -> Result<Option<Frame>, ProtocolError> {
    let mut ahead: &[u8] = input;
    let Ok(flags) = ahead.try_get_u8() else {
        return Ok(None);
    };
    let is_command = flags & COMMAND != 0;
    let has_more = flags & MORE != 0;
    if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && has_more) {
        return Err(ProtocolError::Malformed("flags of a frame"));
    }
    let len = if flags & LONG == 0 {
        ahead.try_get_u8().map(u64::from)
    } else {
        ahead.try_get_u64()
    };
    let Ok(announced) = len else {
        return Ok(None);
    };
    let len = usize::try_from(announced).ok().filter(|len| *len <= max);
    let len = len.ok_or(ProtocolError::TooLarge(announced, max))?;
    if ahead.len() < len {
        return Ok(None);
    }
    let header = input.len().saturating_sub(ahead.len());
    input.advance(header);
    Ok(Some(Frame {
        body: input.split_to(len).freeze(),
        has_more,
        is_command,
    }))
}

/// Appends a frame.
pub(crate) fn put(body: &[u8], has_more: bool, is_command: bool, output: &mut BytesMut) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(has_more, MORE) | flag(is_command, COMMAND);
    output.reserve(body.len().saturating_add(MAX_HEADER));
    if let Ok(len) = u8::try_from(body.len()) {
        output.put_u8(flags);
        output.put_u8(len);
    } else {
        output.put_u8(flags | LONG);
        output.put_u64(body.len() as u64);
    }
    output.put_slice(body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_come_back_whole_from_any_pieces(
            bodies in proptest::collection::vec((0_usize..700, any::<bool>()), 1..6),
            piece in 1_usize..40,
        ) {
            let mut wire = BytesMut::new();
            for (len, has_more) in &bodies {
                put(&vec![7; *len], *has_more, false, &mut wire);
            }
            let (mut input, mut found) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(piece) {
                input.extend_from_slice(piece);
                while let Some(frame) = take(&mut input, 1000).unwrap() {
                    found.push((frame.body.len(), frame.has_more));
                }
            }
            prop_assert_eq!(found, bodies);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn no_bytes_make_it_fail_or_make_room_for_what_is_only_announced(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take(&mut input, 50) {}
            prop_assert!(input.capacity() <= 200);
        }
    }

    #[test]
    fn a_frame_above_the_bound_is_refused_by_its_length_alone() {
        let mut wire = BytesMut::new();
        wire.put_u8(LONG);
        wire.put_u64(1 << 40);
        assert_eq!(
            take(&mut wire, 64 << 20),
            Err(ProtocolError::TooLarge(1 << 40, 64 << 20))
        );
        let mut whole = BytesMut::new();
        put(&[1; 300], false, false, &mut whole);
        assert!(take(&mut whole.clone(), 300).unwrap().is_some());
        let error = take(&mut whole, 299);
        assert_eq!(error, Err(ProtocolError::TooLarge(300, 299)));
    }

    #[test]
    fn flags_that_nothing_defines_are_refused() {
        for flags in [8_u8, 0x80, COMMAND | MORE] {
            let mut wire = BytesMut::from(&[flags, 0][..]);
            let error = Err(ProtocolError::Malformed("flags of a frame"));
            assert_eq!(take(&mut wire, 10), error, "{flags}");
        }
    }
}
