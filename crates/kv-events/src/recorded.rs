//! Tests with messages recorded from engines; `tests/fixtures/README.md` describes how they were recorded.

use bytes::Bytes;
use kv_router::{Batch, Limits, Overlap, Seed, Workers, chain};
use zmtp::Message;

use crate::wire::Payload;

/// The recordings, and the frames of a message of a replay; none: only batches were recorded.
const RECORDED: [(&str, &str, Option<usize>); 8] = [
    (
        "vllm 0.9",
        include_str!("../tests/fixtures/vllm-0.9.0.txt"),
        Some(3),
    ),
    (
        "vllm 0.14",
        include_str!("../tests/fixtures/vllm-0.14.0.txt"),
        Some(3),
    ),
    (
        "vllm 0.22",
        include_str!("../tests/fixtures/vllm-0.22.0.txt"),
        Some(3),
    ),
    (
        "vllm 0.26",
        include_str!("../tests/fixtures/vllm-0.26.0.txt"),
        Some(4),
    ),
    (
        "vllm 0.33",
        include_str!("../tests/fixtures/vllm-0.33.0.txt"),
        Some(4),
    ),
    (
        "sglang 0.5.0",
        include_str!("../tests/fixtures/sglang-0.5.0rc0.txt"),
        Some(3),
    ),
    (
        "sglang 0.5.23",
        include_str!("../tests/fixtures/sglang-0.5.23.txt"),
        Some(4),
    ),
    (
        "tensorrt-llm",
        include_str!("../tests/fixtures/tensorrt-llm-13599e9.txt"),
        None,
    ),
];

/// A batch: what is known then of a prompt of 3 blocks without adapter and salt in the accelerator's and in the host's
/// memory, with the adapter, with the salt, and with both.
const CASES: [(&str, [u32; 5]); 14] = [
    ("prompt", [3, 0, 0, 0, 0]),
    ("prompt, last block removed", [2, 0, 0, 0, 0]),
    ("prompt, cleared", [0; 5]),
    ("lora id", [0; 5]),
    ("lora name", [0, 0, 3, 0, 0]),
    ("salt", [0, 0, 0, 3, 0]),
    ("lora name and salt", [0, 0, 0, 0, 3]),
    ("image in the second block", [1, 0, 0, 0, 0]),
    ("id that is a text", [1, 0, 0, 0, 0]),
    ("pairs", [3, 0, 0, 0, 0]),
    ("lookahead", [3, 0, 0, 0, 0]),
    ("shared", [0; 5]),
    ("offloaded", [0, 3, 0, 0, 0]),
    ("two groups, one of a window", [3, 0, 0, 0, 0]),
];

const BLOCK: usize = 4;

/// The kind of each message, its case, and the message.
fn messages(recorded: &str) -> impl Iterator<Item = (&str, &str, Message)> {
    recorded.lines().map(|line| {
        let mut parts = line.split('\t');
        let (what, case) = (parts.next().unwrap(), parts.next().unwrap());
        let frames: Vec<Bytes> = parts.map(frame).collect();
        let message = match &frames[..] {
            [one, two, three] => [one, two, three].map(Bytes::clone).into(),
            [one, two, three, four] => [one, two, three, four].map(Bytes::clone).into(),
            _ => panic!("{line}"),
        };
        (what, case, message)
    })
}

fn frame(hex: &str) -> Bytes {
    let digits = hex.trim_matches('-').as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The cached blocks of the prompt that a router knows after this batch alone.
fn known_after(batch: &[u8]) -> [u32; 5] {
    let limits = Limits {
        block_size: BLOCK,
        ..Limits::default()
    };
    let workers = Workers::new(limits, 1 << 20);
    let mut blocks = workers.add().unwrap();
    for event in &Batch::read(batch).unwrap().events {
        // blocks of another size are left out
        let _ = blocks.apply(&workers.index, event);
    }
    let ids: Vec<u32> = (1..=12).collect();
    let overlap = |lora, salt| {
        let (mut names, mut out) = (Vec::new(), [Overlap::default()]);
        chain(&ids, BLOCK, Seed::new(lora, salt), &mut names);
        workers.index.matches(&names, &[blocks.slot()], &mut out);
        out[0]
    };
    let plain = overlap(None, None);
    let (lora, salt) = (Some("sql"), Some("tenant"));
    let others = [(lora, None), (None, salt), (lora, salt)];
    let [lora, salt, both] = others.map(|(lora, salt)| overlap(lora, salt).blocks());
    [plain.gpu, plain.host, lora, salt, both]
}

#[test]
fn batches_of_old_and_new_engines_mean_the_same() {
    let mut seen = vec![false; CASES.len()];
    for (engine, recorded, _) in RECORDED {
        let published = messages(recorded).filter(|(what, ..)| *what == "published");
        for (number, (_, name, message)) in published.enumerate() {
            let payload = Payload::of(&message).unwrap();
            assert_eq!(payload.number, number as u64, "{engine}: {name}");
            let at = CASES.iter().position(|(case, _)| *case == name).unwrap();
            assert_eq!(known_after(&payload.batch), CASES[at].1, "{engine}: {name}");
            seen[at] = true;
        }
    }
    assert!(seen.iter().all(|seen| *seen), "{seen:?}");
}

#[test]
fn replays_of_old_and_new_engines_are_what_was_published() {
    for (engine, recorded, frames) in RECORDED {
        let of = |wanted| messages(recorded).filter(move |(what, ..)| *what == wanted);
        let last = of("published").last().unwrap();
        let replayed: Vec<_> = of("replayed").collect();
        let Some(frames) = frames else {
            assert!(replayed.is_empty(), "{engine}");
            continue;
        };
        let [batch, end] = &replayed[..] else {
            panic!("{engine}: {replayed:?}");
        };
        for (.., message) in [batch, end] {
            assert_eq!(message.frames().len(), frames, "{engine}");
        }
        assert_eq!(Payload::of(&batch.2), Payload::of(&last.2), "{engine}");
        assert!(Payload::of(&end.2).unwrap().is_end(), "{engine}");
    }
}
