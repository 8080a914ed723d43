//! What a hostile document costs in memory. Counted for the whole thread, so this is a program of its own.
#![cfg(test)]

use std::collections::BTreeMap;

use allocation_counter::measure;
use foreign_text::{Limits, Node, read};
use serde::Deserialize;

const MIB: usize = 1 << 20;

#[derive(Debug, Deserialize)]
struct File {
    #[serde(default)]
    image: String,
    #[serde(default)]
    tolerations: Vec<BTreeMap<String, String>>,
}

/// The most bytes at once while a text is read into a type and into a tree, and whether both were refused.
fn cost(text: &str, limits: Limits) -> (u64, bool) {
    let mut refused = true;
    let typed = measure(|| refused &= read::<File>(text, limits).is_err());
    let tree = measure(|| refused &= Node::parse(text, limits).is_err());
    (typed.bytes_max.max(tree.bytes_max), refused)
}

/// 112 kB that stand for 100 MB.
fn bomb() -> String {
    let (long, aliases) = ("x".repeat(100_000), "{key: *a},".repeat(1000));
    format!("image: &a \"{long}\"\ntolerations: [{aliases}]\n")
}

#[test]
fn a_bomb_of_aliases_costs_little_more_than_its_text() {
    let (bytes, refused) = cost(&bomb(), Limits::of_text(MIB));
    assert!(refused);
    assert!(bytes < 4 * MIB as u64, "{bytes} bytes");
}

#[test]
fn a_long_text_that_is_not_read_costs_nothing() {
    let (bytes, refused) = cost(&bomb(), Limits::of_text(64 << 10));
    assert!(refused);
    assert!(bytes < 4096, "{bytes} bytes");
}

/// The library keeps some 100 bytes for each value of a text before any is counted.
#[test]
fn the_worst_text_costs_a_known_multiple_of_its_length() {
    let limits = Limits::of_text(64 << 10);
    for text in [
        format!("x: [{}]", "1,".repeat(limits.text / 2 - 4)),
        format!("x:\n{}", "- \n".repeat(limits.text / 3 - 2)),
        format!("x: [{}]", "{},".repeat(limits.values - 2)),
        format!("x: \"{}\"", "\\0".repeat(limits.text / 2 - 4)),
    ] {
        assert!(text.len() <= limits.text, "{}", text.len());
        let (bytes, _) = cost(&text, limits);
        let times = bytes / limits.text as u64;
        let begin: String = text.chars().take(20).collect();
        assert!(times < 160, "{times} times its length: {begin}");
    }
}

#[test]
fn what_is_read_is_what_is_written() {
    let text = "image: &a x\ntolerations: [{key: *a}]\n";
    let file: File = read(text, Limits::of_text(1024)).unwrap();
    assert_eq!(
        (file.image.as_str(), &*file.tolerations[0]["key"]),
        ("x", "x")
    );
}
