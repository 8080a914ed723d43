//! What encoding a prompt costs over the bare tokenizer, and what the cache of parts saves.

use std::{hint::black_box, path::Path, time::Duration};

use anyhow::{Error, Result, anyhow};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokenization::{
    ContentFormatOption, EncodeOptions, Model, ModelSource, Prompt, SegmentCache, Transformers,
};
use tokenizers::Tokenizer;
use tokio::time::Instant;

/// Ids of a prompt, about.
const IDS: usize = 50_000;
const TURNS: usize = 100;
const RUNS: usize = 15;
const WORDS: [&str; 16] = [
    "the", "answer", "model", "request", "cache", "routing", "tokens", "prefix", "a", "of", "in",
    "worker", "is", "and", "queue", "latency",
];

/// Words of many lengths that are no vocabulary by themselves.
fn text(words: usize, rng: &mut StdRng) -> String {
    let mut text = String::new();
    for _ in 0..words {
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
        if rng.random_bool(0.2) {
            let number: u16 = rng.random();
            text.push_str(&number.to_string());
        }
        text.push(if rng.random_bool(0.05) { '\n' } else { ' ' });
    }
    text
}

fn turn(rng: &mut StdRng) -> String {
    format!("<|role|>user<|text|>{}<|end|>", text(IDS / TURNS / 2, rng))
}

/// The middle one of several runs, each on a state of its own.
fn median<T>(prepare: impl Fn() -> Result<T>, run: impl Fn(T) -> Result<()>) -> Result<Duration> {
    let mut times = [Duration::ZERO; RUNS];
    for time in &mut times {
        let state = prepare()?;
        let start = Instant::now();
        run(state)?;
        *time = start.elapsed();
    }
    times.sort_unstable();
    Ok(times[RUNS / 2])
}

fn options() -> EncodeOptions {
    EncodeOptions {
        cache: SegmentCache::new(512 << 20, 1),
        verify_sample: 0.0,
    }
}

/// Medians of runs.
#[derive(Clone, Copy, Debug)]
pub struct EncodeCost {
    /// Of the prompt.
    pub bytes: usize,
    /// By the library alone.
    pub bare: Duration,
    /// In parts, none of which was seen.
    pub cold: Duration,
    /// Of another prompt: nothing of it was seen.
    pub unseen: Duration,
    /// Nine of ten of its turns were seen.
    pub mostly_seen: Duration,
}

/// Encodes conversations of some 50,000 ids with the tokenizer in this directory.
///
/// # Errors
/// When it cannot be loaded or does not encode.
pub fn encode(directory: &Path) -> Result<EncodeCost> {
    let mut rng = StdRng::seed_from_u64(1);
    let source = ModelSource {
        directory,
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: None,
        transformers: Transformers::default(),
    };
    let model = Model::load(&source, 1)?;
    let bare = Tokenizer::from_file(directory.join("tokenizer.json"));
    let bare = bare.map_err(|error| anyhow!("{error}"))?;
    let seen: Vec<String> = (0..TURNS).map(|_| turn(&mut rng)).collect();
    let new: String = (0..TURNS / 10).map(|_| turn(&mut rng)).collect();
    let known = seen.concat();
    let mostly = seen[..TURNS * 9 / 10].concat() + &new;
    let by_model = |text: &str, options: &EncodeOptions| {
        let prompt = Prompt::Text {
            text: text.to_owned(),
            add_special_tokens: false,
        };
        let encoded = model.encode(prompt, options, &mut StdRng::seed_from_u64(2));
        encoded.map(|it| drop(black_box(it))).map_err(Error::from)
    };
    Ok(EncodeCost {
        bytes: known.len(),
        // The tokenizer's own cache of words is warm from here on.
        bare: median(
            || Ok(()),
            |()| {
                let encoded = bare.encode_fast(known.as_str(), false);
                let encoded = encoded.map_err(|error| anyhow!("{error}"))?;
                black_box(encoded.get_ids().to_vec());
                Ok(())
            },
        )?,
        cold: median(|| Ok(options()), |options| by_model(&known, &options))?,
        unseen: median(|| Ok(options()), |options| by_model(&mostly, &options))?,
        mostly_seen: median(
            || {
                let options = options();
                by_model(&known, &options)?;
                Ok(options)
            },
            |options| by_model(&mostly, &options),
        )?,
    })
}
