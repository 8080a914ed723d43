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
    /// How often it was on its way.
    pub(super) tries: u32,
}

#[derive(Debug)]
struct Told {
    at: Moment,
    turn: u64,
    name: String,
    count: u32,
    /// Not sent since.
    suppressed: u32,
    first: Timestamp,
}

#[derive(Debug)]
struct Held {
    notice: Notice,
    /// Not before.
    due: Moment,
}

/// The same reason for the same object is told once in this time (spec 7).
const INTERVAL: Duration = Duration::from_mins(5);
/// An API server forgets events after an hour by default; so do we.
const FORGET: Duration = Duration::from_hours(1);
/// 4096: next power of two above 2000 exported pools per member (spec 5.2) with 2 reasons each.
const MAX_TOLD: usize = 4096;

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
        let name = event_name(&notice);
        let is_said = self.last_word(&topic).is_some_and(|last| last.name == name);
        let due = self.told.get(&place).map(|told| told.at + INTERVAL);
        match due {
            Some(due) if now < due => return self.keep(notice, due, is_said),
            None if self.told.len() >= MAX_TOLD => return Admission::Refused,
            Some(_) | None => {}
        }
        self.overtake(&topic);
        Admission::Now(Box::new(self.tell(notice, place, name, now)))
    }

    /// Something that came too soon and whose time has come.
    pub(super) fn due(&mut self, now: Moment) -> Option<Letter> {
        let topic = self.held.iter().find_map(|(topic, held)| {
            let is_due = held.due <= now;
            is_due.then(|| topic.clone())
        })?;
        self.forget_old(now);
        let Held { notice, due: _ } = self.held.remove(&topic)?;
        let place = notice.place_of(notice.reason);
        let name = event_name(&notice);
        Some(self.tell(notice, place, name, now))
    }

    /// When [`Self::due`] has something.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.held.values().map(|held| held.due).min()
    }

    /// Another tells: what came too soon is not told.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// It came too soon: it waits, unless it is what was said last.
    fn keep(&mut self, notice: Notice, due: Moment, is_said: bool) -> Admission {
        let topic = notice.place_of(notice.reason.topic());
        let is_full = self.held.len() >= MAX_TOLD && !self.held.contains_key(&topic);
        if is_full && !is_said {
            return Admission::Refused;
        }
        self.overtake(&topic);
        self.held.insert(topic.clone(), Held { notice, due });
        if is_said {
            // no more is to be done than to count it
            self.overtake(&topic);
        }
        Admission::Kept
    }

    fn tell(&mut self, notice: Notice, place: Place, name: String, now: Moment) -> Letter {
        let mut letter = Letter {
            count: 1,
            first: notice.at,
            tries: 0,
            notice,
            name,
        };
        if let Some(told) = self
            .told
            .get(&place)
            .filter(|told| told.name == letter.name)
        {
            letter.count = told.count.saturating_add(1).saturating_add(told.suppressed);
            letter.first = told.first;
        }
        self.turns = self.turns.saturating_add(1);
        self.told.insert(
            place,
            Told {
                at: now,
                turn: self.turns,
                name: letter.name.clone(),
                count: letter.count,
                suppressed: 0,
                first: letter.first,
            },
        );
        letter
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
        if let Some(Held { notice, due: _ }) = self.held.remove(topic)
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

/// `<object>.<hash>`, at most 253 characters.
fn event_name(notice: &Notice) -> String {
    let mut hash = Xxh3::new();
    let Notice {
        regarding,
        subject,
        reason,
        note,
        at: _,
    } = notice;
    for part in [&*regarding.uid, subject, reason.name(), note] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let name: String = regarding.name.chars().take(230).collect();
    format!(
        "{}.{:016x}",
        name.trim_end_matches(['.', '-']),
        hash.digest()
    )
}

#[cfg(test)]
mod tests;
