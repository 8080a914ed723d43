//! Keeps events rare: one per object and reason in five minutes. What comes sooner is told then, if it is still the last
//! word. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use xxhash_rust::xxh3::Xxh3;

use super::{Notice, Reason};
use moment::Moment;

/// What was told of the objects of one cluster.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: BTreeMap<Place, Told>,
    /// The last word on each topic that came too soon: at most [`MAX_TOLD`].
    held: BTreeMap<Place, Held>,
    /// Counts what was told.
    turns: u64,
    pruned: Moment,
}

/// Uid of an object, subject, and reason or topic.
type Place = (String, String, Reason);

/// What becomes of a notice.
#[derive(Debug)]
pub(super) enum Admission {
    /// To be told now.
    Now(Box<Letter>),
    /// It says what was said last, or is told when its time comes.
    Kept,
    /// There is too much to keep in mind.
    Refused,
}

/// A notice on its way, and how often it has been given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) notice: Notice,
    /// Name of the Event object: the same text about the same object has the same one, so a controller that starts anew
    /// does not say again what its predecessor said.
    pub(super) name: String,
    /// 1: not told yet by this process.
    pub(super) count: u32,
    pub(super) first: Timestamp,
    /// When this process heard of it.
    pub(super) since: Moment,
    /// How often it was on its way.
    pub(super) tries: u32,
}

#[derive(Debug)]
struct Told {
    at: Moment,
    turn: u64,
    /// What was said, the newest last: at most [`MAX_TEXTS`].
    texts: Vec<Text>,
    /// Not sent since.
    suppressed: u32,
}

/// One of the texts of a reason, each of which has an Event object.
#[derive(Clone, Copy, Debug)]
struct Text {
    hash: u64,
    count: u32,
    first: Timestamp,
}

#[derive(Debug)]
struct Held {
    notice: Notice,
    /// When it came.
    since: Moment,
    /// Not before.
    due: Moment,
}

/// The same reason for the same object is told once in this time (spec 7).
pub(super) const INTERVAL: Duration = Duration::from_mins(5);
/// An API server forgets events after an hour by default; so do we.
const FORGET: Duration = Duration::from_hours(1);
/// 4096: next power of two above 2000 exported pools per member (spec 5.2) with 2 reasons each.
const MAX_TOLD: usize = 4096;
/// Texts of one reason that are known again: what goes to and fro does so between two or three. One that was forgotten
/// is taken for what a predecessor said, and keeps the time at which it was said last.
const MAX_TEXTS: usize = 4;

// === impl Notice ===

impl Notice {
    /// Object, subject and reason: of those that share it, the newest is worth telling.
    pub(super) fn place(&self) -> (&str, &str, Reason) {
        (&self.regarding.uid, &self.subject, self.reason)
    }

    fn place_of(&self, reason: Reason) -> Place {
        (self.regarding.uid.clone(), self.subject.clone(), reason)
    }
}

// === impl Ledger ===

impl Ledger {
    /// Whether to tell, and how.
    pub(super) fn admit(&mut self, notice: Notice, now: Moment) -> Admission {
        self.forget_old(now);
        let place = notice.place_of(notice.reason);
        let topic = notice.place_of(notice.reason.topic());
        let hash = text_hash(&notice);
        let is_said = self
            .last_word(&topic)
            .is_some_and(|last| last.says() == Some(hash));
        let due = self.told.get(&place).map(|told| told.at + INTERVAL);
        match due {
            Some(due) if now < due => return self.keep(notice, now, due, is_said),
            None if self.told.len() >= MAX_TOLD => return Admission::Refused,
            Some(_) | None => {}
        }
        self.overtake(&topic);
        Admission::Now(Box::new(self.tell(notice, place, now, now)))
    }

    /// Something that came too soon and whose time has come.
    pub(super) fn due(&mut self, now: Moment) -> Option<Letter> {
        if self.next_due()? > now {
            return None;
        }
        let room = self.room(now);
        let fits = |held: &Held| {
            let place = held.notice.place_of(held.notice.reason);
            held.due <= now && (room > 0 || self.told.contains_key(&place))
        };
        let mut held = self.held.iter();
        let Some(topic) = held.find_map(|(topic, held)| fits(held).then(|| topic.clone())) else {
            // all that is kept in mind was told within the interval: when that is over there is room
            for held in self.held.values_mut().filter(|held| held.due <= now) {
                held.due = now + INTERVAL;
            }
            return None;
        };
        let Held { notice, since, .. } = self.held.remove(&topic)?;
        let place = notice.place_of(notice.reason);
        Some(self.tell(notice, place, since, now))
    }

