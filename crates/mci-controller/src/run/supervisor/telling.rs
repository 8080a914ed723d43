//! What the supervisor tells people: metrics, the debug page, explanations, and events and records at home.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use super::Supervisor;
use crate::{
    events::{Notice, Reason, Regarding},
    explain::Question,
    inventory::Unused,
    name::ClusterName,
    overview::{Overview, UnusedView},
};
use moment::Moment;

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn housekeep(&mut self) {
        let now = self.clock.now();
        let mut overview = self.planner.housekeep(now);
        overview.leader = self.claim.is_valid(now);
        for row in &mut overview.clusters {
            let handle = self.members.get(&row.name);
            row.detail = handle.and_then(|handle| handle.detail.clone());
        }
        overview.unused = self.unused.iter().map(UnusedView::of).collect();
        self.tell(&overview, now);
        self.metrics.show(Arc::new(overview));
        self.record();
    }

    /// Tells which clusters the members are, if that is news.
    fn record(&self) {
        let recorded = self.planner.world().recorded();
        if let Some(records) = self.records.as_ref().filter(|_| self.planner.is_open()) {
            records.send_if_modified(|told| {
                let news = told.as_ref() != Some(recorded);
                if news {
                    *told = Some(recorded.clone());
                }
                news
            });
        }
    }

    pub(super) fn explain(&self, Question { key, answer }: Question) {
        let now = self.clock.now();
        let leader = self.claim.is_valid(now);
        // whoever asked may have given up
        let _ = answer.send(self.planner.explain(&key, leader, now));
    }

    /// Tells at home what became of members.
    fn tell(&mut self, overview: &Overview, now: Moment) {
        let speaking = overview.leader && !self.settings.dry_run;
        let untold = if speaking && self.home.is_some() {
            self.untold()
        } else {
            Vec::new()
        };
        let desk = self.home.as_ref().filter(|_| speaking);
        let members = &self.planner.world().members;
        let regarding = |name: Option<&ClusterName>| {
            let member = name.and_then(|name| members.get(name));
            let source = member.and_then(|member| Regarding::source(&member.origin.source));
            source.or_else(|| desk.map(|desk| desk.lease.clone()))
        };
        let mut notices = self
            .teller
            .look(overview, desk.is_some(), Timestamp::now(), regarding);
        notices.extend(untold);
        for notice in notices {
            tracing::debug!(reason = notice.reason.name(), note = notice.note, "event");
            if let Some(desk) = desk {
                desk.outbox.offer(notice, now);
            }
        }
    }

    /// What is to be told of objects that name no member; each once.
    fn untold(&mut self) -> Vec<Notice> {
        let place = |unused: &Unused| (unused.origin.source.clone(), unused.refusal.reason());
        let now: BTreeSet<_> = self.unused.iter().map(place).collect();
        let fresh = self.unused.iter();
        let fresh = fresh.filter(|one| !self.unused_told.contains(&place(one)));
        let notices = fresh.filter_map(|one| {
            Some(Notice {
                regarding: Regarding::source(&one.origin.source)?,
                subject: one.member.clone(),
                reason: Reason::Member(one.refusal.reason()),
                note: format!("not member {}: {}", one.member, one.detail),
                at: Timestamp::now(),
            })
        });
        let notices = notices.collect();
        self.unused_told = now;
        notices
    }
}
