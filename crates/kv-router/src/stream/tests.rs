use rand::{SeedableRng, rngs::StdRng};

use super::{
    Effect::{Apply, Clear, Replay},
    Input::{
        Connected, Disconnected, Message, Orphan, OtherBlockSize, OurBlockSize, ReplayEnded,
        ReplayFailed, Replayed, Tick, Unreadable,
    },
    StreamState::{Connecting, Live, NoEvents, Partial, Replaying},
    *,
};

/// A stream and the time in milliseconds; messages carry their numbers.
struct Test {
    stream: EventStream<u64>,
    now: u64,
    rng: StdRng,
}

impl Test {
    fn new(can_replay: bool) -> Self {
        Self {
            stream: EventStream::new(can_replay),
            now: 1000,
            rng: StdRng::seed_from_u64(1),
        }
    }

    fn connected(can_replay: bool) -> Self {
        let mut test = Self::new(can_replay);
        assert_eq!(test.stream.state(), Connecting);
        if can_replay {
            test.expect(Connected, &[Replay { number: 1, from: 0 }], Replaying);
            test.expect(ReplayEnded(1), &[], NoEvents);
        } else {
            test.expect(Connected, &[], NoEvents);
        }
        test
    }

    /// Live, with all up to `last`.
    fn live(can_replay: bool, last: u64) -> Self {
        let mut test = Self::connected(can_replay);
        for number in 0..=last {
            test.expect(Message(number, number), &[Apply(number)], Live);
        }
        test
    }

    fn on(&mut self, input: Input<u64>) -> Effects<u64> {
        let now = Moment::from_millis(self.now);
        self.stream.on(input, now, &mut self.rng)
    }

    #[track_caller]
    fn expect(&mut self, input: Input<u64>, effects: &[Effect<u64>], state: StreamState) {
        let text = format!("{input:?}");
        assert_eq!(self.on(input)[..], *effects, "{text}");
        assert_eq!(self.stream.state(), state, "{text}");
    }

    /// The wait before the next connection, in milliseconds.
    #[track_caller]
    fn disconnect(&mut self) -> u128 {
        let effects = self.on(Disconnected);
        assert_eq!(self.stream.state(), Connecting);
        match effects.last() {
            Some(Effect::Connect(after)) => after.as_millis(),
            _ => panic!("{effects:?}"),
        }
    }
}

#[test]
fn a_stream_from_its_beginning_is_live_and_duplicates_are_dropped() {
    let mut test = Test::live(true, 2);
    test.expect(Message(1, 1), &[], Live);
    test.expect(Message(3, 3), &[Apply(3)], Live);
}

#[test]
fn a_late_subscriber_replays_from_the_beginning() {
    let mut test = Test::connected(true);
    test.expect(Message(2, 2), &[Replay { number: 2, from: 0 }], Replaying);
    test.expect(Message(3, 3), &[], Replaying);
    for number in 0..3 {
        test.expect(Replayed(2, number, number), &[Apply(number)], Replaying);
    }
    // 2 came twice
    test.expect(ReplayEnded(2), &[Apply(3)], Live);
    test.expect(Message(4, 4), &[Apply(4)], Live);
}

#[test]
fn what_an_engine_published_before_is_known_without_a_new_message() {
    let started = || {
        let mut test = Test::new(true);
        test.expect(Connected, &[Replay { number: 1, from: 0 }], Replaying);
        test
    };
    let mut test = started();
    test.expect(Replayed(1, 0, 0), &[Apply(0)], Replaying);
    test.expect(Replayed(1, 1, 1), &[Apply(1)], Replaying);
    test.expect(ReplayEnded(1), &[], Live);
    test.expect(Message(2, 2), &[Apply(2)], Live);
    // It was published between the replay and the subscription.
    let mut test = started();
    test.expect(Replayed(1, 0, 0), &[Apply(0)], Replaying);
    test.expect(ReplayEnded(1), &[], Live);
    test.expect(Message(2, 2), &[Replay { number: 2, from: 1 }], Replaying);
    // A replay without an answer is tried again when the first message comes.
    for end in [ReplayEnded(1), ReplayFailed(1)] {
        let mut test = started();
        test.expect(end, &[], NoEvents);
        assert_eq!(test.stream.partial(), None);
        test.expect(Message(2, 2), &[Replay { number: 2, from: 0 }], Replaying);
    }
}

