//! What the supervisor tells people: metrics, the debug page, explanations, and events and records at home.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use super::Supervisor;
use crate::{
    events::{Notice, Reason, Regarding},
    explain::Question,
    index::origin::Source,
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
            let refused = handle.and_then(|handle| handle.refused.as_ref());
            row.detail = refused.map(|refused| refused.detail.clone());
            row.detail_of = refused.map(|refused| refused.refusal.reason());
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
        let desk = self.home.as_ref().filter(|_| speaking);
        let members = &self.planner.world().members;
        let regarding = |name: Option<&ClusterName>| {
            let member = name.and_then(|name| members.get(name));
            let source = member.and_then(|member| Regarding::source(&member.origin.source));
            source.or_else(|| desk.map(|desk| desk.lease.clone()))
        };
        let tell = |notice: Notice| {
            tracing::debug!(reason = notice.reason.name(), note = notice.note, "event");
            desk.is_some_and(|desk| desk.outbox.offer(notice, now))
        };
        let retract = |is_over: &dyn Fn(&str, &str, Reason) -> bool| {
            if let Some(home) = &self.home {
                home.outbox.retract(is_over);
            }
        };
        // before what is told of the same object now
        for uid in over(&self.unused, &self.unused_told) {
            retract(&|of, _, _| of == uid);
        }
        let at = Timestamp::now();
        self.teller.look(
            overview,
            desk.is_some(),
            at,
            regarding,
            tell,
            |subject, topic| retract(&|_, of, about| of == subject && about == topic),
        );
        if desk.is_some() {
            self.unused_told = untold(&self.unused, &self.unused_told, at, tell);
        }
    }
}

/// Objects of which it was told that they name no member, and of which that is so no more, by their uid.
fn over<'a>(unused: &[Unused], told: &'a BTreeSet<(Source, &'static str)>) -> Vec<&'a str> {
    if told.is_empty() {
        return Vec::new();
    }
    let unused = unused.iter();
    let unused: BTreeSet<_> = unused
        .map(|one| (&one.origin.source, one.refusal.reason()))
        .collect();
    let told = told.iter();
    let over = told.filter(|(source, reason)| !unused.contains(&(source, *reason)));
    over.map(|(source, _)| source.uid.as_str()).collect()
}

/// Tells of objects that name no member, each once; returns those that were told of, now or before.
fn untold(
    unused: &[Unused],
    told: &BTreeSet<(Source, &'static str)>,
    at: Timestamp,
    tell: impl Fn(Notice) -> bool,
) -> BTreeSet<(Source, &'static str)> {
    let known = unused.iter().filter_map(|one| {
        let source = &one.origin.source;
        let place = (source.clone(), one.refusal.reason());
        let is_told = told.contains(&place)
            || tell(Notice {
                regarding: Regarding::source(source)?,
                subject: one.member.clone(),
                reason: Reason::Member(one.refusal.reason()),
                note: format!("not member {}: {}", one.member, one.detail),
                at,
            });
        is_told.then_some(place)
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::index::{
        member::Refusal,
        origin::{Origin, SourceKind},
    };

    #[test]
    fn what_does_not_fit_of_unused_objects_is_told_later_and_once() {
        let of = |name: &str| {
            let source = Source {
                kind: SourceKind::Secret,
                namespace: "isthmus-system".to_owned(),
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                ..Source::default()
            };
            let origin = Origin {
                source,
                ..Origin::default()
            };
            Unused {
                origin: Arc::new(origin),
                member: "a".to_owned(),
                refusal: Refusal::DuplicateCluster,
                detail: "taken".to_owned(),
            }
        };
        let (one, two) = (of("one"), of("two"));
        let both: &[Unused] = &[one, two];
        let mut known = BTreeSet::new();
        let mut count = |unused: &[Unused], room: u32| {
            let taken = Cell::new(0);
            known = untold(unused, &known, Timestamp::UNIX_EPOCH, |_| {
                let takes = taken.get() < room;
                taken.set(taken.get() + u32::from(takes));
                takes
            });
            taken.get()
        };
        let counts = [1, 0, 9, 9].map(|room| count(both, room));
        assert_eq!(counts, [1, 0, 1, 0]);
        assert_eq!(count(&both[..1], 9), 0);
        assert_eq!(count(both, 9), 1, "the other was of use meanwhile");
        assert!(over(both, &known).is_empty());
        assert_eq!(over(&both[..1], &known), ["uid-two"]);
    }
}
