//! What of an exported pool may be worth an event, read from the world and its plan. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crd::{
    ImportedCluster, RoutingMode, ServiceType,
    annotations::{
        DRAIN_SECONDS, EXPORT, EXPORT_MODE, HEALTH_PORT, HEALTH_SECRET, METRICS_PORT,
        METRICS_SECRET,
    },
    conditions,
};

use crate::{
    export::{Export, SecretSelector, parse_export},
    index::{
        World,
        entry::Entry,
        facts::{Claim, PoolFacts},
        member::{Link, Reach},
    },
    name::{ClusterName, Key},
    plan::{Hold, ImportPlan, KeyPlan, PoolPlan},
};
use moment::Moment;

/// One pool at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    pub(super) uid: String,
    /// What `Exported` says, once it is settled.
    pub(super) exported: Option<Verdict>,
    /// What is wrong with annotations.
    pub(super) complaints: BTreeSet<String>,
    pub(super) namespace_missing: BTreeSet<ClusterName>,
    /// Imports that belong to somebody else.
    pub(super) conflicts: BTreeSet<ClusterName>,
    /// Imports that somebody keeps undoing.
    pub(super) contested: BTreeSet<ClusterName>,
    pub(super) unreachable: BTreeSet<ClusterName>,
    pub(super) no_health_port: bool,
    /// Not listed in imports that are full.
    pub(super) crowded_out: bool,
    /// No place for our condition.
    pub(super) status_full: bool,
    /// Addresses left out, by reason.
    pub(super) rejected: BTreeMap<&'static str, usize>,
}

/// The condition `Exported`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) reason: String,
    pub(super) message: String,
    /// It is about an annotation.
    pub(super) annotation: bool,
    /// The pool bears it: who wrote it told of it.
    pub(super) written: bool,
}

/// What stands in the way of all exporters of a key alike.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    namespace_missing: BTreeSet<ClusterName>,
    conflicts: BTreeSet<ClusterName>,
    contested: BTreeSet<ClusterName>,
    unreachable: BTreeSet<ClusterName>,
}

// === impl Obstacles ===

impl Obstacles {
    pub(super) fn read(world: &World, key: &Key, plan: &KeyPlan, now: Moment) -> Self {
        let mut found = Self::default();
        for (name, import) in &plan.imports {
            let Some(member) = world.members.get(name) else {
                continue;
            };
            if member.link == Link::Removing {
                continue;
            }
            let silent = member.met && world.reach(member, now) != Reach::Reachable;
            let live = member.imports.items.get(key);
            match import {
                _ if silent => found.unreachable.insert(name.clone()),
                ImportPlan::Hold(Hold::NamespaceMissing) => {
                    found.namespace_missing.insert(name.clone())
                }
                ImportPlan::Hold(Hold::Unreachable | Hold::AuthFailed) => {
                    found.unreachable.insert(name.clone())
                }
                ImportPlan::Present(_) if live.is_some_and(|live| live.claim == Claim::Foreign) => {
                    found.conflicts.insert(name.clone())
                }
                ImportPlan::Present(_) if member.contests.is_contested(key) => {
                    found.contested.insert(name.clone())
                }
                _ => false,
            };
        }
        found
    }
}

// === impl Signs ===

impl Signs {
    /// The pool of `exporter` under this key.
    pub(super) fn read(
        exporter: &ClusterName,
        pool: &PoolFacts,
        plan: &KeyPlan,
        obstacles: &Obstacles,
    ) -> Self {
        let export = parse_export(&pool.annotations);
        let mut signs = Self {
            uid: pool.uid.clone(),
            complaints: complaints(pool, &export),
            ..Self::default()
        };
        if let Some(PoolPlan::Exported { condition, settled }) = plan.pools.get(exporter) {
            let live = Self::live_verdict(pool);
            let verdict = Verdict {
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                annotation: matches!(export, Export::Invalid(_)),
                written: live.is_some_and(|live| live.reason == condition.reason),
            };
            signs.exported = Some(verdict).filter(|verdict| *settled || verdict.written);
        }
        if !matches!(export, Export::Requested(_)) {
            return signs;
        }
        let unmet = plan.ignored.get(exporter).into_iter().flatten();
        signs.complaints.extend(unmet.map(|annotation| {
            format!(
                "annotation {annotation} is ignored, since the endpoint picker's Service has no such port: use {}",
                expected(annotation)
            )
        }));
        let others = |names: &BTreeSet<ClusterName>| {
            let others = names.iter().filter(|name| *name != exporter);
            others.cloned().collect()
        };
        signs.namespace_missing = others(&obstacles.namespace_missing);
        signs.conflicts = others(&obstacles.conflicts);
        signs.contested = others(&obstacles.contested);
        signs.unreachable = others(&obstacles.unreachable);
        signs.no_health_port =
            entry_of(exporter, plan).is_some_and(|entry| lacks_health_port(entry));
        signs.status_full = pool.status_full;
        signs.crowded_out = plan.crowded_out.contains(exporter);
        for (name, rejection) in &plan.rejected {
            if name == exporter {
                *signs.rejected.entry(rejection.reason()).or_default() += 1;
            }
        }
        signs
    }