#[test]
fn a_replay_that_does_not_reach_the_beginning_is_partial_and_its_orphans_are_expected() {
    let mut test = Test::connected(true);
    test.expect(Message(9, 9), &[Replay { number: 2, from: 0 }], Replaying);
    test.expect(Replayed(2, 8, 8), &[Apply(8)], Replaying);
    test.expect(ReplayEnded(2), &[Apply(9)], Partial);
    test.expect(Orphan, &[], Partial);
}

#[test]
fn without_a_replay_or_with_an_empty_one_a_late_subscriber_is_partial() {
    let mut test = Test::connected(false);
    test.expect(Message(9, 9), &[Apply(9)], Partial);
    test.expect(Orphan, &[], Partial);
    let mut test = Test::connected(true);
    test.expect(Message(9, 9), &[Replay { number: 2, from: 0 }], Replaying);
    test.expect(ReplayEnded(2), &[Apply(9)], Partial);
    let mut test = Test::connected(true);
    test.expect(Message(9, 9), &[Replay { number: 2, from: 0 }], Replaying);
    test.expect(ReplayFailed(2), &[Apply(9)], Partial);
}

#[test]
fn a_gap_is_closed_by_a_replay() {
    let mut test = Test::live(true, 2);
    test.expect(Message(5, 5), &[Replay { number: 2, from: 3 }], Replaying);
    test.expect(Message(6, 6), &[], Replaying);
    // some replays begin before what was asked for
    test.expect(Replayed(2, 2, 2), &[], Replaying);
    test.expect(Replayed(2, 3, 3), &[Apply(3)], Replaying);
    test.expect(Replayed(2, 4, 4), &[Apply(4)], Replaying);
    test.expect(ReplayEnded(2), &[Apply(5), Apply(6)], Live);
}

#[test]
fn a_gap_that_cannot_be_closed_makes_it_relearn() {
    let mut test = Test::live(false, 2);
    test.expect(Message(5, 5), &[Clear, Apply(5)], Partial);

    let gap = || {
        let mut test = Test::live(true, 2);
        test.expect(Message(5, 5), &[Replay { number: 2, from: 3 }], Replaying);
        test
    };
    let mut late = gap();
    late.expect(Replayed(2, 4, 4), &[Clear, Apply(5)], Partial);
    // what else it brings is of no use
    late.expect(Replayed(2, 5, 5), &[], Partial);

    let mut torn = gap();
    torn.expect(Replayed(2, 3, 3), &[Apply(3)], Replaying);
    torn.expect(Replayed(2, 5, 5), &[Clear, Apply(5)], Partial);

    let mut short = gap();
    short.expect(ReplayEnded(2), &[Clear, Apply(5)], Partial);

    let mut failed = gap();
    failed.expect(ReplayFailed(2), &[Clear, Apply(5)], Partial);

    let mut slow = gap();
    assert_eq!(slow.stream.next_at(), Some(Moment::from_millis(6000)));
    slow.now += 5000;
    slow.expect(Tick, &[Clear, Apply(5)], Partial);
    assert_eq!(slow.stream.next_at(), None);

    let mut full = gap();
    for number in 6..5 + 1024 {
        full.expect(Message(number, number), &[], Replaying);
    }
    let effects = full.on(Message(1029, 1029));
    assert_eq!((effects.len(), &effects[0]), (1026, &Clear));
    assert_eq!(full.stream.state(), Partial);
}

