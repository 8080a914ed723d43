mod simulation;

use rand::{SeedableRng, rngs::StdRng};

use super::*;

const fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn mk_record(holder: &str, version: &str) -> Record {
    Record {
        holder: holder.to_owned(),
        transitions: 3,
        version: version.to_owned(),
    }
}

/// A contender and its dice.
struct Table {
    contender: Contender,
    rng: StdRng,
}

impl Table {
    fn new() -> Self {
        Self {
            contender: Contender::new("me"),
            rng: StdRng::seed_from_u64(7),
        }
    }

    fn step(&mut self, now: u64) -> Step {
        self.contender.step(at(now), &mut self.rng)
    }

    fn call(&mut self, now: u64) -> Call {
        match self.step(now) {
            Step::Call(call) => call,
            Step::Wait(until) => panic!("waits until {until:?}"),
        }
    }

    fn wait(&mut self, now: u64) -> u64 {
        match self.step(now) {
            // rounded up, as timers do
            Step::Wait(until) => {
                let nanos = until.since(at(now)).as_nanos().div_ceil(1_000_000);
                u64::try_from(nanos).expect("small")
            }
            Step::Call(call) => panic!("calls {call:?}"),
        }
    }

    /// Makes the call that is due and answers it.
    fn answer(&mut self, started: u64, now: u64, reply: Reply) -> Call {
        let call = self.call(started);
        self.contender
            .on(&call, reply, at(started), at(now), &mut self.rng);
        call
    }

    /// Takes a released lease at `now`; its version is then 2.
    fn lead(&mut self, now: u64) {
        let released = Reply::Lease(Some(mk_record("", "1")));
        self.answer(now, now, released);
        self.answer(now, now, Reply::Lease(Some(mk_record("me", "2"))));
        assert_eq!(self.contender.valid_until(), at(now + 10_000));
    }
}

fn draft(call: &Call) -> &Draft {
    match call {
        Call::Put(draft) => draft,
        Call::Get => panic!("a look"),
    }
}

#[test]
fn the_first_lease_is_created() {
    let mut table = Table::new();
    assert_eq!(table.answer(0, 5, Reply::Lease(None)), Call::Get);
    let call = table.answer(5, 9, Reply::Lease(Some(mk_record("me", "1"))));
    let want = Draft {
        holder: "me".to_owned(),
        transitions: 0,
        acquires: true,
        replaces: None,
    };
    assert_eq!(call, Call::Put(want));
    // counted from before the call, not from its answer
    assert_eq!(table.contender.valid_until(), at(10_005));
}

#[test]
fn a_renewal_is_due_two_seconds_after_the_last_began() {
    let mut table = Table::new();
    table.lead(100);
    assert_eq!(table.wait(150), 1_950);
    let call = table.answer(2_100, 2_900, Reply::Lease(Some(mk_record("me", "3"))));
    assert_eq!(
        (draft(&call).acquires, draft(&call).transitions),
        (false, 3)
    );
    assert_eq!(draft(&call).replaces.as_deref(), Some("2"));
    assert_eq!(table.contender.valid_until(), at(12_100));
    assert_eq!(table.wait(2_900), 1_200);
}

#[test]
fn a_lease_of_another_is_watched_and_taken_when_it_has_run_out() {
    let mut table = Table::new();
    let held = || Reply::Lease(Some(mk_record("other", "7")));
    table.answer(0, 100, held());
    let mut now = 100;
    while now < 15_100 {
        let wait = table.wait(now);
        assert!((1..=2_000).contains(&wait), "{wait}");
        now += wait;
        assert_eq!(table.answer(now, now, held()), Call::Get);
    }
    // just when it has run out, not up to a look later
    assert_eq!(now, 15_100);
    let call = table.call(now);
    let draft = draft(&call);
    assert_eq!((draft.acquires, draft.transitions), (true, 4));
    assert_eq!(draft.replaces.as_deref(), Some("7"));
}

