//! Queue, batch and blocks in simulated time.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::engine::{Finish, PrefixSeed, Spread, prefix_blocks};

fn mk_scheduler(max_running: usize, max_waiting: usize, blocks: u32) -> Scheduler {
    let limits = Limits {
        max_running: NonZeroUsize::new(max_running).expect("not zero"),
        max_waiting,
        block_tokens: NonZeroU32::new(4).expect("not zero"),
        blocks: NonZeroU32::new(blocks).expect("not zero"),
        max_adapters: NonZeroUsize::MIN,
    };
    let latency = Latency {
        first_token: Spread::fixed(Duration::from_millis(100)),
        prefill_per_token: Duration::from_millis(1),
        inter_token: Spread::fixed(Duration::from_millis(10)),
        ..Latency::default()
    };
    Scheduler::new(limits, latency, Dice::new(0))
}

fn mk_work(prompt_tokens: u32, output_tokens: u32) -> Work {
    Work {
        prompt_tokens,
        prefix: Vec::new(),
        content: None,
        adapter: None,
        output_tokens,
        finish: Finish::Length,
    }
}

fn millis(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

#[test]
fn a_sequence_makes_each_token_at_its_own_moment() {
    let mut scheduler = mk_scheduler(1, 0, 100);
    let mut events = Vec::new();
    let id = scheduler
        .submit(mk_work(8, 3), millis(0), &mut events)
        .expect("room");
    assert_eq!(scheduler.next_due(), Some(millis(108)));
    scheduler.advance(millis(1_000), &mut events);
    let ms = Duration::from_millis;
    assert_eq!(
        events,
        [
            Event::Started {
                id,
                queued: ms(0),
                prompt_tokens: 8,
                cached_tokens: 0
            },
            Event::Prefilled {
                id,
                prompt_tokens: 8,
                took: ms(108)
            },
            Event::FirstToken {
                id,
                since_arrival: ms(108)
            },
            Event::Token {
                id,
                produced: 2,
                since_last: ms(10)
            },
            Event::Token {
                id,
                produced: 3,
                since_last: ms(10)
            },
            Event::Finished {
                id,
                finish: Finish::Length,
                since_arrival: ms(128),
                decode: ms(20)
            },
        ]
    );
    assert_eq!((scheduler.running(), scheduler.next_due()), (0, None));
}

#[test]
fn the_next_in_line_starts_the_moment_a_place_is_free() {
    let mut scheduler = mk_scheduler(1, 2, 100);
    let mut events = Vec::new();
    scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("room");
    let second = scheduler
        .submit(mk_work(0, 1), millis(20), &mut events)
        .expect("queue");
    let third = scheduler
        .submit(mk_work(0, 1), millis(30), &mut events)
        .expect("queue");
    events.clear();
    scheduler.advance(millis(150), &mut events);
    assert!(events.contains(&Event::Started {
        id: second,
        queued: Duration::from_millis(80),
        prompt_tokens: 0,
        cached_tokens: 0
    }));
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::Started { id, .. } if *id == third))
    );
    assert_eq!(
        scheduler.next_due(),
        Some(millis(200)),
        "100 ms after the first one ended"
    );
}

#[test]
fn a_full_queue_rejects_and_stays_as_it_was() {
    let mut scheduler = mk_scheduler(1, 1, 100);
    let mut events = Vec::new();
    scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("room");
    scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("queue");
    let rejected = scheduler.submit(mk_work(0, 1), millis(0), &mut events);
    assert_eq!(rejected, Err(Rejected::QueueFull { waiting: 1 }));
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 1));
}

#[test]
fn what_is_due_happens_before_a_full_queue_is_judged() {
    let mut scheduler = mk_scheduler(1, 0, 100);
    let mut events = Vec::new();
    scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("room");
    assert!(
        scheduler
            .submit(mk_work(0, 1), millis(99), &mut events)
            .is_err()
    );
    assert!(
        scheduler
            .submit(mk_work(0, 1), millis(100), &mut events)
            .is_ok()
    );
}

#[test]
fn a_full_cache_makes_requests_wait_in_order() {
    // 10 blocks of 4 tokens: 8 are reserved, so the next (4 blocks) waits, and the small one behind it too.
    let mut scheduler = mk_scheduler(5, 5, 10);
    let mut events = Vec::new();
    let first = scheduler
        .submit(mk_work(20, 12), millis(0), &mut events)
        .expect("room");
    scheduler
        .submit(mk_work(8, 8), millis(0), &mut events)
        .expect("queue");
    scheduler
        .submit(mk_work(1, 1), millis(0), &mut events)
        .expect("queue");
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 2));
    scheduler.cancel(first, millis(1), &mut events);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 0));
}

#[test]
fn work_beyond_the_whole_cache_is_refused() {
    let mut scheduler = mk_scheduler(5, 5, 10);
    let rejected = scheduler.submit(mk_work(40, 1), millis(0), &mut Vec::new());
    assert_eq!(
        rejected,
        Err(Rejected::TooLarge {
            needed: 11,
            blocks: 10
        })
    );
    assert_eq!(
        rejected.map_err(|rejected| rejected.reason()),
        Err("too-large")
    );
}

