//! Time to read and hash the prompt of a body of 64 KiB that was parsed. Prints microseconds; the goal is 100.
//!
//! `cargo bench -p epp --bench prompt`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints"
)]

use std::{
    fmt::Write,
    hint::black_box,
    time::{Duration, Instant},
};

use epp::{Api, Mode, read_prompt};

const PROMPT: usize = 64 << 10;
const ROUNDS: u32 = 2_000;

fn main() {
    let words = "what a user of a chat says and hears, in sentences\n".repeat(PROMPT / 51);
    let plain = words.replace('\n', ".");
    let lines = words.replace('\n', "\\n");
    let mut escaped = String::new();
    for character in "请用Python实现快排".chars().cycle().take(PROMPT / 3) {
        let _ = write!(escaped, "\\u{:04x}", u32::from(character));
    }
    for (name, text) in [("plain", &plain), ("lines", &lines), ("escaped", &escaped)] {
        let one = format!(r#"{{"role":"user","content":"{text}"}}"#);
        let parts = format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#);
        for (shape, message) in [("text", one), ("parts", parts)] {
            let body = format!(r#"{{"model":"m","messages":[{message}]}}"#);
            println!("{name}, {shape}: {:.1} us", micros(&body));
        }
    }
}

/// The least of all rounds: others are interrupted.
fn micros(body: &str) -> f64 {
    let api = Api::for_path(b"/v1/chat/completions").unwrap().unwrap();
    let parsed = api.parse(body.as_bytes()).unwrap();
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        black_box(read_prompt(&parsed, black_box(body.as_bytes()), Mode::Full, "m").unwrap());
        least = least.min(begun.elapsed());
    }
    least.as_secs_f64() * 1e6
}