    /// When [`Self::due`] has something.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.held.values().map(|held| held.due).min()
    }

    /// How many more reasons of objects may be told of.
    pub(super) fn room(&mut self, now: Moment) -> usize {
        self.forget_old(now);
        MAX_TOLD.saturating_sub(self.told.len())
    }

    /// Drops what came too soon and is too old to be told at all.
    pub(super) fn retain_held(&mut self, is_wanted: impl Fn(Moment) -> bool) {
        self.held.retain(|_, held| is_wanted(held.since));
    }

    /// What came too soon is over, so that it is not told: `is_over` is asked of object, subject and topic. Whether there
    /// was such a thing.
    pub(super) fn retract(&mut self, is_over: impl Fn(&str, &str, Reason) -> bool) -> bool {
        let topics = self.held.keys();
        let over = topics.filter(|(uid, subject, topic)| is_over(uid, subject, *topic));
        let over: Vec<Place> = over.cloned().collect();
        for topic in &over {
            self.overtake(topic);
        }
        !over.is_empty()
    }

    /// It came too soon: it waits, unless it is what was said last.
    fn keep(&mut self, notice: Notice, since: Moment, due: Moment, is_said: bool) -> Admission {
        let topic = notice.place_of(notice.reason.topic());
        let is_full = self.held.len() >= MAX_TOLD && !self.held.contains_key(&topic);
        if is_full && !is_said {
            return Admission::Refused;
        }
        self.overtake(&topic);
        let held = Held { notice, since, due };
        self.held.insert(topic.clone(), held);
        if is_said {
            // no more is to be done than to count it
            self.overtake(&topic);
        }
        Admission::Kept
    }

    fn tell(&mut self, notice: Notice, place: Place, since: Moment, now: Moment) -> Letter {
        let hash = text_hash(&notice);
        let told = self.told.remove(&place);
        let (mut texts, suppressed) = told.map_or((Vec::new(), 0), |told| {
            // what came too soon counts for the text that it would have repeated
            let repeats = told.says() == Some(hash);
            (told.texts, if repeats { told.suppressed } else { 0 })
        });
        let known = texts.iter().position(|text| text.hash == hash);
        let text = match known.map(|known| texts.remove(known)) {
            Some(text) => Text {
                count: text.count.saturating_add(1).saturating_add(suppressed),
                ..text
            },
            None => Text {
                hash,
                count: 1,
                first: notice.at,
            },
        };
        if texts.len() >= MAX_TEXTS {
            texts.remove(0);
        }
        texts.push(text);
        self.turns = self.turns.saturating_add(1);
        self.told.insert(
            place,
            Told {
                at: now,
                turn: self.turns,
                texts,
                suppressed: 0,
            },
        );
        Letter {
            name: event_name(&notice, hash),
            count: text.count,
            first: text.first,
            since,
            tries: 0,
            notice,
        }
    }

    /// What was told last on a topic.
    fn last_word(&self, (uid, subject, topic): &Place) -> Option<&Told> {
        let from = (uid.clone(), subject.clone(), Reason::Exported);
        let of_object = self.told.range(from..);
        of_object
            .take_while(|((one, of, _), _)| one == uid && of == subject)
            .filter(|((_, _, reason), _)| reason.topic() == *topic)
            .map(|(_, told)| told)
            .max_by_key(|told| told.turn)
    }

    /// There is a newer word on this topic.
    fn overtake(&mut self, topic: &Place) {
        if let Some(Held { notice, .. }) = self.held.remove(topic)
            && let Some(told) = self.told.get_mut(&notice.place_of(notice.reason))
        {
            told.suppressed = told.suppressed.saturating_add(1);
        }
    }

    fn forget_old(&mut self, now: Moment) {
        let full = self.told.len() >= MAX_TOLD;
        if now.since(self.pruned) < INTERVAL && !full {
            return;
        }
        self.pruned = now;
        // what is past the interval suppresses nothing: it goes early where there is no room
        let age = if full { INTERVAL } else { FORGET };
        self.told.retain(|_, told| now.since(told.at) < age);
    }
}

// === impl Told ===

impl Told {
    /// What was said last.
    fn says(&self) -> Option<u64> {
        self.texts.last().map(|text| text.hash)
    }
}

/// `<object>.<hash>`, at most 253 characters.
fn event_name(notice: &Notice, hash: u64) -> String {
    let name: String = notice.regarding.name.chars().take(230).collect();
    format!("{}.{hash:016x}", name.trim_end_matches(['.', '-']))
}

/// Tells apart what is said of an object.
fn text_hash(notice: &Notice) -> u64 {
    let Notice {
        regarding,
        subject,
        reason,
        note,
        at: _,
    } = notice;
    let mut hash = Xxh3::new();
    for part in [&*regarding.uid, subject, reason.name(), note] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash.digest()
}

#[cfg(test)]
mod tests;
