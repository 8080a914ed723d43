//! Whether the peer is called at all, decided by how the last calls went.

use std::time::Duration;

use moment::Moment;
use rand::{Rng, RngExt};

/// Failures in a row that open it.
const FAILURES: u32 = 5;
/// Calls within the window from which on their share of failures counts.
const CALLS: u32 = 20;
/// Parts of the window, a second each.
const BUCKETS: usize = 10;
const BUCKET: Duration = Duration::from_secs(1);
/// How long an open one lets nothing through, before chance.
const OPEN: Duration = Duration::from_secs(5);
/// Chance, so that the replicas of a caller do not probe at one time.
const JITTER: f64 = 0.2;

/// Opens after 5 failures in a row, or when half of at least 20 calls within 10 s failed. After 5 s, give or take 20 %,
/// it lets one call through, and closes when that succeeds.
#[derive(Debug)]
pub struct Breaker(State);

/// Whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As any.
    Call,
    /// Alone: its end is to be recorded, or the next probe never comes.
    Probe,
    /// Not now.
    Refused,
}

/// What the end of a call tells of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// Nothing: the call was given up.
    Unknown,
}

#[derive(Debug)]
enum State {
    Closed { in_row: u32, window: Window },
    Open { until: Moment },
    Probing,
}

/// The calls that ended within the last seconds.
#[derive(Debug, Default)]
struct Window([Bucket; BUCKETS]);

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Which second since the start it counts.
    second: u64,
    calls: u32,
    failures: u32,
}

// === impl Breaker ===

impl Breaker {
    /// A closed one.
    pub fn new() -> Self {
        Self(State::Closed {
            in_row: 0,
            window: Window::default(),
        })
    }

    /// Whether a call would be refused.
    pub fn is_open(&self, now: Moment) -> bool {
        match self.0 {
            State::Closed { .. } => false,
            State::Open { until } => until > now,
            State::Probing => true,
        }
    }

    /// Whether a call may go now.
    pub fn admit(&mut self, now: Moment) -> Admission {
        match self.0 {
            State::Closed { .. } => Admission::Call,
            State::Open { until } if until <= now => {
                self.0 = State::Probing;
                Admission::Probe
            }
            State::Open { .. } | State::Probing => Admission::Refused,
        }
    }

    /// A call that was admitted ended. One that is no probe counts only while it is closed: others began before it opened.
    pub fn record<R: Rng + ?Sized>(
        &mut self,
        admission: Admission,
        outcome: Outcome,
        now: Moment,
        rng: &mut R,
    ) {
        let open = |rng: &mut R| {
            let factor = rng.random_range(1.0 - JITTER..=1.0 + JITTER);
            State::Open {
                until: now + OPEN.mul_f64(factor),
            }
        };
        match (&mut self.0, outcome) {
            (State::Closed { in_row, window }, Outcome::Success) => {
                *in_row = 0;
                window.add(false, now);
            }
            (State::Closed { in_row, window }, Outcome::Failure) => {
                *in_row += 1;
                window.add(true, now);
                if *in_row >= FAILURES || window.is_bad(now) {
                    self.0 = open(rng);
                }
            }
            (State::Probing, _) if admission != Admission::Probe => {}
            (State::Probing, Outcome::Success) => *self = Self::new(),
            (State::Probing, Outcome::Failure) => self.0 = open(rng),
            // another may go at once
            (State::Probing, Outcome::Unknown) => self.0 = State::Open { until: now },
            (State::Closed { .. } | State::Open { .. }, _) => {}
        }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Window ===

impl Window {
    fn add(&mut self, failed: bool, now: Moment) {
        let second = second(now);
        let index = usize::try_from(second % BUCKETS as u64).unwrap_or_default();
        let Some(bucket) = self.0.get_mut(index) else {
            return;
        };
        if bucket.second != second {
            *bucket = Bucket {
                second,
                ..Bucket::default()
            };
        }
        bucket.calls = bucket.calls.saturating_add(1);
        bucket.failures = bucket.failures.saturating_add(u32::from(failed));
    }

    fn is_bad(&self, now: Moment) -> bool {
        let oldest = (second(now) + 1).saturating_sub(BUCKETS as u64);
        let recent = self.0.iter().filter(|bucket| bucket.second >= oldest);
        let (calls, failures) = recent.fold((0_u32, 0_u32), |(calls, failures), bucket| {
            (
                calls.saturating_add(bucket.calls),
                failures.saturating_add(bucket.failures),
            )
        });
        calls >= CALLS && failures.saturating_mul(2) >= calls
    }
}

fn second(now: Moment) -> u64 {
    now.since_start().as_secs() / BUCKET.as_secs()
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    /// Calls that end one after the other, `+` well and `-` badly, `apart` milliseconds from each other.
    fn after(ends: &str, apart: u64) -> (Breaker, Moment) {
        let mut rng = StdRng::seed_from_u64(1);
        let mut breaker = Breaker::new();
        let mut now = at(0);
        for end in ends.chars() {
            now = now + Duration::from_millis(apart);
            let outcome = match end {
                '+' => Outcome::Success,
                '-' => Outcome::Failure,
                _ => Outcome::Unknown,
            };
            breaker.record(Admission::Call, outcome, now, &mut rng);
        }
        (breaker, now)
    }

    #[rstest]
    #[case::four_in_a_row("----", 1, false)]
    #[case::five_in_a_row("-----", 1, true)]
    #[case::five_in_a_row_hours_apart("-----", 3_600_000, true)]
    #[case::five_with_a_success_between("----+-", 1, false)]
    #[case::given_up_calls_tell_nothing("----?-", 1, true)]
    #[case::nineteen_calls_are_too_few("+-+-+-+-+-+-+-+-+--", 1, false)]
    #[case::half_of_twenty("+-+-+-+-+-+-+-+-+-+-", 1, true)]
    #[case::less_than_half_of_twenty("++-+-+-+-+-+-+-+-+-+", 1, false)]
    #[case::half_of_twenty_over_twenty_seconds("+-+-+-+-+-+-+-+-+-+-", 1000, false)]
    #[case::old_successes_do_not_help(
        "++++++++++++++++++++++++++++++-+-+-+-+-+-+-+-+-+-+-+-+-+-",
        400,
        true
    )]
    fn it_opens_by_a_row_or_by_share(#[case] ends: &str, #[case] apart: u64, #[case] open: bool) {
        let (breaker, now) = after(ends, apart);
        assert_eq!(breaker.is_open(now), open);
    }