#[test]
fn a_lost_race_is_looked_at_once_and_then_with_a_backoff() {
    let mut table = Table::new();
    table.answer(0, 0, Reply::Lease(None));
    table.answer(0, 3, Reply::Conflict);
    assert_eq!(table.answer(3, 5, Reply::Lease(None)), Call::Get);
    table.answer(5, 6, Reply::Conflict);
    assert!(table.wait(6) >= 50);
}

#[test]
fn a_renewal_without_an_answer_is_tried_again_in_time() {
    let mut table = Table::new();
    table.lead(0);
    let mut now = 2_000;
    let mut tries = 0;
    while now < 10_000 {
        // each takes its whole deadline
        let call = table.answer(now, now + 2_500, Reply::Failed);
        assert!(matches!(call, Call::Put(_)), "{call:?}");
        tries += 1;
        now += 2_500;
        let wait = table.wait(now);
        assert!(wait <= 2_000, "{wait}");
        now += wait;
    }
    assert!(tries >= 2, "{tries}");
    // none of this made the claim last
    assert_eq!(table.contender.valid_until(), at(10_000));
}

#[test]
fn a_renewal_that_took_effect_unheard_is_found_out() {
    let mut table = Table::new();
    table.lead(0);
    table.answer(2_000, 4_500, Reply::Failed);
    let now = 4_500 + table.wait(4_500);
    table.answer(now, now, Reply::Conflict);
    assert_eq!(table.call(now), Call::Get);
    table.answer(now, now, Reply::Lease(Some(mk_record("me", "3"))));
    let call = table.answer(now, now, Reply::Lease(Some(mk_record("me", "4"))));
    assert!(!draft(&call).acquires);
    assert_eq!(table.contender.valid_until(), at(now + 10_000));
}

#[test]
fn whoever_sees_another_holder_gives_up_at_once() {
    for reply in [
        Some(mk_record("other", "9")),
        Some(mk_record("", "9")),
        None,
    ] {
        let mut table = Table::new();
        table.lead(0);
        table.answer(2_000, 2_000, Reply::Conflict);
        table.answer(2_000, 2_001, Reply::Lease(reply));
        assert_eq!(table.contender.valid_until(), Moment::START);
    }
}

#[test]
fn an_answer_that_shows_no_renewal_renews_nothing() {
    // the version as it was; another's name; nothing at all
    for reply in [
        Some(mk_record("me", "2")),
        Some(mk_record("other", "3")),
        None,
    ] {
        let mut table = Table::new();
        table.lead(0);
        table.answer(2_000, 2_000, Reply::Lease(reply));
        assert_eq!(table.contender.valid_until(), at(10_000));
    }
}

#[test]
fn giving_back_ends_the_claim_first_and_only_what_is_ours() {
    let mut table = Table::new();
    assert_eq!(table.contender.release(), None);
    table.lead(0);
    let call = table.contender.release().expect("something to give back");
    assert_eq!(table.contender.valid_until(), Moment::START);
    assert_eq!(draft(&call).holder, "");
    assert_eq!(draft(&call).replaces.as_deref(), Some("2"));
    let released = Reply::Lease(Some(mk_record("", "3")));
    table
        .contender
        .on(&call, released, at(5), at(6), &mut table.rng);
    assert_eq!(table.contender.holder(), None);
    assert_eq!(table.contender.valid_until(), Moment::START);
    assert_eq!(table.contender.release(), None);
}

#[test]
fn failures_in_a_row_wait_longer_but_never_as_long_as_a_hung_task() {
    let mut table = Table::new();
    let mut now = 0;
    let mut longest = 0;
    for _ in 0..50 {
        table.answer(now, now, Reply::Failed);
        let wait = table.wait(now);
        longest = longest.max(wait);
        now += wait;
    }
    assert!((2_000..=5_000).contains(&longest), "{longest}");
}
