//! A bounded, repeatable run of each target on stable: the corpus as it is, then changed a little.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use rstest::rstest;

use super::*;

/// Largest file of the corpus.
const MAX_SEED: usize = 4096;

/// Largest input.
const MAX_INPUT: usize = 16 * 1024;

/// Words that random bytes would not find.
const WORDS: [&str; 32] = [
    "\"",
    "\\",
    "\\u0000",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "\r\n",
    "\n\n",
    "data:",
    "event: ",
    "\"model\":",
    "\"usage\":",
    "\"stream\":true",
    "\"prompt_tokens\":",
    "[DONE]",
    "null",
    "1e999",
    "NaN",
    "vllm:num_requests_waiting ",
    "vllm:lora_requests_info{",
    "running_lora_adapters=\"",
    "# HELP ",
    "parameters: ",
    "plugins: ",
    "&a ",
    "*a",
    "\u{feff}",
    "\u{e9}",
];

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let files = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut seeds: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(&path).unwrap())
        })
        .collect();
    seeds.sort();
    seeds
}

/// Runs the target, and names an input that breaks it.
fn run(target: Target, from: &str, input: &[u8]) {
    let broken = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    assert!(
        !broken,
        "{} is broken by this, made of {from}: b\"{}\"",
        target.name,
        input.escape_ascii()
    );
}

/// One to four small changes.
fn mutate(mut input: Vec<u8>, seeds: &[(String, Vec<u8>)], rng: &mut StdRng) -> Vec<u8> {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=input.len());
        let until = rng.random_range(at..=input.len().min(at + 64));
        match rng.random_range(0..8) {
            0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            1 if at < input.len() => input[at] = rng.random(),
            2 => input.truncate(at),
            3 => drop(input.drain(at..until)),
            4 => {
                let again = input[at..until].to_vec();
                input.splice(at..at, again);
            }
            5 => {
                let (_, other) = seeds.choose(rng).unwrap();
                let from = rng.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let bytes: [u8; 4] = rng.random();
                input.splice(at..at, bytes);
            }
            _ => {
                let word = WORDS.choose(rng).unwrap();
                input.splice(at..at, word.bytes());
            }
        }
    }
    input.truncate(MAX_INPUT);
    input
}

/// The counts take about two seconds each, and the tests run side by side. The same inputs each time.
#[rstest]
#[case::stream("stream", 20_000)]
#[case::body("body", 20_000)]
#[case::response("response", 5_000)]
#[case::metrics("metrics", 5_000)]
#[case::attributes("attributes", 20_000)]
#[case::config("config", 1_500)]
fn foreign_bytes_break_no_promise(#[case] name: &str, #[case] count: usize) {
    let target = TARGETS
        .into_iter()
        .find(|target| target.name == name)
        .unwrap();
    let seeds = corpus(name);
    for (file, input) in &seeds {
        assert!(
            input.len() <= MAX_SEED,
            "{name}/{file} is larger than {MAX_SEED} bytes"
        );
        run(target, file, input);
    }
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..count {
        let (file, seed) = seeds.choose(&mut rng).unwrap();
        let input = mutate(seed.clone(), &seeds, &mut rng);
        run(target, file, &input);
    }
}
