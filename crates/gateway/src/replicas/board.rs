//! When one replica reads what all have written, when it writes, and who is gone (pure).
//!
//! No clock of another is trusted, nor is one's own while the API server cannot be reached: an entry ages while reads succeed, and
//! begins again after one that failed, as others may not have been able to write either. A write of one's own that fails says nothing
//! of theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use moment::Moment;
use rand::{Rng, RngExt as _};

use crate::world::Key;
use crate::xds::ads::proxies::{Known, KnownByGateway};

use super::entry;

/// A replica that is read by another one writes at least so often.
pub(super) const BEAT: Duration = Duration::from_secs(10);

/// An entry that stays the same for so long is of a replica that is gone: three times [`BEAT`].
pub(super) const GONE: Duration = Duration::from_secs(30);

/// Between two reads while there are others, and while there are none. An Envoy that lacks a listener waits 30 s at least.
pub(super) const READ: Duration = Duration::from_secs(3);
pub(super) const READ_ALONE: Duration = BEAT;

/// Between two writes of what changes.
const PAUSE: Duration = Duration::from_secs(1);

/// Entries that are looked at: a replica or two, others that crashed in the last seconds, and those of a rolling update.
const MOST: usize = 16;

/// Failures in a row: the first waits up to this, and twice as long each time. With the time of a call, the longest is less than
/// [`GONE`], so that nobody is gone who comes back with the API server.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// By replica.
pub(super) type Entries = BTreeMap<String, String>;

/// What one replica has seen of the entries.
pub(super) struct Board {
    me: String,
    others: BTreeMap<String, Other>,
    /// When they were last read.
    read: Option<Moment>,
    /// The last write, and what it said.
    written: Option<(Moment, KnownByGateway)>,
    beat: u64,
    /// Calls in a row that led nowhere.
    failures: u32,
    /// A read failed since the last one that did not.
    is_unread: bool,
    /// Nothing is asked before.
    again: Moment,
}

/// The entry of another replica.
struct Other {
    text: String,
    /// For how long it is known to be the same.
    unchanged: Duration,
    known: KnownByGateway,
}

// === impl Board ===

impl Board {
    /// Of a replica that has seen nothing yet. `me` is unique among all processes that there ever are.
    pub(super) fn new(me: impl Into<String>) -> Self {
        Self {
            me: me.into(),
            others: BTreeMap::new(),
            read: None,
            written: None,
            beat: 0,
            failures: 0,
            is_unread: false,
            again: Moment::START,
        }
    }

    /// Whether the entries are to be read now, and then perhaps written.
    pub(super) fn is_due(&self, mine: &KnownByGateway, now: Moment) -> bool {
        let interval = if self.others.is_empty() {
            READ_ALONE
        } else {
            READ
        };
        let is_old = self.read.is_none_or(|read| read.plus(interval) <= now);
        self.again <= now && (is_old || self.is_news(mine))
    }

    /// Takes notice of the entries as they are now.
    pub(super) fn read(&mut self, entries: &Entries, now: Moment) {
        let passed = self.read.map_or(Duration::ZERO, |read| now.since(read));
        let passed = passed.min(READ_ALONE);
        self.read = Some(now);
        let is_unread = std::mem::take(&mut self.is_unread);
        let mut before = std::mem::take(&mut self.others);
        let others = entries.iter().filter(|(name, _)| **name != self.me);
        for (name, text) in others.take(MOST) {
            let other = match before.remove(name) {
                Some(other) if other.text == *text && !is_unread => Other {
                    unchanged: other.unchanged.saturating_add(passed),
                    ..other
                },
                _ => Other::new(text),
            };
            self.others.insert(name.clone(), other);
        }
    }

    /// The entries as they are to be written, where they are to be; with how many Gateways have no place in this replica's.
    pub(super) fn draft(
        &mut self,
        entries: &Entries,
        mine: &KnownByGateway,
        now: Moment,
    ) -> Option<(Entries, usize)> {
        let live = self.others.iter().filter(|(_, other)| other.lives());
        let live: Entries = live
            .map(|(name, other)| (name.clone(), other.text.clone()))
            .collect();
        let is_read = !live.is_empty();
        let has_gone = self.others.len() > live.len();
        let is_missing = !entries.contains_key(&self.me) && (is_read || !mine.is_empty());
        let last = self.written.as_ref().map(|(at, _)| *at);
        let is_silent = is_read && last.is_none_or(|at| at.plus(BEAT) <= now);
        if !(has_gone || is_missing || is_silent || self.is_news(mine)) {
            return None;
        }
        self.beat += 1;
        let (text, without) = entry::encode(mine, self.beat);
        let mut wanted = live;
        wanted.insert(self.me.clone(), text);
        Some((wanted, without))
    }

