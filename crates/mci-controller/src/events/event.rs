//! Makes the Event object of a letter. Pure.

use crd::annotations::MCI_CONTROLLER;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::{Value, json};

use super::{MAX_NOTE, ledger::Letter};

/// The object as it is created.
pub(super) fn make_event(letter: &Letter) -> Event {
    let Letter {
        notice,
        name,
        count,
        first,
        since: _,
        tries: _,
    } = letter;
    let regarding = &notice.regarding;
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let time = |at: &Timestamp| Some(Time(*at));
    Event {
        metadata: ObjectMeta {
            namespace: text(&regarding.namespace),
            name: text(name),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: text(regarding.api_version),
            kind: text(regarding.kind),
            namespace: text(&regarding.namespace),
            name: text(&regarding.name),
            uid: text(&regarding.uid),
            ..ObjectReference::default()
        },
        reason: text(notice.reason.name()),
        type_: text(notice.reason.type_()),
        message: Some(clipped(&notice.note)),
        count: i32::try_from(*count).ok(),
        first_timestamp: time(first),
        last_timestamp: time(&notice.at),
        source: Some(EventSource {
            component: text(MCI_CONTROLLER),
            host: None,
        }),
        reporting_component: text(MCI_CONTROLLER),
        ..Event::default()
    }
}

/// What changes in one that exists.
pub(super) fn make_recurrence(letter: &Letter) -> Value {
    json!({"count": letter.count, "lastTimestamp": Time(letter.notice.at)})
}

/// At most [`MAX_NOTE`] bytes, cut between characters.
fn clipped(note: &str) -> String {
    let mut text = String::new();
    for character in note.chars() {
        if text.len() + character.len_utf8() > MAX_NOTE {
            break;
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let text = clipped(&"ä".repeat(1000));
        assert_eq!(text.len(), MAX_NOTE);
    }
}
