//! What replays have. Pure.

use std::collections::VecDeque;

use bytes::Bytes;

/// The last batches.
#[derive(Debug, Default)]
pub(super) struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

/// As many as vLLM keeps.
const MAX_BATCHES: usize = 10_000;
/// Of all of them: a batch may have a whole prompt.
const MAX_BYTES: usize = 64 << 20;

// === impl Kept ===

impl Kept {
    pub(super) fn push(&mut self, number: u64, batch: Bytes) {
        self.bytes += batch.len();
        self.batches.push_back((number, batch));
        while self.batches.len() > MAX_BATCHES || self.bytes > MAX_BYTES {
            let Some((_, oldest)) = self.batches.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// All from this number on.
    pub(super) fn from(&self, number: u64) -> Vec<(u64, Bytes)> {
        let start = self.batches.partition_point(|(kept, _)| *kept < number);
        self.batches.range(start..).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batches_are_kept_up_to_their_number_and_their_bytes() {
        let mut kept = Kept::default();
        for number in 0..10_005 {
            kept.push(number, Bytes::from_static(b"x"));
        }
        assert_eq!(kept.from(0)[0].0, 5);
        assert_eq!(kept.from(10_003).len(), 2);
        assert_eq!(kept.from(20_000), []);
        for number in 20_000..20_005 {
            kept.push(number, vec![0; MAX_BYTES / 3].into());
        }
        assert_eq!((kept.len(), kept.from(0)[0].0), (3, 20_002));
    }
}
