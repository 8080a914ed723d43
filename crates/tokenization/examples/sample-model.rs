//! Writes the small model of tests to a directory: `cargo run -p tokenization --features test-util --example sample-model
//! -- DIRECTORY`.

use std::{env, io, path::PathBuf};

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.ok_or_else(|| io::Error::other("expected a directory"))?;
    tokenization::sample::write(&directory)
}
