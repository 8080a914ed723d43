//! Where a prompt may be cut so that its parts are encoded by themselves, and the ids of parts seen before.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use aho_corasick::{AhoCorasick, MatchKind};
use quick_cache::{Weighter, sync::Cache};
use tokenizers::AddedToken;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bytes that a part takes beside its ids: its key, its pointers, its place in the table and in the queues.
const OVERHEAD: u64 = 96;

/// Ids of a part that are expected when the table is laid out: those of a short turn.
const LIKELY_IDS: u64 = 64;

/// The ids of parts of prompts, of all models together. Cheap to clone.
///
/// Its policy keeps what is seen again over what is only recent: one long prompt does not push out the system prompts.
#[derive(Clone, Debug)]
pub struct SegmentCache {
    parts: Arc<Cache<u128, Arc<[u32]>, ByBytes>>,
    /// By chance, at start: nobody can find two texts with the same key.
    seed: u64,
    counts: Arc<Counts>,
}

/// Bytes of text that were encoded, and that were not because their ids were known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedBytes {
    /// By the tokenizer.
    pub cold: u64,
    /// From the cache.
    pub cached: u64,
}

#[derive(Debug, Default)]
struct Counts {
    cold: AtomicU64,
    cached: AtomicU64,
}

#[derive(Clone, Debug)]
struct ByBytes;

/// Finds the places behind added tokens at which a prompt may be cut.
#[derive(Debug)]
pub(crate) struct Cutter {
    finder: AhoCorasick,
    /// By pattern: no rule about its neighbours reaches over its end.
    cuts: Vec<bool>,
}

// === impl SegmentCache ===

impl SegmentCache {
    /// One of at most `max_bytes`.
    pub fn new(max_bytes: u64, seed: u64) -> Self {
        let parts = max_bytes / (OVERHEAD + LIKELY_IDS * 4);
        let parts = usize::try_from(parts).unwrap_or(usize::MAX).max(1);
        Self {
            parts: Arc::new(Cache::with_weighter(parts, max_bytes, ByBytes)),
            seed,
            counts: Arc::default(),
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.parts.weight()
    }

    /// Since it was made.
    pub fn encoded(&self) -> EncodedBytes {
        EncodedBytes {
            cold: self.counts.cold.load(Relaxed),
            cached: self.counts.cached.load(Relaxed),
        }
    }

    /// The ids of `part` for the tokenizer of this number; `encode` makes those that are not known.
    pub(crate) fn get<E>(
        &self,
        tokenizer: u64,
        part: &str,
        encode: impl FnOnce(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Arc<[u32]>, E> {
        let key = xxh3_128_with_seed(part.as_bytes(), self.seed ^ tokenizer);
        let bytes = u64::try_from(part.len()).unwrap_or(u64::MAX);
        if let Some(ids) = self.parts.get(&key) {
            self.counts.cached.fetch_add(bytes, Relaxed);
            return Ok(ids);
        }
        let ids: Arc<[u32]> = encode(part)?.into();
        self.counts.cold.fetch_add(bytes, Relaxed);
        self.parts.insert(key, ids.clone());
        Ok(ids)
    }

    /// Text that went past it.
    pub(crate) fn count_cold(&self, text: &str) {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.counts.cold.fetch_add(bytes, Relaxed);
    }
}

// === impl ByBytes ===

impl Weighter<u128, Arc<[u32]>> for ByBytes {
    fn weight(&self, _: &u128, ids: &Arc<[u32]>) -> u64 {
        u64::try_from(size_of_val(&**ids))
            .unwrap_or(u64::MAX)
            .saturating_add(OVERHEAD)
    }
}

// === impl Cutter ===

impl Cutter {
    /// None: there is nothing to cut at. All tokens that are found before normalization are looked for, as one may
    /// begin inside of another.
    pub(crate) fn new<'a>(tokens: impl IntoIterator<Item = &'a AddedToken>) -> Option<Self> {
        let mut tokens: Vec<&AddedToken> = tokens
            .into_iter()
            .filter(|token| !token.normalized && !token.content.is_empty())
            .collect();
        tokens.sort_by(|a, b| a.content.cmp(&b.content));
        let cuts: Vec<bool> = tokens
            .iter()
            .map(|token| token.special && !token.lstrip && !token.rstrip && !token.single_word)
            .collect();
        if !cuts.contains(&true) {
            return None;
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| token.content.as_str()))
            .ok()?;
        Some(Self { finder, cuts })
    }

    /// The parts of a text, in order, none empty.
    pub(crate) fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let cuts = self
            .finder
            .find_iter(text)
            .filter(|found| self.cuts.get(found.pattern().as_usize()) == Some(&true))
            .map(|found| found.end());
        let mut from = 0;
        cuts.chain([text.len()])
            .filter_map(move |to| {
                let part = text.get(from..to);
                from = to;
                part
            })
            .filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn mk_token(content: &str) -> AddedToken {
        AddedToken::from(content, true)
    }

    fn parts<'a>(tokens: &[AddedToken], text: &'a str) -> Vec<&'a str> {
        let cutter = Cutter::new(tokens).unwrap();
        let parts = cutter.parts(text);
        let lengths: Vec<usize> = parts.map(str::len).collect();
        let mut rest = text;
        let cut = |len: usize| {
            let (part, after) = rest.split_at(len);
            rest = after;
            part
        };
        lengths.into_iter().map(cut).collect()
    }

    #[test]
    fn a_text_is_cut_behind_its_tokens() {
        let tokens = [mk_token("<s>"), mk_token("</s>")];
        assert_eq!(parts(&tokens, "<s>a</s>b<s>"), ["<s>", "a</s>", "b<s>"]);
        assert_eq!(parts(&tokens, "plain"), ["plain"]);
        assert_eq!(parts(&tokens, ""), [""; 0]);
    }

    #[test]
    fn a_longer_token_hides_the_one_inside_of_it() {
        let tokens = [
            mk_token("<s>"),
            mk_token("<s><s>").single_word(true),
            mk_token("s><").lstrip(true),
        ];
        assert_eq!(parts(&tokens, "<s><s>a<s>b"), ["<s><s>a<s>", "b"]);
    }

    #[test]
    fn there_is_no_cut_at_tokens_that_reach_over_their_end() {
        let tokens = [
            mk_token("<a>").lstrip(true),
            mk_token("<b>").rstrip(true),
            mk_token("<c>").single_word(true),
            mk_token("<d>").normalized(true),
            mk_token("<e>").special(false),
        ];
        assert!(Cutter::new(&tokens).is_none());
    }

    #[test]
    fn a_part_is_encoded_once_for_each_tokenizer_and_the_cache_stays_within_its_bytes() {
        let cache = SegmentCache::new(10_000, 7);
        let mut encoded = 0;
        let mut get = |tokenizer, part: &str| {
            let ids = cache.get(tokenizer, part, |_| {
                encoded += 1;
                Ok::<_, Infallible>(vec![u32::try_from(tokenizer).unwrap(); 3])
            });
            ids.unwrap().to_vec()
        };
        assert_eq!(get(1, "a"), [1, 1, 1]);
        assert_eq!(get(1, "a"), [1, 1, 1]);
        assert_eq!(get(2, "a"), [2, 2, 2]);
        for number in 0..1000 {
            get(1, &number.to_string());
        }
        assert_eq!(encoded, 1002);
        assert!(cache.bytes() <= 10_000, "{}", cache.bytes());
        assert_eq!(cache.encoded().cached, 1);
    }
}
