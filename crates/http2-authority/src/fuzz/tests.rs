//! The corpus as it is, then changed a little.

use std::{fs, path::PathBuf};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::walk::PREFACE;

/// The largest file of the corpus.
const MAX_SEED: usize = 4096;

/// The files of the corpus, by name.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/connection");
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

#[test]
fn the_corpus_breaks_no_promise_and_has_values_of_each_kind() {
    let mut rewritten = Vec::new();
    for (name, input) in corpus() {
        assert!(input.len() <= MAX_SEED, "{name} is larger than {MAX_SEED}");
        fuzz_connection(&input);
        let bytes = &input[SIZES..];
        assert!(bytes.starts_with(PREFACE) || name == "http1", "{name}");
        if passed(bytes, &[]) != bytes {
            rewritten.push(name);
        }
    }
    let wanted = [
        "huffman",
        "indexed",
        "padded",
        "plain",
        "split",
        "two-blocks",
    ];
    assert_eq!(rewritten, wanted);
}

proptest! {
    #[test]
    fn a_changed_corpus_breaks_no_promise(
        seed in any::<Index>(),
        changes in vec((any::<Index>(), any::<u8>()), 1..5),
        cut in any::<(Index, Index)>(),
    ) {
        let seeds = corpus();
        let (_, mut input) = seeds[seed.index(seeds.len())].clone();
        for (at, byte) in changes {
            *at.get_mut(&mut input[..]) = byte;
        }
        let (from, to) = (cut.0.index(input.len()), cut.1.index(input.len()));
        if from < to && from > SIZES + PREFACE.len() {
            input.drain(from..to);
        }
        fuzz_connection(&input);
    }
}
