use std::time::Duration;

use super::{prompts::Prompt, worker::Worker, *};

#[test]
fn a_worker_computes_one_prompt_after_the_other_and_decodes_all_answers_at_once() {
    let prompts = Prompts::distinct(2, 2500);
    let replayed = replay(&prompts, Routing::RoundRobin, 1, 2, 1).unwrap();
    // 2500 ids at 25,000 a second: one after 100 ms, the other after 200
    assert_eq!(replayed.ttft, Duration::from_millis(150));
    // 179 ids each; both at once but for the first 100 ms and the last
    let alone = Duration::from_micros(8_100);
    let both = Duration::from_micros(8_200);
    assert!(
        replayed.tpot > alone && replayed.tpot < both,
        "{replayed:?}"
    );
    let decode = replayed.latency.saturating_sub(replayed.ttft);
    assert!(decode > alone * 179 && decode < both * 179, "{replayed:?}");
    assert!(replayed.reuse <= 0.0);
}

#[test]
fn what_is_cached_is_not_computed_but_for_the_last_id() {
    // the second has the 51,200 first ids of the first
    let prompts = Prompts::hot_prefix(2);
    let replayed = replay(&prompts, Routing::RoundRobin, 1, 1, 1).unwrap();
    assert!(
        (replayed.reuse - 51_200.0 / 102_800.0).abs() < 1e-9,
        "{replayed:?}"
    );
    let text = r#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [7, 8]}"#;
    let twice = format!("{text}\n{text}\n");
    let same = Prompts::read("same".to_owned(), &twice, TraceFormat::Mooncake).unwrap();
    let replayed = replay(&same, Routing::RoundRobin, 1, 1, 1).unwrap();
    assert!(
        (replayed.reuse - 1023.0 / 2048.0).abs() < 1e-9,
        "{replayed:?}"
    );
    assert!((same.ideal() - replayed.reuse).abs() < 1e-9);
}

#[test]
fn a_full_cache_loses_the_end_of_the_oldest_prompt() {
    // 16,384 blocks: twelve prompts of 1250, and 1384 of the first
    let prompts = Prompts::distinct(14, 80_000);
    let all: &[Prompt] = &prompts.all;
    let mut worker = Worker::new();
    let mut removed = Vec::new();
    for request in 0..14 {
        worker.submit(request);
        worker.begin(all).unwrap();
        let (_, cached, changed) = worker.prefilled(all, 0).unwrap();
        assert_eq!((cached, changed.stored_from), (0, 0));
        removed.extend(changed.removed);
    }
    let oldest: Vec<_> = all[0].chain.iter().rev().copied().collect();
    assert_eq!(removed.len(), 14 * 1250 - 16_384);
    assert_eq!(removed, oldest[..removed.len()]);
}

#[test]
fn traces_of_both_formats_are_read_and_wrong_lines_are_refused() {
    let line = |ids: usize, parts: usize| {
        let names: Vec<String> = (0..parts).map(|it| it.to_string()).collect();
        let names = names.join(", ");
        format!(
            r#"{{"input_length": {ids}, "output_length": 5, "hash_ids": [{names}], "turn": 1}}"#
        )
    };
    let read = |text: &str, format| Prompts::read("t".to_owned(), text, format);
    let mooncake = read(&line(1000, 2), TraceFormat::Mooncake).unwrap();
    let bailian = read(&line(1000, 63), TraceFormat::Bailian).unwrap();
    assert_eq!(mooncake.all[0].chain.len(), 15);
    assert_eq!(bailian.all[0].chain.len(), 15);
    // the same names, of other parts
    assert_ne!(mooncake.all[0].chain, bailian.all[0].chain);
    for (text, format) in [
        (line(1000, 3), TraceFormat::Mooncake),
        (line(1000, 2), TraceFormat::Bailian),
        ("{}".to_owned(), TraceFormat::Mooncake),
        (String::new(), TraceFormat::Mooncake),
    ] {
        assert!(read(&text, format).is_err(), "{text}");
    }
}

/// One block each: what a prompt's blocks are named is what an engine's events make of their ids.
#[test]
fn events_name_the_blocks_that_prompts_ask_for() {
    let prompts = Prompts::hot_prefix(40);
    let replayed = replay(&prompts, Routing::Exact, 2, 1, 1).unwrap();
    // by the events alone: all go to the worker that computed the first
    assert_eq!(replayed.requests.iter().max(), Some(&40));
}