#[test]
fn a_gap_among_the_messages_that_came_meanwhile_makes_it_relearn_from_there() {
    let mut test = Test::live(true, 2);
    test.expect(Message(4, 4), &[Replay { number: 2, from: 3 }], Replaying);
    test.expect(Message(7, 7), &[], Replaying);
    test.expect(Replayed(2, 3, 3), &[Apply(3)], Replaying);
    test.expect(ReplayEnded(2), &[Apply(4), Clear, Apply(7)], Partial);
}

#[test]
fn after_a_reconnection_the_next_message_goes_on_and_any_other_starts_anew() {
    let again = |kept: u64| {
        let mut test = Test::live(true, 2);
        test.disconnect();
        test.now += kept;
        test.expect(Connected, &[], Live);
        test
    };
    again(9_000).expect(Message(3, 3), &[Apply(3)], Live);
    // another engine
    again(9_000).expect(Message(0, 0), &[Clear, Apply(0)], Live);
    again(9_000).expect(
        Message(1, 1),
        &[Clear, Replay { number: 2, from: 0 }],
        Replaying,
    );
    again(9_000).expect(
        Message(7, 7),
        &[Clear, Replay { number: 2, from: 0 }],
        Replaying,
    );
    // the second message after it is like all others
    let mut test = again(100);
    test.expect(Message(3, 3), &[Apply(3)], Live);
    test.expect(Message(3, 3), &[], Live);
    test.expect(Message(6, 6), &[Replay { number: 2, from: 4 }], Replaying);
}

#[test]
fn what_is_known_is_kept_for_ten_seconds_without_a_connection() {
    let mut test = Test::live(true, 2);
    test.disconnect();
    assert_eq!(test.stream.next_at(), Some(Moment::from_millis(11_000)));
    test.now += 4_000;
    test.disconnect();
    test.now += 5_999;
    test.expect(Tick, &[], Connecting);
    test.now += 1;
    test.expect(Tick, &[Clear], Connecting);
    assert_eq!(test.stream.next_at(), None);
    test.expect(Connected, &[Replay { number: 2, from: 0 }], Replaying);
    // and if nobody looks in time
    let mut test = Test::live(true, 2);
    test.disconnect();
    test.now += 10_000;
    test.expect(
        Connected,
        &[Clear, Replay { number: 2, from: 0 }],
        Replaying,
    );
}

#[test]
fn a_replay_ends_with_its_connection() {
    let mut test = Test::live(true, 2);
    test.expect(Message(5, 5), &[Replay { number: 2, from: 3 }], Replaying);
    test.disconnect();
    test.expect(Connected, &[], Live);
    test.expect(Replayed(2, 3, 3), &[], Live);
    test.expect(
        Message(6, 6),
        &[Clear, Replay { number: 3, from: 0 }],
        Replaying,
    );
}

#[test]
fn waits_grow_from_a_tenth_of_a_second_to_five_and_differ() {
    let mut test = Test::new(true);
    let waits: Vec<u128> = (0..30).map(|_| test.disconnect()).collect();
    assert!((100..=200).contains(&waits[0]), "{waits:?}");
    assert!((200..=400).contains(&waits[1]), "{waits:?}");
    assert!(
        waits[8..].iter().all(|it| (2500..=5000).contains(it)),
        "{waits:?}"
    );
    assert!(waits[8..].iter().any(|it| *it != waits[8]), "{waits:?}");
    test.expect(Connected, &[Replay { number: 1, from: 0 }], Replaying);
    test.expect(Message(0, 0), &[], Replaying);
    assert!((100..=200).contains(&test.disconnect()));
}

