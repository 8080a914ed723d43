//! What encoding costs over the bare tokenizer, and what the cache of parts saves.
//!
//! `cargo bench -p tokenization --bench process-encode`

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints"
)]

use std::{
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tempfile::TempDir;
use tokenization::{ContentFormatOption, EncodeOptions, Model, ModelSource, Prompt, SegmentCache};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer, TokenizerBuilder, TokenizerImpl,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::byte_level::ByteLevel,
};

/// Ids of a prompt, about.
const IDS: usize = 50_000;
const TURNS: usize = 100;
const RUNS: usize = 15;
const WORDS: [&str; 16] = [
    "the", "answer", "model", "request", "cache", "routing", "tokens", "prefix", "a", "of", "in",
    "worker", "is", "and", "queue", "latency",
];

type Trained = TokenizerImpl<
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Words of many lengths that are no vocabulary by themselves.
fn text(words: usize, rng: &mut StdRng) -> String {
    let mut text = String::new();
    for _ in 0..words {
        text.push_str(WORDS.choose(rng).unwrap());
        if rng.random_bool(0.2) {
            let number: u16 = rng.random();
            text.push_str(&number.to_string());
        }
        text.push(if rng.random_bool(0.05) { '\n' } else { ' ' });
    }
    text
}

fn turn(rng: &mut StdRng) -> String {
    format!("<|start|>user\n{}<|end|>\n", text(IDS / TURNS / 2, rng))
}

fn train(rng: &mut StdRng) -> Vec<u8> {
    let builder = TokenizerBuilder::new()
        .with_model(BPE::default().into())
        .with_normalizer(None)
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true).into()))
        .with_post_processor(None)
        .with_decoder(None);
    let mut tokenizer: Trained = builder.build().unwrap();
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(1000)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let corpus: Vec<String> = (0..50).map(|_| text(200, rng)).collect();
    let mut trainer: TrainerWrapper = trainer.into();
    tokenizer.train(&mut trainer, corpus.iter()).unwrap();
    let special = ["<|start|>", "<|end|>"].map(|name| AddedToken::from(name, true));
    tokenizer.add_special_tokens(special).unwrap();
    tokenizer.to_string(false).unwrap().into_bytes()
}

/// The middle one of several runs, each on a state of its own.
fn median<T>(mut prepare: impl FnMut() -> T, mut run: impl FnMut(T)) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let state = prepare();
            let start = Instant::now();
            run(state);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn options() -> EncodeOptions {
    EncodeOptions {
        cache: SegmentCache::new(512 << 20, 1),
        verify_sample: 0.0,
    }
}

fn prompt(text: &str) -> Prompt {
    Prompt::Text {
        text: text.to_owned(),
        add_special_tokens: false,
    }
}

fn main() {
    let mut rng = StdRng::seed_from_u64(1);
    let json = train(&mut rng);
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("tokenizer.json"), &json).unwrap();
    let source = ModelSource {
        directory: directory.path(),
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: None,
    };
    let model = Model::load(&source, 1).unwrap();
    let bare = Tokenizer::from_bytes(&json).unwrap();
    let seen: Vec<String> = (0..TURNS).map(|_| turn(&mut rng)).collect();
    let known = seen.concat();
    let mostly: String = seen[..TURNS * 9 / 10].concat()
        + &(0..TURNS / 10).map(|_| turn(&mut rng)).collect::<String>();

    // the tokenizer's own cache of words is warm for both
    let ids = bare.encode_fast(known.as_str(), false).unwrap().len();
    let bare_time = median(
        || (),
        |()| {
            black_box(
                bare.encode_fast(known.as_str(), false)
                    .unwrap()
                    .get_ids()
                    .to_vec(),
            );
        },
    );
    let cold_time = median(
        || (options(), prompt(&known)),
        |(options, prompt)| {
            black_box(model.encode(prompt, &options, &mut rng).unwrap());
        },
    );
    let mostly_cold = median(
        || (options(), prompt(&mostly)),
        |(options, prompt)| {
            black_box(model.encode(prompt, &options, &mut rng).unwrap());
        },
    );
    let warm_time = median(
        || {
            let options = options();
            model
                .encode(prompt(&known), &options, &mut StdRng::seed_from_u64(2))
                .unwrap();
            (options, prompt(&mostly))
        },
        |(options, prompt)| {
            black_box(model.encode(prompt, &options, &mut rng).unwrap());
        },
    );
    let megabytes = |time: Duration| known.len() as f64 / 1e6 / time.as_secs_f64();
    println!("a prompt of {ids} ids, {} bytes", known.len());
    println!(
        "bare tokenizer     {:8.2} MB/s per core",
        megabytes(bare_time)
    );
    println!(
        "cold, in parts     {:8.2} MB/s per core",
        megabytes(cold_time)
    );
    println!(
        "cold over bare     {:8.2}    (goal: at least 0.9)",
        bare_time.as_secs_f64() / cold_time.as_secs_f64()
    );
    println!(
        "9 of 10 turns seen {:8.2}    times as fast as cold (goal: at least 5)",
        mostly_cold.as_secs_f64() / warm_time.as_secs_f64()
    );
}