#[test]
fn usage_grows_with_the_tokens_and_ends_with_the_sequence() {
    let mut scheduler = mk_scheduler(1, 0, 10);
    let mut events = Vec::new();
    scheduler
        .submit(mk_work(8, 5), millis(0), &mut events)
        .expect("room");
    let usage = |scheduler: &Scheduler| (scheduler.kv_usage() * 10.0).round();
    assert!((usage(&scheduler) - 2.0).abs() < 0.1);
    scheduler.advance(millis(108), &mut events);
    assert!((usage(&scheduler) - 3.0).abs() < 0.1);
    scheduler.advance(millis(1_000), &mut events);
    assert!(usage(&scheduler).abs() < 0.1);
}

#[test]
fn cancelling_twice_or_after_the_end_does_nothing() {
    let mut scheduler = mk_scheduler(1, 1, 100);
    let mut events = Vec::new();
    let first = scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("room");
    let second = scheduler
        .submit(mk_work(0, 1), millis(0), &mut events)
        .expect("queue");
    scheduler.cancel(second, millis(1), &mut events);
    scheduler.advance(millis(100), &mut events);
    events.clear();
    scheduler.cancel(first, millis(101), &mut events);
    scheduler.cancel(second, millis(101), &mut events);
    assert_eq!(events, []);
}

#[test]
fn new_latency_counts_from_the_next_token() {
    let mut scheduler = mk_scheduler(1, 0, 100);
    let mut events = Vec::new();
    scheduler
        .submit(mk_work(0, 3), millis(0), &mut events)
        .expect("room");
    scheduler.set_latency(Latency {
        inter_token: Spread::fixed(Duration::from_secs(1)),
        ..Latency::default()
    });
    assert_eq!(scheduler.next_due(), Some(millis(100)));
    scheduler.advance(millis(100), &mut events);
    assert_eq!(scheduler.next_due(), Some(millis(1_100)));
}

/// A prompt of `text`, 4 bytes a token, with one token of output.
fn mk_prompt(text: &str) -> Work {
    let tokens = u32::try_from(text.len().div_ceil(4)).expect("short");
    Work {
        prefix: prefix_blocks(PrefixSeed::default(), text.as_bytes(), 4),
        ..mk_work(tokens, 1)
    }
}

fn cached_tokens(events: &[Event]) -> Vec<u32> {
    let cached = |event: &Event| match event {
        Event::Started { cached_tokens, .. } => Some(*cached_tokens),
        _ => None,
    };
    events.iter().filter_map(cached).collect()
}

#[test]
fn a_known_prefix_costs_no_prefill() {
    let mut scheduler = mk_scheduler(1, 0, 100);
    let mut events = Vec::new();
    let prompt = "x".repeat(16 * 4);
    scheduler
        .submit(mk_prompt(&prompt), millis(0), &mut events)
        .expect("room");
    assert_eq!(scheduler.next_due(), Some(millis(116)));
    scheduler
        .submit(
            mk_prompt(&format!("{prompt}abcd")),
            millis(1_000),
            &mut events,
        )
        .expect("room");
    assert_eq!(
        scheduler.next_due(),
        Some(millis(1_101)),
        "one token is new"
    );
    scheduler
        .submit(mk_prompt(&prompt), millis(2_000), &mut events)
        .expect("room");
    assert_eq!(
        cached_tokens(&events),
        [0, 16, 12],
        "the last block of a prompt is computed again"
    );
}

#[test]
fn a_prefix_is_known_when_its_prefill_ends() {
    let mut scheduler = mk_scheduler(3, 0, 100);
    let mut events = Vec::new();
    let prompt = "x".repeat(40);
    for at in [0, 50, 150] {
        scheduler
            .submit(mk_prompt(&prompt), millis(at), &mut events)
            .expect("room");
    }
    assert_eq!(cached_tokens(&events), [0, 0, 8]);
}

#[test]
fn shared_blocks_count_once_in_usage() {
    let mut scheduler = mk_scheduler(2, 0, 10);
    let mut events = Vec::new();
    let work = Work {
        output_tokens: 5,
        ..mk_prompt(&"x".repeat(40))
    };
    scheduler
        .submit(work.clone(), millis(0), &mut events)
        .expect("room");
    scheduler.advance(millis(110), &mut events);
    scheduler
        .submit(work, millis(110), &mut events)
        .expect("room");
    // two shared, one each of their own
    assert!((scheduler.kv_usage() - 0.4).abs() < 1e-9);
}

#[test]
fn an_embedding_ends_with_its_prefill() {
    let mut scheduler = mk_scheduler(1, 0, 10);
    let mut events = Vec::new();
    let id = scheduler
        .submit(mk_work(8, 0), millis(0), &mut events)
        .expect("room");
    scheduler.advance(millis(108), &mut events);
    assert!(matches!(
        events.as_slice(),
        [Event::Started { .. }, Event::Prefilled { .. }, Event::Finished { id: ended, .. }] if *ended == id
    ));
}

