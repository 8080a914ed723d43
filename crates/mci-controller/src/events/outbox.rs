//! The events that wait for one cluster. Pure but for a lock and a bell around it.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Notice, Reason,
    ledger::{Admission, INTERVAL, Ledger, Letter},
    pace::Pace,
};
use crate::write::action::Outcome;
use moment::Moment;

/// A bounded queue: what does not fit stays with whoever offers it.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    mail: Mutex<Mail>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Mail {
    waiting: VecDeque<Letter>,
    in_flight: Option<Letter>,
    ledger: Ledger,
    pace: Pace,
    lost: u64,
}

/// 256: the 50 pools of a member of design section 7 with 5 reasons each. More stays news with who tells it, as may what
/// happens to a thousand members at once, and is told when there is room if it is still so.
const MAX_WAITING: usize = 256;
/// A letter is on its way this often: at the longest silences that a server may ask for, and with the time that writes
/// have after each, 40 minutes pass at most between the first time and the last, two thirds of the time that it would
/// keep the event.
const MAX_TRIES: u32 = 5;

// === impl Outbox ===

impl Outbox {
    /// Takes a notice unless too many wait; whether it did. One of the same that still waits is replaced, and one that was
    /// given not long ago waits until it may be given again.
    pub(crate) fn offer(&self, notice: Notice, now: Moment) -> bool {
        let taken = self.mail.lock().offer(notice, now);
        if taken {
            self.bell.notify_one();
        }
        taken
    }

    /// The next letter, if one may go. [`Self::finish`] says how it went.
    pub(super) fn take(&self, now: Moment) -> Option<Letter> {
        self.mail.lock().take(now)
    }

    /// When [`Self::take`] may have something; none: not before the bell.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.mail.lock().next_due()
    }

    /// The letter that was taken ended like this: one that the server was too busy for waits again.
    pub(super) fn finish(&self, outcome: Outcome, now: Moment) {
        self.mail.lock().finish(outcome, now, &mut rand::rng());
    }

    /// There is a new connection, or a new term of leading, which began at `term`: what was left in flight before is to
    /// be sent again. What was older than [`INTERVAL`] when the term began is dropped: if another led meanwhile, it told
    /// what still stood in its own words and time. What is younger is told even so. The gap may have been nobody's term;
    /// and if it was another's, the same text about the same object bears the same name, so that it is there once.
    pub(super) fn reopen(&self, term: Moment, now: Moment) {
        self.mail.lock().reopen(term, now);
    }

    /// What came too soon to be told is over: `is_over` is asked of uid, subject and topic. What only waits for the
    /// server has happened, and is told. Whether there was such a thing.
    pub(crate) fn retract(&self, is_over: impl Fn(&str, &str, Reason) -> bool) -> bool {
        self.mail.lock().ledger.retract(is_over)
    }

    /// How many notices of what was not told of yet would be taken.
    pub(super) fn room(&self, now: Moment) -> usize {
        let mut mail = self.mail.lock();
        let room = MAX_WAITING.saturating_sub(mail.len());
        room.min(mail.ledger.room(now))
    }

    /// Rings when something was offered.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Reason and note of all that waits.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<(&'static str, String)> {
        let mut mail = self.mail.lock();
        let letters = mail.waiting.drain(..);
        letters
            .map(|letter| (letter.notice.reason.name(), letter.notice.note))
            .collect()
    }
}

// === impl Mail ===

impl Mail {
    /// Whether it is taken.
    fn offer(&mut self, notice: Notice, now: Moment) -> bool {
        if self.is_full() && self.waiting_like(&notice).is_none() {
            return false;
        }
        match self.ledger.admit(notice, now) {
            Admission::Now(letter) => {
                self.put(*letter);
                true
            }
            Admission::Kept => true,
            Admission::Refused => false,
        }
    }

    fn take(&mut self, now: Moment) -> Option<Letter> {
        if self.in_flight.is_some() || now < self.pace.not_before() {
            return None;
        }
        while !self.is_full()
            && let Some(letter) = self.ledger.due(now)
        {
            self.put(letter);
        }
        let mut letter = self.waiting.pop_front()?;
        letter.tries = letter.tries.saturating_add(1);
        self.in_flight = Some(letter.clone());
        Some(letter)
    }

    fn next_due(&self) -> Option<Moment> {
        if self.in_flight.is_some() {
            return None;
        }
        let due = if self.waiting.is_empty() {
            self.ledger.next_due()?
        } else {
            Moment::START
        };
        Some(due.max(self.pace.not_before()))
    }

    /// It waits, in the place of one that it overtakes.
    fn put(&mut self, letter: Letter) {
        let older = self.waiting_like(&letter.notice);
        match older.and_then(|place| self.waiting.get_mut(place)) {
            Some(older) => *older = letter,
            None => self.waiting.push_back(letter),
        }
    }

    /// What is in flight may come back.
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.in_flight.is_some())
    }

    fn is_full(&self) -> bool {
        self.len() >= MAX_WAITING
    }

    fn finish(&mut self, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        self.pace.heard(outcome, now, rng);
        if let Some(letter) = self.in_flight.take()
            && matches!(outcome, Outcome::Throttled(_))
        {
            self.put_back(letter);
        }
    }

    fn reopen(&mut self, term: Moment, now: Moment) {
        self.pace.try_now(now);
        if let Some(letter) = self.in_flight.take() {
            self.put_back(letter);
        }
        let is_wanted = |since: Moment| term.since(since) <= INTERVAL;
        self.waiting.retain(|letter| is_wanted(letter.since));
        self.ledger.retain_held(is_wanted);
    }

    /// Its turn is the next, unless a newer one says it, or it has had its turns.
    fn put_back(&mut self, letter: Letter) {
        if self.waiting_like(&letter.notice).is_some() {
            return;
        }
        if letter.tries >= MAX_TRIES {
            self.lose(&letter.notice);
        } else {
            self.waiting.push_front(letter);
        }
    }

    /// Where one waits that would say the same, or what was so before.
    fn waiting_like(&self, notice: &Notice) -> Option<usize> {
        let mut letters = self.waiting.iter();
        letters.position(|letter| letter.notice.place() == notice.place())
    }

    fn lose(&mut self, notice: &Notice) {
        self.lost = self.lost.saturating_add(1);
        let (reason, object) = (notice.reason.name(), &notice.regarding.name);
        tracing::debug!(lost = self.lost, reason, object, "event tried too often");
    }
}

#[cfg(test)]
pub(crate) mod tests;