    /// How to take a pool that was never looked at. One that bears our condition was told of before, by this controller or
    /// its predecessor: only what the condition does not say already is news. Of one without, all is.
    pub(super) fn first(&self, pool: &PoolFacts) -> Self {
        match Self::live_verdict(pool) {
            None => Self::default(),
            Some(verdict) => Self {
                exported: Some(verdict),
                ..self.clone()
            },
        }
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_blank(&self) -> bool {
        let blank = Self {
            uid: self.uid.clone(),
            ..Self::default()
        };
        *self == blank
    }

    fn live_verdict(pool: &PoolFacts) -> Option<Verdict> {
        let live = pool.exported.as_deref()?;
        let condition = conditions::find(live, conditions::EXPORTED)?;
        Some(Verdict {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            annotation: false,
            written: true,
        })
    }
}

// === impl Verdict ===

impl Verdict {
    /// What must differ for a new event: counts in the message change too often.
    pub(super) fn kind(&self) -> &str {
        &self.reason
    }
}

/// The exporter's entry, as any importer gets it.
fn entry_of<'a>(exporter: &ClusterName, plan: &'a KeyPlan) -> Option<&'a Entry> {
    plan.imports.values().find_map(|import| match import {
        ImportPlan::Present(planned) => {
            let mut entries = planned.status.clusters.iter();
            entries.find(|entry| entry.name == exporter.as_str())
        }
        _ => None,
    })
}

fn lacks_health_port(entry: &ImportedCluster) -> bool {
    let picker = entry.endpoint_picker.as_ref();
    entry.routing_mode == RoutingMode::EndpointMode
        && picker.is_some_and(|picker| {
            let mut services = picker.service.iter();
            picker.health.is_none()
                && services.all(|service| service.type_ != ServiceType::ExternalName)
        })
}

fn complaints(pool: &PoolFacts, export: &Export) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    match export {
        Export::NotRequested => {
            if pool.annotations.contains_key(EXPORT_MODE) {
                found.insert(format!(
                    "annotation {EXPORT_MODE} has no effect without {EXPORT}: set that to ClusterSet"
                ));
            }
        }
        Export::Invalid(invalid) => {
            found.insert(invalid.to_string());
        }
        Export::Requested(request) => {
            for annotation in &request.ignored {
                found.insert(format!(
                    "annotation {annotation} is ignored: use {}",
                    expected(annotation)
                ));
            }
            let asides = [
                (HEALTH_SECRET, &request.health),
                (METRICS_SECRET, &request.metrics),
            ];
            for (annotation, aside) in asides {
                if aside.secret == Some(SecretSelector::CrossNamespace) {
                    found.insert(format!(
                        "annotation {annotation} names a Secret of another namespace, which is not passed on: use the name of one in the pool's"
                    ));
                }
            }
        }
    }
    found
}

/// What an annotation takes.
fn expected(annotation: &str) -> &'static str {
    match annotation {
        DRAIN_SECONDS => "seconds from 0 to 3600",
        HEALTH_PORT | METRICS_PORT => {
            "the number or name of a port of the endpoint picker's Service"
        }
        HEALTH_SECRET | METRICS_SECRET => "the name of a Secret",
        _ => "a value that the reference lists",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        fixtures::{member, mk_key, mk_name, mk_policy, mk_pool, mk_world},
        index::update::Update,
        plan::desired_for,
    };

    /// What is wrong with the annotations of `a`'s pool, whose EPP serves health at 9003 and metrics at 9090.
    fn complaints_of(annotations: &[(&str, &str)]) -> Vec<String> {
        let (mut world, now) = (mk_world(&["a", "b"]), Moment::default());
        let mut pool = mk_pool("llm", Some("ClusterSet"));
        let added = annotations.iter();
        pool.annotations
            .extend(added.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        world.update(&mk_name("a"), Update::PoolApplied(pool), now);
        let key = mk_key("llm");
        let plan = desired_for(&world, &mk_policy(), &key, now);
        let obstacles = Obstacles::read(&world, &key, &plan, now);
        let pool = &member(&world, "a").pools[&key].facts;
        let signs = Signs::read(&mk_name("a"), pool, &plan, &obstacles);
        signs.complaints.into_iter().collect()
    }

    #[rstest]
    #[case::health(HEALTH_PORT, "1234")]
    #[case::metrics(METRICS_PORT, "nothing")]
    fn a_port_that_the_service_lacks_is_told(#[case] annotation: &str, #[case] value: &str) {
        let told = complaints_of(&[(annotation, value)]);
        let [told] = told.as_slice() else {
            panic!("one complaint is expected: {told:?}");
        };
        assert!(
            told.contains(annotation) && told.contains("no such port"),
            "{told}"
        );
    }

    #[test]
    fn ports_that_the_service_has_are_no_matter() {
        let told = complaints_of(&[(HEALTH_PORT, "9003"), (METRICS_PORT, "metrics")]);
        assert_eq!(told, [""; 0]);
        // no port at all is told of once
        assert_eq!(complaints_of(&[(HEALTH_PORT, "70000")]).len(), 1);
    }
}
