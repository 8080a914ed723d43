use proptest::prelude::*;
use rstest::rstest;
use tokenizers::{
    AddedToken,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
        unigram::{Unigram, UnigramTrainer},
        wordpiece::{WordPiece, WordPieceTrainer},
    },
    normalizers::{BertNormalizer, Prepend, Replace},
    pre_tokenizers::{
        bert::BertPreTokenizer,
        byte_level::ByteLevel,
        metaspace::{Metaspace, PrependScheme},
    },
};

use super::*;
use crate::fixtures::{bpe_trainer, byte_level, mk_tokenizer, special};

fn byte_level_with_prefix_space() -> Vec<u8> {
    let pre_tokenizer = ByteLevel::new(true, true, true);
    mk_tokenizer(
        BPE::default(),
        None,
        Some(pre_tokenizer.into()),
        bpe_trainer(),
        &special(),
    )
}

fn unigram(scheme: PrependScheme) -> Vec<u8> {
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(150)
        .unk_token(Some("<unk>".to_owned()))
        .special_tokens(vec![AddedToken::from("<unk>", true)])
        .build()
        .unwrap();
    let pre_tokenizer = Metaspace::new('▁', scheme, true);
    mk_tokenizer(
        Unigram::default(),
        None,
        Some(pre_tokenizer.into()),
        TrainerWrapper::from(trainer),
        &special(),
    )
}

/// As in models converted from `SentencePiece`: no pre-tokenizer, all in the normalizer.
fn prepending_bpe() -> Vec<u8> {
    let normalizers = vec![
        Prepend::new("▁".to_owned()).into(),
        Replace::new(" ", "▁").unwrap().into(),
    ];
    let normalizer = tokenizers::normalizers::Sequence::new(normalizers);
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(300)
        .build();
    mk_tokenizer(
        BPE::default(),
        Some(normalizer.into()),
        None,
        TrainerWrapper::from(trainer),
        &special(),
    )
}

fn word_piece() -> Vec<u8> {
    let trainer = WordPieceTrainer::builder()
        .show_progress(false)
        .vocab_size(200)
        .special_tokens(vec![AddedToken::from("[UNK]", true)])
        .build();
    mk_tokenizer(
        WordPiece::default(),
        Some(BertNormalizer::default().into()),
        Some(BertPreTokenizer.into()),
        TrainerWrapper::from(trainer),
        &special(),
    )
}

fn load(json: &[u8]) -> Tokenizer {
    Tokenizer::from_bytes(json, 1).unwrap()
}

/// Encoding in parts and at once gives the same ids.
fn assert_same_as_whole(tokenizer: &Tokenizer, text: &str, cache: &SegmentCache, rng: &mut StdRng) {
    let ids = tokenizer.encode(text, false, cache, 0.0, rng).unwrap();
    let whole = tokenizer.encode_whole(text, false).unwrap();
    assert_eq!(ids, whole, "{text:?}");
}

fn cache() -> SegmentCache {
    SegmentCache::new(1 << 20, 5)
}

#[rstest]
#[case::byte_level(byte_level(&special()), true)]
#[case::byte_level_with_prefix_space(byte_level_with_prefix_space(), true)]
#[case::metaspace_at_each_part(unigram(PrependScheme::Always), true)]
#[case::metaspace_never(unigram(PrependScheme::Never), true)]
#[case::metaspace_at_the_beginning(unigram(PrependScheme::First), false)]
#[case::prepending_normalizer(prepending_bpe(), true)]
#[case::word_piece(word_piece(), true)]
#[case::no_tokens_to_cut_at(byte_level(&[]), false)]
fn prompts_are_encoded_in_parts_where_that_is_proven(
    #[case] json: Vec<u8>,
    #[case] in_parts: bool,
) {
    assert_eq!(load(&json).encodes_in_parts(), in_parts);
}

/// A token that must stand alone looks back over a cut, to the last letter of the token before it.
#[rstest]
#[case::lstrip(|token: AddedToken| token.lstrip(true), true)]
#[case::rstrip(|token: AddedToken| token.rstrip(true), true)]
#[case::single_word(|token: AddedToken| token.single_word(true), false)]
#[case::normalized(|token: AddedToken| token.normalized(true), true)]
#[case::not_special(|token: AddedToken| token.special(false), true)]
fn tokens_with_flags_change_no_ids(
    #[case] flag: fn(AddedToken) -> AddedToken,
    #[case] in_parts: bool,
) {
    let mut tokens = special();
    tokens.extend(["<flag>", "<|end|><flag>"].map(|name| flag(AddedToken::from(name, true))));
    let tokenizer = load(&byte_level(&tokens));
    assert_eq!(tokenizer.encodes_in_parts(), in_parts);
    let mut rng = StdRng::seed_from_u64(1);
    let cache = cache();
    let names = ["<flag>", "<|end|>", " ", "a", "<|start|>x"];
    for _ in 0..500 {
        let text = proof_text(&names, &mut rng);
        assert_same_as_whole(&tokenizer, &text, &cache, &mut rng);
    }
}

