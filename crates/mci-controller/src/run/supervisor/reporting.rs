//! The supervisor's output: metrics, the debug page, explanations, and events and records at home.

use std::sync::Arc;

use jiff::Timestamp;

use super::Supervisor;
use crate::{
    overview::{Overview, UnusedView},
    questions::Question,
};
use moment::Moment;

/// Questions answered in one turn, each a few milliseconds: other events wait no longer.
const AT_ONCE: usize = 4;

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn housekeep(&mut self) {
        let now = self.clock.now();
        let mut overview = self.planner.housekeep(now);
        overview.leader = self.claim.is_valid(now);
        for row in &mut overview.clusters {
            let handle = self.members.get(&row.name);
            let refused = handle.and_then(|handle| handle.refused.as_ref());
            row.detail = refused.map(|refused| refused.detail.clone());
            row.detail_of = refused.map(|refused| refused.refusal.reason());
        }
        overview.unused = self.unused.iter().map(UnusedView::of).collect();
        self.report(&overview, now);
        self.metrics.set_overview(Arc::new(overview));
        self.record();
    }

    /// Sends the identities of the members to be recorded, if they changed.
    fn record(&self) {
        let recorded = self.planner.world().recorded();
        if let Some(records) = self.records.as_ref().filter(|_| self.planner.is_open()) {
            records.send_if_modified(|last| {
                let is_new = last.as_ref() != Some(recorded);
                if is_new {
                    *last = Some(recorded.clone());
                }
                is_new
            });
        }
    }

    /// Answers a question, and those that wait behind it: a page of pools asks many.
    pub(super) fn answer_all(&mut self, first: Question) {
        let mut next = Some(first);
        let mut answered = 0;
        while let Some(question) = next {
            self.answer(question);
            answered += 1;
            next = (answered < AT_ONCE)
                .then(|| self.questions.try_recv().ok())
                .flatten();
        }
    }

    fn answer(&self, Question { key, answer }: Question) {
        let now = self.clock.now();
        let leader = self.claim.is_valid(now);
        // the client may have disconnected
        let _ = answer.send(self.planner.explain(&key, leader, now));
    }

    /// Records events about members at home.
    fn report(&mut self, overview: &Overview, now: Moment) {
        let leading = overview.leader && !self.settings.dry_run;
        let members = &self.planner.world().members;
        let source_of = |name: &_| members.get(name).map(|member| &member.origin.source);
        if let Some(home) = &mut self.home {
            let time = (now, Timestamp::now());
            home.observe(overview, &self.unused, source_of, leading, time);
        }
    }
}
