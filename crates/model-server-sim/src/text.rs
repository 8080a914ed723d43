//! Made-up text and its tokens: four bytes a token, the same text for the same seed and prompt.

use std::num::NonZeroU32;

use xxhash_rust::xxh64::xxh64;

use crate::engine::{self, Finish};

/// Bytes of text that count as one token.
const TOKEN_BYTES: usize = engine::TOKEN_BYTES as usize;

const CONSONANTS: &[u8; 16] = b"bcdfghklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";

/// The answer to one request, cut into tokens; it has at least one token, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    text: String,
    /// Where each token ends, in bytes; always on a character boundary.
    ends: Vec<usize>,
    finish: Finish,
}

/// Tokens of a text of this many bytes; the last may be short.
pub(crate) fn count_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX)
}

/// The tokens of a text as numbers: its bytes, four at a time, the lowest first. So text and ids name the same
/// prefix, but for a last token that is short.
pub(crate) fn token_ids(text: &[u8]) -> Vec<u32> {
    text.chunks(TOKEN_BYTES)
        .map(|token| {
            let bytes = token.iter().rev();
            bytes.fold(0, |id, byte| id << 8 | u32::from(*byte))
        })
        .collect()
}

// === impl Output ===

impl Output {
    /// `tokens` pseudo-words that depend on `seed` alone.
    pub(crate) fn random(seed: u64, tokens: NonZeroU32, finish: Finish) -> Self {
        let mut text = String::new();
        let mut ends = Vec::new();
        for index in 0..tokens.get() {
            let bits = xxh64(&index.to_le_bytes(), seed).to_le_bytes();
            text.push(pick(CONSONANTS, bits[0]));
            text.push(pick(VOWELS, bits[1]));
            text.push(pick(CONSONANTS, bits[2]));
            text.push(' ');
            ends.push(text.len());
        }
        Self { text, ends, finish }
    }

    /// The text itself, cut off after `limit` tokens. A character is never split: a token has at most
    /// four bytes.
    pub(crate) fn echo(source: &str, limit: NonZeroU32) -> Self {
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        let mut ends = Vec::new();
        let (mut start, mut end) = (0, 0);
        for (at, character) in source.char_indices() {
            let next = at + character.len_utf8();
            if next - start > TOKEN_BYTES {
                ends.push(end);
                start = end;
            }
            end = next;
        }
        ends.push(end);
        let finish = if ends.len() > limit {
            Finish::Length
        } else {
            Finish::Stop
        };
        ends.truncate(limit);
        let kept = ends.last().copied().unwrap_or_default();
        Self {
            text: source.get(..kept).unwrap_or_default().to_owned(),
            ends,
            finish,
        }
    }

    /// Tokens in it.
    pub(crate) fn tokens(&self) -> NonZeroU32 {
        u32::try_from(self.ends.len())
            .ok()
            .and_then(NonZeroU32::new)
            .unwrap_or(NonZeroU32::MIN)
    }

    /// How it ends.
    pub(crate) fn finish(&self) -> Finish {
        self.finish
    }

    /// All of it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// All of it up to a token, counted from 0.
    pub(crate) fn up_to(&self, index: u32) -> &str {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let end = self.ends.get(index).copied().unwrap_or(self.text.len());
        self.text.get(..end).unwrap_or_default()
    }

    /// One token, counted from 0; empty beyond the end.
    pub(crate) fn token(&self, index: u32) -> &str {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let end = self.ends.get(index).copied().unwrap_or(self.text.len());
        let start = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied();
        self.text
            .get(start.unwrap_or_default()..end)
            .unwrap_or_default()
    }
}

fn pick<const N: usize>(letters: &[u8; N], bits: u8) -> char {
    char::from(letters[usize::from(bits) % N])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn limit(tokens: u32) -> NonZeroU32 {
        NonZeroU32::new(tokens).expect("not zero")
    }

    #[test]
    fn random_text_depends_on_the_seed_alone() {
        let output = Output::random(7, limit(5), Finish::Stop);
        assert_eq!(output, Output::random(7, limit(5), Finish::Stop));
        assert_ne!(output, Output::random(8, limit(5), Finish::Stop));
        assert_eq!((output.tokens(), output.text().len()), (limit(5), 20));
    }

    #[rstest]
    #[case("", &[])]
    #[case("abcd", &[0x6463_6261])]
    #[case("abcde", &[0x6463_6261, 0x65])]
    fn token_ids_are_the_bytes(#[case] text: &str, #[case] ids: &[u32]) {
        assert_eq!(token_ids(text.as_bytes()), ids);
    }

    #[rstest]
    #[case("", &[""], Finish::Stop)]
    #[case("abcdefgh", &["abcd", "efgh"], Finish::Stop)]
    #[case("ab\u{1F980}c", &["ab", "\u{1F980}", "c"], Finish::Stop)]
    #[case("abcdefghijklm", &["abcd", "efgh", "ijkl"], Finish::Length)]
    fn echo_is_cut_at_characters(
        #[case] source: &str,
        #[case] tokens: &[&str],
        #[case] finish: Finish,
    ) {
        let output = Output::echo(source, limit(3));
        let made: Vec<_> = (0..output.tokens().get())
            .map(|index| output.token(index))
            .collect();
        assert_eq!((made.as_slice(), output.finish()), (tokens, finish));
    }

    proptest! {
        #[test]
        fn tokens_joined_are_the_text(source in ".{0,60}", max in 1u32..20) {
            let output = Output::echo(&source, limit(max));
            let joined: String = (0..output.tokens().get()).map(|index| output.token(index)).collect();
            prop_assert_eq!(&joined, output.text());
            prop_assert!(source.starts_with(&joined) && output.tokens().get() <= max);
            prop_assert!(output.finish() == Finish::Length || joined == source);
        }
    }
}
