//! What was asked of a server, so that a test can count.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::target::{Target, Verb};

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// What was done.
    pub verb: Verb,
    /// Plural of the kind, or `version`, `selfsubjectaccessreviews`, `unknown`.
    pub resource: &'static str,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name, or empty; of `unknown` the path.
    pub name: String,
    /// Whether it was about the status.
    pub status: bool,
    /// When it arrived.
    pub at: Instant,
    /// How long the answer took; of a watch, until it began. None: still waiting.
    pub took: Option<Duration>,
    /// HTTP status of the answer; 0 while there is none.
    pub code: u16,
}

/// The latest calls, and how many there were of each kind.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    first: u64,
    log: VecDeque<Call>,
    totals: BTreeMap<(Verb, &'static str), u64>,
    /// Writes that changed nothing.
    pub(crate) idle_writes: u64,
}

/// Calls that are kept: a soak of an hour must not grow for it.
const KEPT: usize = 4096;

// === impl Call ===

impl Call {
    /// Whether it changes something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete
        ) && self.resource != "selfsubjectaccessreviews"
    }

    /// Whether it was under way at some instant that `other` was, too.
    pub fn overlaps(&self, at: Instant) -> bool {
        self.at <= at && self.took.is_none_or(|took| self.at + took > at)
    }
}

// === impl Calls ===

impl Calls {
    /// Notes a request; the answer is noted under the number.
    pub(crate) fn begin(&mut self, target: &Target, at: Instant) -> u64 {
        let (namespace, name, status) = target.object();
        *self
            .totals
            .entry((target.verb, target.resource()))
            .or_default() += 1;
        self.log.push_back(Call {
            verb: target.verb,
            resource: target.resource(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status,
            at,
            took: None,
            code: 0,
        });
        if self.log.len() > KEPT {
            self.log.pop_front();
            self.first += 1;
        }
        self.first + self.log.len() as u64 - 1
    }

    pub(crate) fn end(&mut self, number: u64, code: u16, now: Instant) {
        let at = number
            .checked_sub(self.first)
            .and_then(|at| usize::try_from(at).ok());
        if let Some(call) = at.and_then(|at| self.log.get_mut(at)) {
            call.took = Some(now - call.at);
            call.code = code;
        }
    }

    pub(crate) fn log(&self) -> Vec<Call> {
        self.log.iter().cloned().collect()
    }

    pub(crate) fn last_write(&self, name: &str) -> Option<Instant> {
        let mut latest = self.log.iter().rev();
        let call = latest.find(|call| call.is_write() && call.name == name);
        call.map(|call| call.at)
    }

    pub(crate) fn total(&self, verb: Verb, resource: &str) -> u64 {
        let totals = self.totals.iter();
        let hits = totals.filter(|((one, of), _)| *one == verb && *of == resource);
        hits.map(|(_, count)| count).sum()
    }
}
