//! The Huffman code of header strings (RFC 7541, section 5.2 and appendix B).

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// The number of bits of each byte's code. They give the codes: shorter ones come first, and those of one length are consecutive numbers in
/// the order of their bytes.
#[rustfmt::skip]
const LENGTHS: [usize; BYTES] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const BYTES: usize = 256;

/// One more than the longest code has bits.
const END: usize = 31;

/// The codes that follow from the lengths.
static CODES: Codes = Codes::new();

struct Codes {
    /// The code of each byte.
    of: [u32; BYTES],
    /// All bytes, in the order of their codes.
    bytes: [u8; BYTES],
    /// The first code of each length.
    first: [u32; END],
    /// How many codes of each length there are.
    count: [u32; END],
    /// Where in `bytes` those of each length begin.
    begin: [usize; END],
}

/// The number of bits of this byte's code.
#[cfg(test)]
pub(crate) fn bits(byte: u8) -> u32 {
    let (_, length) = CODES.code(byte);
    length
}

/// The text in these bytes; `None` where they are no such code, or it does not end as it should.
pub(crate) fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    // the shortest code has 5 bits
    let mut text = Vec::with_capacity(encoded.len().saturating_mul(8) / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in encoded {
        let mut rest = *byte;
        for _ in 0..8 {
            code = (code << 1) | u32::from(rest >> 7);
            rest <<= 1;
            length = length.saturating_add(1);
            let nth = code.wrapping_sub(*CODES.first.get(length)?);
            if nth < *CODES.count.get(length)? {
                let at = CODES
                    .begin
                    .get(length)?
                    .checked_add(usize::try_from(nth).ok()?)?;
                text.push(*CODES.bytes.get(at)?);
                (code, length) = (0, 0);
            }
        }
    }
    // the beginning of a code of nothing but ones
    let padding = u32::try_from(length).ok()?;
    (padding < 8 && code == ones(padding)).then_some(text)
}

/// The text in the Huffman code.
pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    // the last `waiting` bits of it are not written yet
    let (mut bits, mut waiting) = (0_u64, 0_u32);
    for byte in text {
        let (code, length) = CODES.code(*byte);
        bits = bits.wrapping_shl(length) | u64::from(code);
        waiting = waiting.saturating_add(length);
        while waiting >= 8 {
            waiting = waiting.saturating_sub(8);
            encoded.push(last_byte(bits.wrapping_shr(waiting)));
        }
    }
    if waiting > 0 {
        let missing = 8_u32.saturating_sub(waiting);
        encoded.push(last_byte(
            bits.wrapping_shl(missing) | u64::from(ones(missing)),
        ));
    }
    encoded
}

/// A number of this many bits, which are all 1; fewer than 32.
fn ones(bits: u32) -> u32 {
    !u32::MAX.wrapping_shl(bits)
}

fn last_byte(bits: u64) -> u8 {
    let [.., last] = bits.to_be_bytes();
    last
}

// === impl Codes ===

impl Codes {
    /// The code of this byte, and the number of its bits.
    fn code(&self, byte: u8) -> (u32, u32) {
        let at = usize::from(byte);
        let length = LENGTHS.get(at).and_then(|bits| u32::try_from(*bits).ok());
        // there is an element for each byte
        (
            self.of.get(at).copied().unwrap_or_default(),
            length.unwrap_or_default(),
        )
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "the compiler evaluates it, and refuses what would panic"
    )]
    const fn new() -> Self {
        let mut codes = Self {
            of: [0; BYTES],
            bytes: [0; BYTES],
            first: [0; END],
            count: [0; END],
            begin: [0; END],
        };
        let (mut code, mut place, mut length) = (0, 0, 1);
        while length < END {
            code <<= 1;
            codes.first[length] = code;
            codes.begin[length] = place;
            // the same number twice, since constants cannot be converted
            let (mut at, mut byte) = (0, 0_u8);
            while at < BYTES {
                if LENGTHS[at] == length {
                    codes.of[at] = code;
                    codes.bytes[place] = byte;
                    codes.count[length] += 1;
                    code += 1;
                    place += 1;
                }
                at += 1;
                byte = byte.wrapping_add(1);
            }
            length += 1;
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use rstest::rstest;

    use super::*;

    /// The examples of RFC 7541, appendix C.4, and the first bytes of others.
    #[rstest]
    #[case(b"www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff])]
    #[case(b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf])]
    #[case(b"custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf])]
    #[case(b"|", &[0xff, 0x9f])]
    #[case(b"", &[])]
    fn known_texts_have_known_codes(#[case] text: &[u8], #[case] encoded: &[u8]) {
        assert_eq!(encode(text), encoded);
        assert_eq!(decode(encoded).as_deref(), Some(text));
    }

    #[rstest]
    #[case::zeros_at_the_end(&[0b0000_0000])]
    #[case::a_byte_of_padding(&[0xff])]
    #[case::end_of_string(&[0xff, 0xff, 0xff, 0xff])]
    #[case::half_a_code(&[0xff, 0xf8])]
    fn what_is_no_such_code_is_not_decoded(#[case] encoded: &[u8]) {
        assert_eq!(decode(encoded), None);
    }

    proptest! {
        #[test]
        fn any_text_is_decoded_again(text in vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&text)), Some(text));
        }
    }
}