    /// The entries were written.
    pub(super) fn wrote(&mut self, mine: KnownByGateway, now: Moment) {
        self.written = Some((now, mine));
        self.failures = 0;
        self.again = now.plus(PAUSE);
    }

    /// The entries were read, and nothing was to be written.
    pub(super) fn agreed(&mut self) {
        self.failures = 0;
    }

    /// The entries could not be read. How old they are is not known any more.
    pub(super) fn unread(&mut self) {
        self.is_unread = true;
    }

    /// A call led nowhere.
    pub(super) fn failed(&mut self, now: Moment, rng: &mut impl Rng) {
        let longest = BACKOFF_MIN.saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1);
        self.wait(longest.min(BACKOFF_MAX), now, rng);
    }

    /// Another replica wrote since the entries were read.
    pub(super) fn raced(&mut self, now: Moment, rng: &mut impl Rng) {
        self.wait(PAUSE, now, rng);
    }

    /// A part of it, so that replicas do not meet again.
    fn wait(&mut self, longest: Duration, now: Moment, rng: &mut impl Rng) {
        self.again = now.plus(longest.mul_f64(rng.random_range(0.1..1.0)));
    }

    /// What each of the others knows that is not gone.
    pub(super) fn elsewhere(&self) -> BTreeMap<Key, Vec<Known>> {
        let live = self.others.values().filter(|other| other.lives());
        let mut elsewhere: BTreeMap<Key, Vec<Known>> = BTreeMap::new();
        for (gateway, known) in live.flat_map(|other| &other.known) {
            let all = elsewhere.entry(gateway.clone()).or_default();
            all.push(known.clone());
        }
        elsewhere
    }

    fn is_news(&self, mine: &KnownByGateway) -> bool {
        match &self.written {
            Some((_, written)) => written != mine,
            None => !mine.is_empty(),
        }
    }
}

// === impl Other ===

impl Other {
    /// One that cannot be read, or is too long, is of no replica: it is gone at once.
    fn new(text: &str) -> Self {
        let known = entry::decode(text);
        let unchanged = if known.is_some() {
            Duration::ZERO
        } else {
            GONE
        };
        Self {
            text: text.to_owned(),
            unchanged,
            known: known.unwrap_or_default(),
        }
    }

