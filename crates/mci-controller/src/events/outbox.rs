//! The events that wait for one cluster. Pure but for a lock and a bell around it.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Notice,
    ledger::{Ledger, Letter},
};
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
    ledger: Ledger,
    lost: u64,
}

/// 256: the 50 pools of a member of design section 7 with 5 reasons each. A member that cannot be reached keeps its first
/// ones; more would be history by the time they are sent.
const MAX_WAITING: usize = 256;

// === impl Outbox ===

impl AsRef<Self> for Outbox {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Outbox {
    /// Takes a notice unless it was given not long ago or too many wait.
    pub(crate) fn offer(&self, notice: Notice, now: Moment) {
        let mut mail = self.mail.lock();
        if mail.waiting.len() >= MAX_WAITING {
            mail.lost = mail.lost.saturating_add(1);
            tracing::debug!(
                lost = mail.lost,
                reason = notice.reason.name(),
                object = notice.regarding.name,
                "event lost: too many wait"
            );
            return;
        }
        let Some(letter) = mail.ledger.admit(notice, now) else {
            return;
        };
        mail.waiting.push_back(letter);
        drop(mail);
        self.bell.notify_one();
    }

    pub(super) fn take(&self) -> Option<Letter> {
        self.mail.lock().waiting.pop_front()
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        events::{Reason, Regarding},
        fixtures::mk_key,
    };

    #[test]
    fn a_full_outbox_drops_and_a_dropped_notice_may_come_again() {
        let outbox = Outbox::default();
        let offer = |number: usize| {
            let notice = Notice {
                regarding: Regarding::pool(&mk_key("llm"), &number.to_string()),
                subject: String::new(),
                reason: Reason::Exported,
                note: number.to_string(),
                at: Timestamp::UNIX_EPOCH,
            };
            outbox.offer(notice, Moment::default());
        };
        for number in 0..=MAX_WAITING {
            offer(number);
        }
        assert_eq!(outbox.mail.lock().lost, 1);
        assert_eq!(outbox.drain().len(), MAX_WAITING);
        offer(MAX_WAITING);
        assert_eq!(outbox.drain(), [("Exported", MAX_WAITING.to_string())]);
    }
}