    #[test]
    fn it_stays_open_for_five_seconds_give_or_take_a_fifth() {
        let mut seen = Vec::new();
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut breaker = Breaker::new();
            for _ in 0..5 {
                breaker.record(Admission::Call, Outcome::Failure, at(0), &mut rng);
            }
            let closes = (0..10_000).find(|millis| !breaker.is_open(at(*millis)));
            seen.push(closes.unwrap());
        }
        let (least, most) = (*seen.iter().min().unwrap(), *seen.iter().max().unwrap());
        assert!((4000..4200).contains(&least), "{least}");
        assert!((5800..=6001).contains(&most), "{most}");
    }

    #[rstest]
    #[case::it_works(Outcome::Success, Admission::Call)]
    #[case::it_fails(Outcome::Failure, Admission::Refused)]
    #[case::nobody_knows(Outcome::Unknown, Admission::Probe)]
    fn one_probe_goes_alone_and_decides(#[case] outcome: Outcome, #[case] next: Admission) {
        let (mut breaker, _) = after("-----", 1);
        let mut rng = StdRng::seed_from_u64(2);
        let now = at(7000);
        assert_eq!(breaker.admit(now), Admission::Probe);
        assert_eq!(breaker.admit(now), Admission::Refused);
        assert!(breaker.is_open(now));
        breaker.record(Admission::Probe, outcome, now, &mut rng);
        assert_eq!(breaker.admit(now), next);
    }

    #[test]
    fn calls_from_before_it_opened_decide_nothing() {
        let (mut breaker, _) = after("------", 1);
        let mut rng = StdRng::seed_from_u64(3);
        let now = at(7000);
        breaker.record(Admission::Call, Outcome::Success, at(10), &mut rng);
        assert!(breaker.is_open(at(10)));
        assert_eq!(breaker.admit(now), Admission::Probe);
        for outcome in [Outcome::Success, Outcome::Failure, Outcome::Unknown] {
            breaker.record(Admission::Call, outcome, now, &mut rng);
            assert_eq!(breaker.admit(now), Admission::Refused);
        }
    }

    #[test]
    fn it_forgets_what_was_before_it_closed() {
        let (mut breaker, _) = after("-----", 1);
        let mut rng = StdRng::seed_from_u64(4);
        breaker.admit(at(7000));
        breaker.record(Admission::Probe, Outcome::Success, at(7000), &mut rng);
        for _ in 0..4 {
            breaker.record(Admission::Call, Outcome::Failure, at(7001), &mut rng);
        }
        assert!(!breaker.is_open(at(7001)));
    }
}