    fn lives(&self) -> bool {
        self.unchanged < GONE
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1_000)
    }

    fn mk_known(served: &str) -> KnownByGateway {
        let known = Known {
            connected: 1,
            served: [served.to_owned()].into(),
            ..Known::default()
        };
        KnownByGateway::from([(Key::new("ns", "gw"), known)])
    }

    /// Reads, writes if it is to, and says whether it wrote.
    fn round(
        board: &mut Board,
        entries: &mut Entries,
        mine: &KnownByGateway,
        seconds: u64,
    ) -> bool {
        let now = at(seconds);
        board.read(entries, now);
        let Some((wanted, _)) = board.draft(entries, mine, now) else {
            board.agreed();
            return false;
        };
        *entries = wanted;
        board.wrote(mine.clone(), now);
        true
    }

    #[test]
    fn a_replica_that_is_alone_writes_what_changes_and_no_more() {
        let (mut board, mut entries) = (Board::new("a"), Entries::new());
        let nothing = KnownByGateway::new();
        assert!(board.is_due(&nothing, at(0)));
        assert!(!round(&mut board, &mut entries, &nothing, 0));
        assert!(!board.is_due(&nothing, at(9)));
        let mine = mk_known("edge/80");
        assert!(board.is_due(&mine, at(9)), "it is news");
        assert!(round(&mut board, &mut entries, &mine, 9));
        assert!(!board.is_due(&mine, at(18)) && board.is_due(&mine, at(19)));
        for seconds in (19..200).step_by(10) {
            assert!(!round(&mut board, &mut entries, &mine, seconds));
        }
        // it was deleted meanwhile
        entries.clear();
        assert!(round(&mut board, &mut entries, &mine, 200));
        assert!(round(&mut board, &mut entries, &nothing, 202));
        assert_eq!(entries.len(), 1);
    }

    #[test]
    fn changes_are_written_once_a_second_at_most() {
        let (mut board, mut entries) = (Board::new("a"), Entries::new());
        assert!(round(&mut board, &mut entries, &mk_known("edge/80"), 5));
        let news = mk_known("edge/81");
        assert!(!board.is_due(&news, Moment::from_millis(5_900)));
        assert!(board.is_due(&news, at(6)));
    }

    /// One that comes and knows nothing yet makes the other one show that it lives.
    #[test]
    fn two_replicas_learn_of_each_other_and_both_beat() {
        let (mut a, mut b) = (Board::new("a"), Board::new("b"));
        let (mut entries, nothing) = (Entries::new(), KnownByGateway::new());
        assert!(round(&mut a, &mut entries, &mk_known("edge/80"), 0));
        for seconds in 100..200 {
            if a.is_due(&mk_known("edge/80"), at(seconds)) {
                round(&mut a, &mut entries, &mk_known("edge/80"), seconds);
            }
            if b.is_due(&nothing, at(seconds)) {
                round(&mut b, &mut entries, &nothing, seconds);
            }
            let known = &b.elsewhere()[&Key::new("ns", "gw")];
            assert_eq!(
                known[..],
                [mk_known("edge/80")[&Key::new("ns", "gw")].clone()]
            );
        }
        assert!(entries.contains_key("a") && entries.contains_key("b"));
        assert!(
            (8..=12).contains(&a.beat) && (8..=12).contains(&b.beat),
            "{} {}",
            a.beat,
            b.beat
        );
    }

    #[test]
    fn an_entry_that_stays_the_same_is_left_out_and_removed() {
        let (mut a, mut entries) = (Board::new("a"), Entries::new());
        let (text, _) = entry::encode(&mk_known("edge/80"), 7);
        entries.insert("gone".to_owned(), text);
        let nothing = KnownByGateway::new();
        for seconds in (0..30).step_by(3) {
            round(&mut a, &mut entries, &nothing, seconds);
            assert_eq!(a.elsewhere().len(), 1, "{seconds}");
        }
        assert!(round(&mut a, &mut entries, &nothing, 30));
        assert!(a.elsewhere().is_empty() && !entries.contains_key("gone"));
    }

    /// The API server was away: the others could not write either, and come back a little later.
    #[test]
    fn time_without_an_answer_makes_no_entry_old() {
        let (mut a, mut entries) = (Board::new("a"), Entries::new());
        let (text, _) = entry::encode(&mk_known("edge/80"), 7);
        entries.insert("b".to_owned(), text);
        let nothing = KnownByGateway::new();
        for seconds in (0..27).step_by(3) {
            round(&mut a, &mut entries, &nothing, seconds);
        }
        a.unread();
        a.failed(at(27), &mut StdRng::seed_from_u64(1));
        for seconds in (600..630).step_by(3) {
            round(&mut a, &mut entries, &nothing, seconds);
            assert_eq!(a.elsewhere().len(), 1, "{seconds}");
        }
        round(&mut a, &mut entries, &nothing, 630);
        assert!(a.elsewhere().is_empty());
    }

    /// It would stay in each write, and may be what makes the API server refuse these.
    #[test]
    fn an_entry_that_cannot_be_read_is_removed_at_once() {
        let mut entries = Entries::new();
        let (long, _) = entry::encode(&mk_known("edge/80"), 7);
        let padding = " ".repeat(2 * entry::ENTRY_BYTES);
        entries.insert("long".to_owned(), format!("{long}{padding}"));
        entries.insert("odd".to_owned(), "{".to_owned());
        let mut a = Board::new("a");
        assert!(round(&mut a, &mut entries, &KnownByGateway::new(), 0));
        assert!(a.elsewhere().is_empty());
        assert!(entries.keys().eq(["a"]), "{:?}", entries.keys());
    }

    #[test]
    fn failures_wait_ever_longer() {
        let (mut board, mut rng) = (Board::new("a"), StdRng::seed_from_u64(1));
        let mine = mk_known("edge/80");
        for (failures, longest) in (0..).zip([1, 2, 4, 8, 10, 10, 10]) {
            let now = at(1_000 * failures);
            board.failed(now, &mut rng);
            let wait = board.again.since(now).as_secs_f64();
            let longest = f64::from(longest);
            assert!((longest / 10.0..=longest).contains(&wait), "{wait}");
            assert!(!board.is_due(&mine, now));
        }
        board.agreed();
        board.failed(at(20_000), &mut rng);
        assert!(board.is_due(&mine, at(20_001)));
    }

    #[test]
    fn entries_beyond_a_bound_are_not_looked_at() {
        let (mut board, mut entries) = (Board::new("a"), Entries::new());
        for at in 0..10 * MOST {
            entries.insert(format!("b-{at}"), String::new());
        }
        board.read(&entries, at(0));
        assert_eq!(board.others.len(), MOST);
    }
}
