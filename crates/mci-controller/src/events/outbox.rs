//! The events that wait for one cluster. Pure but for a lock and a bell around it.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Notice,
    ledger::{Ledger, Letter},
    pace::Pace,
};
use crate::write::action::Outcome;
use moment::Moment;

/// A bounded queue: what does not fit is lost and counted.
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

/// 256: the 50 pools of a member of design section 7 with 5 reasons each. A member that cannot be reached keeps its first
/// ones; more would be history by the time they are sent.
const MAX_WAITING: usize = 256;
/// A letter is on its way this often: at the longest silences that a server may ask for, 20 minutes pass between the
/// first time and the last, a third of the time that it would keep the event.
const MAX_TRIES: u32 = 5;

// === impl Outbox ===

impl Outbox {
    /// Takes a notice unless it was given not long ago or too many wait. One of the same that still waits is replaced.
    pub(crate) fn offer(&self, notice: Notice, now: Moment) {
        if self.mail.lock().offer(notice, now) {
            self.bell.notify_one();
        }
    }

    /// The next letter, if one may go. [`Self::finish`] says how it went.
    pub(super) fn take(&self, now: Moment) -> Option<Letter> {
        self.mail.lock().take(now)
    }

    /// When [`Self::take`] may have something; none: not before the bell.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let mail = self.mail.lock();
        let waits = mail.in_flight.is_none() && !mail.waiting.is_empty();
        waits.then(|| mail.pace.not_before())
    }

    /// The letter that was taken ended like this: one that the server was too busy for waits again.
    pub(super) fn finish(&self, outcome: Outcome, now: Moment) {
        self.mail.lock().finish(outcome, now, &mut rand::rng());
    }

    /// There is a new connection: what an earlier one left in flight is to be sent again.
    pub(super) fn reopen(&self, now: Moment) {
        self.mail.lock().reopen(now);
    }

    /// Another tells.
    pub(super) fn clear(&self) {
        let mut mail = self.mail.lock();
        mail.waiting.clear();
        mail.in_flight = None;
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
    /// Whether there is something new to send.
    fn offer(&mut self, notice: Notice, now: Moment) -> bool {
        let older = self.waiting_like(&notice);
        // what is in flight may come back
        let held = self.waiting.len() + usize::from(self.in_flight.is_some());
        if older.is_none() && held >= MAX_WAITING {
            self.lose(&notice, "too many wait");
            return false;
        }
        let Some(letter) = self.ledger.admit(notice, now) else {
            return false;
        };
        match older.and_then(|place| self.waiting.get_mut(place)) {
            Some(older) => *older = letter,
            None => self.waiting.push_back(letter),
        }
        true
    }

    fn take(&mut self, now: Moment) -> Option<Letter> {
        if self.in_flight.is_some() || now < self.pace.not_before() {
            return None;
        }
        let mut letter = self.waiting.pop_front()?;
        letter.tries = letter.tries.saturating_add(1);
        self.in_flight = Some(letter.clone());
        Some(letter)
    }

    fn finish(&mut self, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        self.pace.heard(outcome, now, rng);
        if let Some(letter) = self.in_flight.take()
            && matches!(outcome, Outcome::Throttled(_))
        {
            self.put_back(letter);
        }
    }

    fn reopen(&mut self, now: Moment) {
        self.pace.try_now(now);
        if let Some(letter) = self.in_flight.take() {
            self.put_back(letter);
        }
    }

    /// Its turn is the next, unless a newer one says it, or it has had its turns.
    fn put_back(&mut self, letter: Letter) {
        if self.waiting_like(&letter.notice).is_some() {
            return;
        }
        if letter.tries >= MAX_TRIES {
            self.lose(&letter.notice, "tried too often");
        } else {
            self.waiting.push_front(letter);
        }
    }

    /// Where one waits that would say the same, or what was so before.
    fn waiting_like(&self, notice: &Notice) -> Option<usize> {
        let mut letters = self.waiting.iter();
        letters.position(|letter| letter.notice.place() == notice.place())
    }

    fn lose(&mut self, notice: &Notice, why: &str) {
        self.lost = self.lost.saturating_add(1);
        let (reason, object) = (notice.reason.name(), &notice.regarding.name);
        tracing::debug!(lost = self.lost, reason, object, why, "event lost");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        events::{Reason, Regarding},
        fixtures::mk_key,
        write::action::Failure,
    };

    const THROTTLED: Outcome = Outcome::Throttled(None);

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn mk_notice(uid: usize, note: &str) -> Notice {
        Notice {
            regarding: Regarding::pool(&mk_key("llm"), &uid.to_string()),
            subject: String::new(),
            reason: Reason::Exported,
            note: note.to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn finish(mail: &mut Mail, outcome: Outcome, now: Moment) {
        mail.finish(outcome, now, &mut StdRng::seed_from_u64(1));
    }

    /// Note and tries of the next letter.
    fn take(mail: &mut Mail, now: Moment) -> Option<(String, u32)> {
        let letter = mail.take(now)?;
        Some((letter.notice.note, letter.tries))
    }

    #[test]
    fn a_full_outbox_drops_and_a_dropped_notice_may_come_again() {
        let outbox = Outbox::default();
        let offer = |number: usize| {
            outbox.offer(mk_notice(number, &number.to_string()), at(0));
        };
        for number in 0..=MAX_WAITING {
            offer(number);
        }
        assert_eq!(outbox.mail.lock().lost, 1);
        assert_eq!(outbox.drain().len(), MAX_WAITING);
        offer(MAX_WAITING);
        assert_eq!(outbox.drain(), [("Exported", MAX_WAITING.to_string())]);
    }

    #[test]
    fn a_letter_that_a_busy_server_did_not_take_is_the_next_one_and_has_its_place_kept() {
        let mut mail = Mail::default();
        for number in 0..MAX_WAITING {
            assert!(mail.offer(mk_notice(number, &number.to_string()), at(0)));
        }
        assert_eq!(take(&mut mail, at(0)), Some(("0".to_owned(), 1)));
        assert_eq!(take(&mut mail, at(0)), None, "one at a time");
        assert!(!mail.offer(mk_notice(MAX_WAITING, ""), at(0)));
        finish(&mut mail, THROTTLED, at(0));
        assert_eq!((mail.waiting.len(), mail.lost), (MAX_WAITING, 1));
        assert_eq!(take(&mut mail, at(0)), None, "it asked for silence");
        assert_eq!(take(&mut mail, at(1)), Some(("0".to_owned(), 2)));
        finish(&mut mail, Outcome::Done, at(1));
        assert_eq!(take(&mut mail, at(1)), Some(("1".to_owned(), 1)));
        // without an answer it is lost
        finish(&mut mail, Outcome::Retry(Failure::Timeout), at(6));
        assert_eq!(take(&mut mail, at(9)), Some(("2".to_owned(), 1)));
    }

    #[test]
    fn a_letter_is_tried_five_times_whoever_gives_it_back() {
        let mut mail = Mail::default();
        mail.offer(mk_notice(1, "one"), at(0));
        mail.offer(mk_notice(2, "two"), at(0));
        for tries in 1..=u64::from(MAX_TRIES) {
            let now = at(tries);
            let letter = take(&mut mail, now).expect("the letter");
            assert_eq!(
                (letter.0.as_str(), u64::from(letter.1)),
                ("one", tries),
                "at {tries}"
            );
            if tries % 2 == 0 {
                mail.reopen(now);
            } else {
                finish(&mut mail, THROTTLED, now);
            }
        }
        assert_eq!(mail.lost, 1);
        assert_eq!(take(&mut mail, at(60)), Some(("two".to_owned(), 1)));
    }

    #[test]
    fn of_two_that_say_the_same_the_newer_goes() {
        let mut mail = Mail::default();
        let later = at(301);
        mail.offer(mk_notice(1, "1/2"), at(0));
        mail.offer(mk_notice(2, "other"), at(0));
        // where it waits
        assert!(mail.offer(mk_notice(1, "2/2"), later));
        assert_eq!(mail.waiting.len(), 2);
        assert_eq!(take(&mut mail, later), Some(("2/2".to_owned(), 1)));
        // and where it comes back
        let latest = later + Duration::from_mins(6);
        assert!(mail.offer(mk_notice(1, "2/3"), latest));
        finish(&mut mail, THROTTLED, latest);
        let rest: Vec<&str> = mail
            .waiting
            .iter()
            .map(|letter| &*letter.notice.note)
            .collect();
        assert_eq!((rest, mail.lost), (vec!["other", "2/3"], 0));
    }
}
