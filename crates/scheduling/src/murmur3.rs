//! `MurmurHash3` x64-128 with seed 0, of text that comes in parts, and the hashes of a prompt's beginnings.
//!
//! ```text
//!  text   | 512 bytes | 512 bytes | 300 bytes |
//!  hashes            h0          h1          h2      each of all bytes before it
//! ```
//!
//! Whoever has cached `h1` has cached `h0`, and who lacks it cannot have `h2`.

use hashcrew::murmur::Murmur3X64_128;

/// Bytes of a chunk of a prompt.
pub const CHUNK: usize = 512;

/// 8192: 4 MiB of text, a million tokens. What comes after it has no hash.
pub const MAX_CHUNKS: usize = 8192;

/// The state after some bytes. Copies go on on their own.
#[derive(Clone, Debug, Default)]
pub struct Hasher(Murmur3X64_128);

/// Hashes the beginnings of a text, chunk by chunk.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    hasher: Hasher,
    /// Bytes so far, those without a hash included.
    bytes: u64,
    /// Of the chunks that are full.
    hashes: Vec<u64>,
}

// === impl Hasher ===

impl Hasher {
    /// Adds bytes. How they are split over calls makes no difference.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far; its first 64 bits are the lower ones.
    pub fn finish(&self) -> u128 {
        self.0.digest()
    }

    /// The first 64 bits of the hash.
    pub fn finish_64(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the half that is wanted")]
        let first = self.finish() as u64;
        first
    }
}

// === impl Chunks ===

impl Chunks {
    /// Adds a part of the text. How it is split makes no difference.
    pub fn update(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let room = CHUNK - self.in_chunk();
            let (now, later) = text.split_at(room.min(text.len()));
            if self.hashes.len() == MAX_CHUNKS {
                self.bytes += text.len() as u64;
                return;
            }
            self.hasher.update(now);
            self.bytes += now.len() as u64;
            if now.len() == room {
                self.hashes.push(self.hasher.finish_64());
            }
            text = later;
        }
    }

    /// Bytes of the text so far, also of what has no hash.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A hash for each chunk, up to [`MAX_CHUNKS`]; the last chunk may be a part of one. None of no text.
    pub fn finish(mut self) -> Vec<u64> {
        if self.in_chunk() > 0 && self.hashes.len() < MAX_CHUNKS {
            self.hashes.push(self.hasher.finish_64());
        }
        self.hashes
    }

    fn in_chunk(&self) -> usize {
        // less than a chunk
        usize::try_from(self.bytes % CHUNK as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn hashes(text: &[u8]) -> Vec<u64> {
        let mut chunks = Chunks::default();
        chunks.update(text);
        chunks.finish()
    }

    #[test]
    fn the_hash_has_128_bits() {
        let mut hasher = Hasher::default();
        hasher.update(b"hello");
        assert_eq!(hasher.finish(), 0x5b1e_906a_48ae_1d19_cbd8_a7b3_41bd_9b02);
    }

    #[rstest]
    #[case(b"", &[])]
    #[case(b"hello", &[14_688_674_573_012_802_306])]
    #[case(&[b'a'; 512], &[13_071_765_710_931_616_942])]
    #[case(&[b'a'; 513], &[13_071_765_710_931_616_942, 5_381_757_169_692_568_846])]
    #[case(&[b'a'; 1500],
        &[13_071_765_710_931_616_942, 688_797_103_392_425_890, 10_720_826_874_699_873_353])]
    #[case("请用Python实现快排".as_bytes(), &[8_563_645_160_726_059_311])]
    fn known_texts_have_their_hashes(#[case] text: &[u8], #[case] want: &[u64]) {
        assert_eq!(hashes(text), want);
    }

    #[test]
    fn a_text_past_the_last_hash_is_only_counted() {
        let mut chunks = Chunks::default();
        for _ in 0..=MAX_CHUNKS {
            chunks.update(&[b'a'; CHUNK]);
        }
        chunks.update(b"and more");
        assert_eq!(chunks.bytes(), (CHUNK * (MAX_CHUNKS + 1) + 8) as u64);
        let long = chunks.finish();
        assert_eq!(long, hashes(&vec![b'a'; CHUNK * MAX_CHUNKS]));
        assert_eq!(long.len(), MAX_CHUNKS);
    }

    proptest! {
        #[test]
        fn any_split_of_a_text_has_the_same_hashes(
            text in proptest::collection::vec(any::<u8>(), 0..2000),
            cuts in proptest::collection::vec(0..2000_usize, 0..12),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.push(text.len());
            cuts.sort_unstable();
            let (mut chunks, mut from) = (Chunks::default(), 0);
            for to in cuts {
                chunks.update(&text[from..to]);
                from = to;
            }
            prop_assert_eq!(chunks.finish(), hashes(&text));
        }
    }
}
