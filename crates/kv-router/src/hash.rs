//! Names of prompt blocks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The name of a block and of all before it, under one seed: equal names, equal prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

/// Keeps apart what is cached under different LoRA adapters and salts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(u64);

/// Of every hash; a LoRA adapter or a salt makes another out of it.
const SEED: u64 = 1337;

// === impl Seed ===

impl Seed {
    /// Without adapter and salt.
    pub const PLAIN: Self = Self(SEED);

    /// The seed of requests with this adapter and this salt; an empty one is none.
    pub fn new(lora_name: Option<&str>, cache_salt: Option<&str>) -> Self {
        let (lora, salt) = (lora_name.unwrap_or(""), cache_salt.unwrap_or(""));
        if lora.is_empty() && salt.is_empty() {
            return Self::PLAIN;
        }
        let both = [lora.as_bytes(), &[0], salt.as_bytes()].concat();
        Self(xxh3_64_with_seed(&both, SEED))
    }
}

// === impl Seq ===

impl Seq {
    /// As a plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A name from elsewhere, such as a trace.
    pub const fn from_u64(name: u64) -> Self {
        Self(name)
    }

    /// The block with these ids as little-endian bytes, behind `parent` or at the beginning.
    pub fn of_bytes(parent: Option<Self>, ids: &[u8], seed: Seed) -> Self {
        let local = xxh3_64_with_seed(ids, seed.0);
        let Some(Self(parent)) = parent else {
            return Self(local);
        };
        let mut both = [0; 16];
        let (before, after) = both.split_at_mut(8);
        before.copy_from_slice(&parent.to_le_bytes());
        after.copy_from_slice(&local.to_le_bytes());
        Self(xxh3_64_with_seed(&both, SEED))
    }
}

/// The names of all full blocks of a prompt, appended to `out`; what is left at its end has none.
pub fn chain(ids: &[u32], block_size: usize, seed: Seed, out: &mut Vec<Seq>) {
    let mut bytes = Vec::new();
    let mut parent = None;
    let blocks = ids.chunks_exact(block_size.max(1));
    out.reserve(blocks.len());
    for block in blocks {
        let name = Seq::of_bytes(parent, little_endian(block, &mut bytes), seed);
        out.push(name);
        parent = Some(name);
    }
}

/// The ids as bytes, in a buffer that is used again.
pub(crate) fn little_endian<'a>(ids: &[u32], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    buffer.resize(size_of_val(ids), 0);
    let (words, _) = buffer.as_chunks_mut();
    for (word, id) in words.iter_mut().zip(ids) {
        *word = id.to_le_bytes();
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ids: &[u32], block_size: usize, seed: Seed) -> Vec<u64> {
        let mut out = Vec::new();
        chain(ids, block_size, seed, &mut out);
        out.into_iter().map(Seq::get).collect()
    }

    /// Made by another implementation: python-xxhash 4, from the rule in `docs/kv-router.md`.
    #[test]
    fn names_are_those_that_another_implementation_makes() {
        let ids: Vec<u32> = (0..40).map(|at| at * 1009 % 32_003).collect();
        assert_eq!(
            names(&ids, 16, Seed::PLAIN),
            [0x4dcf_15c2_1315_56ca, 0x1a77_46a9_f6d6_1594]
        );
        assert_eq!(
            names(&ids, 16, Seed::new(Some("sql"), None)),
            [0xc7b2_31ef_2cf4_0121, 0xfa10_b6a3_9a30_a416]
        );
        assert_eq!(
            names(&ids, 16, Seed::new(None, Some("tenant"))),
            [0x0611_65ae_a3d8_62c5, 0x8610_4fc8_7992_f3f0]
        );
        assert_eq!(
            names(&ids, 16, Seed::new(Some("sql"), Some("tenant"))),
            [0x8921_bc82_0731_1bb0, 0x4e5d_f961_df72_cef3]
        );
        let long: Vec<u32> = (0..1024).map(|at| at * 1009 % 32_003).collect();
        assert_eq!(
            names(&long, 512, Seed::PLAIN),
            [0xecc0_a7d5_2cb7_81b9, 0xc9d4_4fd0_04ec_2051]
        );
    }

    #[test]
    fn an_empty_adapter_or_salt_is_none_and_the_two_are_kept_apart() {
        assert_eq!(Seed::new(Some(""), None), Seed::PLAIN);
        assert_ne!(Seed::new(Some("a"), None), Seed::new(None, Some("a")));
        assert_ne!(
            Seed::new(Some("ab"), Some("c")),
            Seed::new(Some("a"), Some("bc"))
        );
    }

    #[test]
    fn what_is_no_full_block_has_no_name_and_a_name_covers_all_before_it() {
        let ids: Vec<u32> = (0..100).collect();
        let all = names(&ids, 16, Seed::PLAIN);
        assert_eq!(all.len(), 6);
        assert_eq!(names(&ids[..97], 16, Seed::PLAIN), all);
        let mut other = ids;
        other[17] += 1;
        let other = names(&other, 16, Seed::PLAIN);
        assert_eq!(other[0], all[0]);
        assert!(other.iter().zip(&all).skip(1).all(|(one, two)| one != two));
    }
}
