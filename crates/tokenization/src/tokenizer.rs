//! One model's tokenizer, and the law under which its prompts may be encoded in parts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokenizers::Tokenizer as Inner;
use tracing::{error, warn};

use crate::{
    growth::Growth,
    segment::{Cutter, SegmentCache},
};

/// Prompts on which the law is proven when a tokenizer is loaded.
const PROOFS: usize = 1000;

/// Bytes of a token in these prompts: a longer one would make each of them long.
const MAX_PROOF_TOKEN: usize = 256;

/// Where the proof's prompts come from: the same at each load.
const PROOF_SEED: u64 = 1337;

/// Texts that break what encodes a part by itself: spaces at the edges, marks that join, digits, other scripts.
const PIECES: [&str; 24] = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    " \n",
    "a",
    "The",
    "the quick",
    "'s",
    "don't",
    "12",
    "3456",
    ".",
    "...",
    "?!",
    "é",
    "e\u{301}",
    "\u{301}",
    "日本",
    "한국어",
    "👩‍👩‍👧",
    "\u{a0}",
    "▁",
];

/// Makes the ids of texts. It is shared by all threads.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    inner: Inner,
    growth: Growth,
    /// Absent: there is nothing to cut at, or parts encode to other ids than the whole.
    cutter: Option<Cutter>,
    /// Off once a prompt has shown that the proof was too weak.
    in_parts: AtomicBool,
    /// Tells its parts from those of other tokenizers in the cache.
    number: u64,
    verify_failed: AtomicU64,
}

/// Why there are no ids, or no tokenizer. What is encoded is not in the text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TokenizerError(String);

// === impl Tokenizer ===

impl Tokenizer {
    /// Reads a `tokenizer.json`; `number` is one that no other tokenizer has.
    pub(crate) fn from_bytes(json: &[u8], number: u64) -> Result<Self, TokenizerError> {
        // first of all: to read the file is to normalize its tokens
        let growth = Growth::of(json).map_err(|error| TokenizerError(error.to_string()))?;
        let mut inner =
            Inner::from_bytes(json).map_err(|error| TokenizerError(error.to_string()))?;
        // the file may have both, and the engine sets neither
        inner
            .with_truncation(None)
            .map_err(|error| TokenizerError(error.to_string()))?;
        inner.with_padding(None);
        let tokens = inner.get_added_tokens_decoder();
        let cutter = Cutter::new(tokens.values());
        let mut tokenizer = Self {
            inner,
            growth,
            cutter,
            in_parts: AtomicBool::new(true),
            number,
            verify_failed: AtomicU64::new(0),
        };
        if !tokenizer.parts_equal_the_whole()? {
            warn!(
                "prompts of this tokenizer are encoded whole: their parts have other ids by themselves"
            );
            tokenizer.cutter = None;
        }
        Ok(tokenizer)
    }

    /// The ids of a whole text.
    pub(crate) fn encode_whole(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let fits = self.growth.check(text);
        fits.map_err(|error| TokenizerError(error.to_string()))?;
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| TokenizerError(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a text, from its parts where that gives the same.
    ///
    /// One call in `1 / verify_sample` is checked; one that differs is answered rightly, and turns the parts off.
    pub(crate) fn encode<R: Rng + ?Sized>(
        &self,
        text: &str,
        add_special_tokens: bool,
        cache: &SegmentCache,
        verify_sample: f64,
        rng: &mut R,
    ) -> Result<Vec<u32>, TokenizerError> {
        let cutter = self.cutter.as_ref().filter(|_| self.in_parts.load(Relaxed));
        // the tokens that are added by themselves belong to the whole text, not to a part
        let Some(cutter) = cutter.filter(|_| !add_special_tokens) else {
            cache.count_cold(text);
            return self.encode_whole(text, add_special_tokens);
        };
        let mut ids = Vec::with_capacity(text.len() / 4);
        for part in cutter.parts(text) {
            let part = cache.get(self.number, part, |part| self.encode_whole(part, false))?;
            ids.extend_from_slice(&part);
        }
        let is_checked = verify_sample > 0.0 && rng.random_bool(verify_sample.min(1.0));
        if is_checked && self.growth.check(text).is_ok() {
            let whole = self.encode_whole(text, false)?;
            if whole != ids {
                self.verify_failed.fetch_add(1, Relaxed);
                self.in_parts.store(false, Relaxed);
                error!(
                    "a prompt has other ids in parts than as a whole: from now on prompts are encoded whole"
                );
                return Ok(whole);
            }
        }
        Ok(ids)
    }

    /// Whether prompts are encoded in parts.
    pub(crate) fn encodes_in_parts(&self) -> bool {
        self.cutter.is_some() && self.in_parts.load(Relaxed)
    }

    /// Prompts whose parts had other ids than the whole.
    pub(crate) fn verify_failed(&self) -> u64 {
        self.verify_failed.load(Relaxed)
    }

    /// Tries it on prompts of its own tokens and of what joins across them.
    fn parts_equal_the_whole(&self) -> Result<bool, TokenizerError> {
        let Some(cutter) = &self.cutter else {
            return Ok(true);
        };
        let tokens = self.inner.get_added_tokens_decoder();
        let mut tokens: Vec<&str> = tokens
            .values()
            .map(|token| token.content.as_str())
            .filter(|token| token.len() <= MAX_PROOF_TOKEN)
            .collect();
        tokens.sort_unstable();
        let mut rng = StdRng::seed_from_u64(PROOF_SEED);
        for _ in 0..PROOFS {
            let text = proof_text(&tokens, &mut rng);
            let mut ids = Vec::new();
            for part in cutter.parts(&text) {
                ids.extend(self.encode_whole(part, false)?);
            }
            if ids != self.encode_whole(&text, false)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn proof_text(tokens: &[&str], rng: &mut StdRng) -> String {
    let pieces = rng.random_range(2..24);
    let mut text = String::new();
    for _ in 0..pieces {
        let from = if rng.random_bool(0.4) {
            tokens
        } else {
            &PIECES
        };
        text.push_str(from.choose(rng).copied().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests;