#[test]
fn connections_without_a_message_are_retries_and_keep_nothing_known_for_longer() {
    let mut test = Test::live(true, 2);
    assert!((100..=200).contains(&test.disconnect()));
    // an hour of silence is none without a connection
    for gone in [4_000, 5_999] {
        test.now += gone;
        test.expect(Connected, &[], Live);
        test.now += 3_600_000;
        test.disconnect();
    }
    test.now += 1;
    test.expect(
        Connected,
        &[Clear, Replay { number: 2, from: 0 }],
        Replaying,
    );
    assert!((800..=1600).contains(&test.disconnect()));
}

#[test]
fn an_orphan_replays_all_once_in_thirty_seconds() {
    let mut test = Test::live(true, 2);
    test.expect(Orphan, &[Replay { number: 2, from: 0 }], Replaying);
    test.expect(Message(3, 3), &[], Replaying);
    test.expect(Replayed(2, 0, 0), &[Clear, Apply(0)], Replaying);
    for number in 1..3 {
        test.expect(Replayed(2, number, number), &[Apply(number)], Replaying);
    }
    test.expect(ReplayEnded(2), &[Apply(3)], Live);
    test.now += 29_999;
    test.expect(Orphan, &[], Live);
    test.now += 1;
    test.expect(Orphan, &[Replay { number: 3, from: 0 }], Replaying);
    // not all of it is left
    test.expect(Replayed(3, 2, 2), &[Clear, Apply(2)], Replaying);
    test.expect(Replayed(3, 3, 3), &[Apply(3)], Replaying);
    test.expect(ReplayEnded(3), &[], Partial);
    let mut test = Test::live(false, 2);
    test.expect(Orphan, &[], Live);
}

#[test]
fn blocks_of_another_size_are_a_state_until_one_of_ours_comes_and_none_after_it() {
    let mut test = Test::live(true, 2);
    let mismatch = StreamState::BlockSizeMismatch;
    test.expect(OtherBlockSize, &[], mismatch);
    test.expect(Message(3, 3), &[Apply(3)], mismatch);
    test.expect(Orphan, &[], mismatch);
    test.expect(OurBlockSize, &[], Live);
    test.expect(OtherBlockSize, &[], Live);
    // maybe another engine, with blocks of another size
    test.disconnect();
    test.expect(Connected, &[], Live);
    test.expect(Message(0, 0), &[Clear, Apply(0)], Live);
    test.expect(OtherBlockSize, &[], mismatch);
}

#[test]
fn what_cannot_be_read_is_partial_until_the_engine_starts_anew() {
    let mut test = Test::live(true, 2);
    test.expect(Unreadable, &[], Partial);
    // a replay repeats the same bytes
    test.expect(Orphan, &[], Partial);
    test.expect(Message(3, 3), &[Apply(3)], Partial);
    assert_eq!(test.stream.partial(), Some(PartialCause::Unreadable));
    test.disconnect();
    test.expect(Connected, &[], Partial);
    test.expect(Message(0, 0), &[Clear, Apply(0)], Live);
    assert_eq!(test.stream.partial(), None);
}

#[test]
fn a_partial_stream_says_why() {
    use PartialCause::{FailedReplay, Gap, Late, ShortReplay, SlowReplay};
    let cause = |can_replay, inputs: Vec<Input<u64>>| {
        let mut test = Test::live(can_replay, 2);
        for input in inputs {
            test.on(input);
        }
        assert_eq!(test.stream.state(), Partial);
        test.stream.partial()
    };
    assert_eq!(cause(false, vec![Message(5, 5)]), Some(Gap));
    let failed = vec![Message(5, 5), ReplayFailed(2)];
    assert_eq!(cause(true, failed), Some(FailedReplay));
    let short = vec![Message(5, 5), Replayed(2, 4, 4)];
    assert_eq!(cause(true, short), Some(ShortReplay));
    let slow = (5..=5 + BUFFER as u64).map(|it| Message(it, it)).collect();
    assert_eq!(cause(true, slow), Some(SlowReplay));
    let mut late = Test::connected(false);
    late.on(Message(5, 5));
    assert_eq!(late.stream.partial(), Some(Late));
}