#[test]
fn a_full_batch_is_slower() {
    let mut scheduler = mk_scheduler(2, 0, 100);
    scheduler.set_latency(Latency {
        inter_token: Spread::fixed(Duration::from_millis(10)),
        factor_under_load: 2.0,
        ..Latency::default()
    });
    let mut events = Vec::new();
    for output_tokens in [2, 3] {
        scheduler
            .submit(mk_work(0, output_tokens), millis(0), &mut events)
            .expect("room");
        scheduler.advance(millis(0), &mut events);
    }
    events.clear();
    scheduler.advance(millis(1_000), &mut events);
    let waits: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Token { since_last, .. } => Some(since_last.as_millis()),
            _ => None,
        })
        .collect();
    // the first one began its second token alone; the other its third one too
    assert_eq!(waits, [10, 20, 10]);
}

fn mk_adapted(adapter: &str) -> Work {
    Work {
        adapter: Some(adapter.into()),
        ..mk_work(0, 1)
    }
}

#[test]
fn adapters_without_a_place_wait_and_let_others_pass() {
    let mut scheduler = mk_scheduler(3, 5, 100);
    let mut events = Vec::new();
    for work in [
        mk_adapted("a"),
        mk_adapted("b"),
        mk_adapted("a"),
        mk_work(0, 1),
    ] {
        scheduler
            .submit(work, millis(0), &mut events)
            .expect("room");
    }
    let names = |names: BTreeSet<Arc<str>>| names.into_iter().collect::<Vec<_>>().join(",");
    assert_eq!((scheduler.running(), scheduler.waiting()), (3, 1));
    assert_eq!(
        (
            names(scheduler.running_adapters()),
            names(scheduler.waiting_adapters())
        ),
        ("a".to_owned(), "b".to_owned())
    );
    scheduler.advance(millis(100), &mut events);
    assert_eq!(names(scheduler.running_adapters()), "b");
    scheduler.advance(millis(200), &mut events);
    assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
}

#[test]
fn an_adapter_that_is_not_there_takes_longer() {
    let mut scheduler = mk_scheduler(1, 5, 100);
    scheduler.set_latency(Latency {
        first_token: Spread::fixed(Duration::from_millis(100)),
        adapter_swap: Duration::from_secs(1),
        ..Latency::default()
    });
    let mut events = Vec::new();
    for adapter in ["a", "a", "b", "a"] {
        scheduler
            .submit(mk_adapted(adapter), millis(0), &mut events)
            .expect("room");
    }
    scheduler.advance(millis(100_000), &mut events);
    let prefills: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Prefilled { took, .. } => Some(took.as_millis()),
            _ => None,
        })
        .collect();
    assert_eq!(prefills, [1_100, 100, 1_100, 1_100]);
}

#[derive(Clone, Debug)]
enum Step {
    Submit {
        prompt_tokens: u32,
        output_tokens: u32,
    },
    Cancel {
        which: usize,
    },
    Wait {
        millis: u64,
    },
}

/// Prompts of two kinds, so that some share a prefix.
fn mk_repeated(prompt_tokens: u32, output_tokens: u32) -> Work {
    let letter = if prompt_tokens.is_multiple_of(3) {
        "x"
    } else {
        "y"
    };
    let text = letter.repeat(usize::try_from(prompt_tokens * 4).expect("small"));
    Work {
        output_tokens,
        adapter: (prompt_tokens % 5 < 2).then(|| letter.into()),
        ..mk_prompt(&text)
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u32..30, 1u32..30).prop_map(|(prompt_tokens, output_tokens)| Step::Submit {
            prompt_tokens,
            output_tokens
        }),
        (0usize..20).prop_map(|which| Step::Cancel { which }),
        (0u64..200).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    /// Whatever happens: limits hold, everything accepted ends exactly once, and nothing stays reserved.
    #[test]
    fn everything_ends_once_and_gives_everything_back(steps in prop::collection::vec(step(), 0..60)) {
        let mut scheduler = mk_scheduler(3, 4, 10);
        let (mut events, mut accepted, mut now) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Submit { prompt_tokens, output_tokens } => accepted.extend(
                    scheduler.submit(mk_repeated(prompt_tokens, output_tokens), millis(now), &mut events),
                ),
                Step::Cancel { which } => {
                    if let Some(id) = accepted.get(which) {
                        scheduler.cancel(*id, millis(now), &mut events);
                    }
                }
                Step::Wait { millis: wait } => {
                    now += wait;
                    scheduler.advance(millis(now), &mut events);
                }
            }
            prop_assert!(scheduler.running() <= 3 && scheduler.waiting() <= 4);
            prop_assert!((0.0..=1.0).contains(&scheduler.kv_usage()));
            prop_assert!(scheduler.cache.in_use() <= 10);
            prop_assert_eq!(scheduler.due.len(), scheduler.running());
        }
        scheduler.advance(millis(now + 100_000), &mut events);
        prop_assert_eq!((scheduler.running(), scheduler.waiting(), scheduler.cache.in_use()), (0, 0, 0));
        prop_assert!(scheduler.running_adapters().is_empty());
        let mut ended: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Finished { id, .. } | Event::Aborted { id, .. } => Some(*id),
                _ => None,
            })
            .collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, accepted);
    }
}