/// 10^5 prompts: each kind of tokenizer takes its share, and the cache is warm for most.
#[rstest]
#[case::byte_level(byte_level(&special()))]
#[case::metaspace(unigram(PrependScheme::Always))]
#[case::metaspace_at_the_beginning(unigram(PrependScheme::First))]
#[case::word_piece(word_piece())]
fn the_cache_changes_no_ids(#[case] json: Vec<u8>) {
    let tokenizer = load(&json);
    let cache = cache();
    let mut rng = StdRng::seed_from_u64(2);
    let tokens = ["<|start|>", "<|end|>", "<|start|>x", "</s>", "<unk>"];
    for _ in 0..25_000 {
        let text = proof_text(&tokens, &mut rng);
        assert_same_as_whole(&tokenizer, &text, &cache, &mut rng);
    }
    assert_eq!(cache.encoded().cached > 0, tokenizer.encodes_in_parts());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn no_text_changes_its_ids_by_the_cache(
        texts in prop::collection::vec("(\\PC{0,4}|[ \n]{0,2}|<\\|start\\|>|<\\|end\\|>){0,6}", 60),
    ) {
        let tokenizer = load(&byte_level(&special()));
        let cache = cache();
        let mut rng = StdRng::seed_from_u64(3);
        for text in texts {
            let ids = tokenizer.encode(&text, false, &cache, 0.0, &mut rng).unwrap();
            prop_assert_eq!(ids, tokenizer.encode_whole(&text, false).unwrap(), "{:?}", text);
        }
    }
}

#[test]
fn a_turn_costs_only_what_is_new() {
    let tokenizer = load(&byte_level(&special()));
    let cache = cache();
    let mut rng = StdRng::seed_from_u64(4);
    let mut encode = |text: &str| {
        tokenizer
            .encode(text, false, &cache, 0.0, &mut rng)
            .unwrap()
    };
    let first = "<|start|>user: the quick brown fox<|end|>";
    let second = "<|start|>assistant: jumps<|end|>";
    encode(first);
    let before = cache.encoded();
    encode(&[first, second].concat());
    let after = cache.encoded();
    // its first part is a token that was in the first turn too
    let new = second.len() - "<|start|>".len();
    assert_eq!(after.cold - before.cold, u64::try_from(new).unwrap());
}

#[test]
fn a_difference_in_a_sample_is_answered_rightly_and_turns_the_parts_off() {
    // as if the proof had been too weak
    let json = unigram(PrependScheme::First);
    let mut tokenizer = load(&json);
    tokenizer.cutter = Cutter::new(tokenizer.inner.get_added_tokens_decoder().values());
    let cache = cache();
    let mut rng = StdRng::seed_from_u64(5);
    let text = "the dog<|end|>the fox";
    let whole = tokenizer.encode_whole(text, false).unwrap();
    assert_ne!(
        tokenizer
            .encode(text, false, &cache, 0.0, &mut rng)
            .unwrap(),
        whole
    );
    assert_eq!(
        tokenizer
            .encode(text, false, &cache, 1.0, &mut rng)
            .unwrap(),
        whole
    );
    assert!(!tokenizer.encodes_in_parts());
    assert_eq!(tokenizer.verify_failed(), 1);
    assert_eq!(
        tokenizer
            .encode(text, false, &cache, 0.0, &mut rng)
            .unwrap(),
        whole
    );
}

#[test]
fn truncation_and_padding_of_the_file_are_not_the_engines() {
    let mut json: serde_json::Value = serde_json::from_slice(&byte_level(&special())).unwrap();
    json["truncation"] = serde_json::json!(
        {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!(
        {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
         "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let changed = load(json.to_string().as_bytes());
    let text = "the quick brown fox";
    let ids = load(&byte_level(&special()))
        .encode_whole(text, false)
        .unwrap();
    assert!(ids.len() > 2, "{ids:?}");
    assert_eq!(changed.encode_whole(text, false).unwrap(), ids);
}

/// None of these may take long: an unoptimized build included, which is why the texts are not larger.
#[rstest]
#[case::spaces(" ".repeat(100_000))]
#[case::one_word("a".repeat(100_000))]
#[case::digits("1".repeat(100_000))]
#[case::marks("\u{301}".repeat(50_000))]
#[case::line_breaks("\r\n".repeat(50_000))]
#[case::punctuation("!".repeat(100_000))]
#[case::tokens("<|end|>".repeat(100_000))]
#[case::almost_tokens("<|en".repeat(25_000))]
fn hostile_text_is_encoded_in_bounded_time(#[case] text: String) {
    let tokenizer = load(&byte_level(&special()));
    let mut rng = StdRng::seed_from_u64(6);
    let started = std::time::SystemTime::now();
    let ids = tokenizer.encode(&text, false, &cache(), 0.0, &mut rng);
    let taken = started.elapsed().unwrap();
    assert!(taken < std::time::Duration::from_secs(20), "{taken:?}");
    assert!(ids.is_ok_and(|ids| !ids.is_empty()));
}
