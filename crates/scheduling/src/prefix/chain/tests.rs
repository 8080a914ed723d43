use proptest::{collection::vec, prelude::*};
use rstest::rstest;

use super::*;

#[test]
fn chain_values_stay_the_same() {
    let seed = seed("llama", Some("tenant-1"));
    let spans: [&[u8]; 2] = [b"0123456789", b"abcdef"];
    let got = chain(seed, spans, 4, 16);
    // Computed with another implementation.
    assert_eq!(seed, 6_868_588_599_970_228_268);
    assert_eq!(
        got,
        [
            15_083_858_384_965_163_071,
            15_515_833_269_573_456_995,
            1_274_872_259_733_648_062,
            5_793_495_716_914_775_671,
        ]
    );
}

#[rstest]
#[case::salt("m", Some("s"))]
#[case::empty_salt("m", Some(""))]
#[case::salt_in_the_model("m\0s", None)]
#[case::empty_salt_in_the_model("m\0", None)]
#[case::both("m\0", Some("s"))]
#[case::other_model("n", None)]
#[case::no_model("", None)]
fn seeds_of_different_models_or_salts_differ(#[case] model: &str, #[case] salt: Option<&str>) {
    assert_ne!(seed(model, salt), seed("m", None));
    assert_ne!(seed(model, salt), seed("m", Some("\0")));
}

#[rstest]
#[case::nothing(b"", 4, 9, 0)]
#[case::one_byte(b"a", 4, 9, 1)]
#[case::exact(b"abcdefgh", 4, 9, 2)]
#[case::partial_block_counts(b"abcdefghi", 4, 9, 3)]
#[case::capped(b"abcdefghi", 4, 2, 2)]
#[case::none_wanted(b"abcdefghi", 4, 0, 0)]
#[case::block_of_no_bytes(b"abc", 0, 9, 3)]
fn chain_has_one_hash_for_each_block(
    #[case] text: &[u8],
    #[case] block_bytes: usize,
    #[case] max_blocks: usize,
    #[case] blocks: usize,
) {
    assert_eq!(chain(7, [text], block_bytes, max_blocks).len(), blocks);
}

#[test]
fn chain_goes_on_from_equal_blocks_only() {
    let [a, b] = [b"same....left....tail", b"same....rightt..tail"]
        .map(|text| chain(7, [text.as_slice()], 8, 9));
    assert_eq!(a[0], b[0]);
    assert_ne!(a[1], b[1]);
    assert_ne!(a[2], b[2], "equal blocks after different ones");
}

proptest! {
    #[test]
    fn spans_do_not_change_the_chain(
        text in vec(any::<u8>(), 0..200),
        cuts in vec(0..200_usize, 0..12),
        block_bytes in 1..70_usize,
        max_blocks in 0..40_usize,
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let spans = cuts.windows(2).map(|it| &text[it[0]..it[1]]);
        let whole = chain(3, [text.as_slice()], block_bytes, max_blocks);
        prop_assert_eq!(chain(3, spans, block_bytes, max_blocks), whole.as_slice());

        let mut last = 3_u64;
        for (block, hash) in text.chunks(block_bytes).zip(whole) {
            let pair = [last.to_le_bytes(), xxh64(block, 0).to_le_bytes()];
            last = xxh64(&pair.concat(), 0);
            prop_assert_eq!(hash, last);
        }
    }
}
