//! Small tokenizers, trained where they are needed.

use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerBuilder, TokenizerImpl,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
    tokenizer::normalizer::SplitDelimiterBehavior,
};

type Trained = TokenizerImpl<
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

const TEXT: [&str; 6] = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "It's 12 o'clock, and 3456 people don't know why: they never asked!",
    "user assistant system tool: the quick answer is the best answer.",
    "日本語のテキスト 한국어 텍스트 é e\u{301} 👩‍👩‍👧",
    "fn main() {\n    println!(\"hello\");\n}\n\n\n",
    "  spaces   and\ttabs  \n and lines ",
];

pub(crate) fn mk_tokenizer(
    model: impl Into<ModelWrapper>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    trainer: impl Into<TrainerWrapper>,
    tokens: &[AddedToken],
) -> Vec<u8> {
    let builder = TokenizerBuilder::new()
        .with_model(model.into())
        .with_normalizer(normalizer)
        .with_pre_tokenizer(pre_tokenizer)
        .with_post_processor(None)
        .with_decoder(None);
    let mut tokenizer: Trained = builder.build().unwrap();
    tokenizer.train(&mut trainer.into(), TEXT.iter()).unwrap();
    let special = |token: &&AddedToken| token.special;
    tokenizer
        .add_special_tokens(tokens.iter().filter(special).cloned())
        .unwrap();
    let normal = |token: &&AddedToken| !token.special;
    tokenizer
        .add_tokens(tokens.iter().filter(normal).cloned())
        .unwrap();
    tokenizer.to_string(false).unwrap().into_bytes()
}

pub(crate) fn bpe_trainer() -> TrainerWrapper {
    BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(400)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
        .into()
}

pub(crate) fn special() -> Vec<AddedToken> {
    let names = ["<|start|>", "<|end|>", "<|start|>x", "</s>"];
    names.map(|name| AddedToken::from(name, true)).into()
}

/// As in models of today: a regular expression that looks ahead, then bytes.
pub(crate) fn byte_level(tokens: &[AddedToken]) -> Vec<u8> {
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
    let pre_tokenizer = Sequence::new(vec![
        split.into(),
        ByteLevel::new(false, true, false).into(),
    ]);
    mk_tokenizer(
        BPE::default(),
        None,
        Some(pre_tokenizer.into()),
        bpe_trainer(),
        tokens,
    )
}
