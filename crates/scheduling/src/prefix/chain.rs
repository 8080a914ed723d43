//! Hash chains over prompts.

use xxhash_rust::xxh64::{Xxh64, xxh64};

#[cfg(test)]
mod tests;

/// The hashes of one prompt so far.
struct Chain {
    hashes: Vec<u64>,
    last: u64,
}

/// What a chain starts from: prompts of different models or cache salts share no prefix. No salt and an empty salt are
/// different.
pub fn seed(model: &str, cache_salt: Option<&str>) -> u64 {
    let mut state = Xxh64::new(0);
    // The length first: both texts come from the request and may contain any separator.
    state.update(&(model.len() as u64).to_le_bytes());
    state.update(model.as_bytes());
    if let Some(salt) = cache_salt {
        state.update(&[0]);
        state.update(salt.as_bytes());
    }
    state.digest()
}

/// One hash for each block of `block_bytes` (0 counts as 1) of the concatenated `spans`: the hash of the hash before
/// it, which is `seed` for the first, and of the block. The last block may be shorter. At most `max_blocks`; what
/// follows is not read.
pub fn chain<'a>(
    seed: u64,
    spans: impl IntoIterator<Item = &'a [u8]>,
    block_bytes: usize,
    max_blocks: usize,
) -> Vec<u64> {
    let block_bytes = block_bytes.max(1);
    let mut chain = Chain {
        hashes: Vec::new(),
        last: seed,
    };
    // The block which began in a span before; only such blocks need the slower streaming hash.
    let mut open = Xxh64::new(0);
    let mut open_bytes = 0;
    for mut span in spans {
        if chain.hashes.len() >= max_blocks {
            return chain.hashes;
        }
        if open_bytes > 0 {
            let (head, rest) = span.split_at(span.len().min(block_bytes - open_bytes));
            open.update(head);
            open_bytes += head.len();
            if open_bytes < block_bytes {
                continue;
            }
            chain.push(open.digest());
            open.reset(0);
            span = rest;
        }
        let mut blocks = span.chunks_exact(block_bytes);
        for block in blocks.by_ref().take(max_blocks - chain.hashes.len()) {
            chain.push(xxh64(block, 0));
        }
        open.update(blocks.remainder());
        open_bytes = blocks.remainder().len();
    }
    if open_bytes > 0 && chain.hashes.len() < max_blocks {
        chain.push(open.digest());
    }
    chain.hashes
}

// === impl Chain ===

impl Chain {
    fn push(&mut self, block: u64) {
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&self.last.to_le_bytes());
        pair[8..].copy_from_slice(&block.to_le_bytes());
        self.last = xxh64(&pair, 0);
        self.hashes.push(self.last);
    }
}
