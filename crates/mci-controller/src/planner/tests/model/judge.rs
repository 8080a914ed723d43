//! What the API servers hold once all is quiet, compared with what the oracle says.

use serde_json::{Value, json};

use super::{
    MEMBERS, POOLS,
    cluster::{list, text},
    oracle::{Due, Told, wall},
    rig::Rig,
};
use crate::{fixtures::mk_policy, index::flavour::Flavour};

impl Rig {
    /// Judges all that is in clusters that answer. `healed`: nothing waits for time any more.
    pub(super) fn judge(&self, healed: bool) {
        self.planner.check_listed();
        for (m, cluster) in self.clusters.iter().enumerate() {
            let answers = cluster.listed && cluster.up && cluster.namespace == Some(false);
            for (p, pool) in POOLS.iter().enumerate() {
                if let Some(foreign) = cluster.foreign.get(pool) {
                    let import = cluster.import(pool);
                    assert_eq!(
                        import.as_ref(),
                        Some(foreign),
                        "a stranger's import changed"
                    );
                } else if answers && cluster.flavour != Flavour::Absent {
                    self.judge_import(m, p, healed);
                }
                if answers && cluster.crd_stands() {
                    self.judge_pool(m, p, healed);
                }
            }
        }
    }

    fn judge_import(&self, t: usize, p: usize, healed: bool) {
        let cluster = &self.clusters[t];
        let import = cluster.import(POOLS[p]).unwrap_or_default();
        let place = format!("{} in {}", POOLS[p], MEMBERS[t]);
        let ours = ours(&import, "/status/controllers", "name");
        let ours = ours.unwrap_or_default();
        let named = list(&ours, "/exportingClusters");
        let mut named: Vec<String> = named.iter().map(|one| text(one, "/name")).collect();
        if cluster.flavour == Flavour::Upstream {
            for e in (0..self.clusters.len()).filter(|&e| e != t) {
                let due = self.oracle.due(e, p, healed, self.now) == Due::Entry;
                let is_named = named.iter().any(|one| one == MEMBERS[e]);
                assert!(!due || is_named, "{place} does not name {}", MEMBERS[e]);
            }
            return;
        }
        let mut entries = cluster.entries(POOLS[p]);
        // of one that is only named, the entry is not known: the import is left as it is until that is heard of
        let is_held = (0..self.clusters.len()).any(|e| {
            let is_named = named.iter().any(|one| one == MEMBERS[e]);
            e != t && !self.oracle.is_known(e, p) && is_named && !entries.contains_key(MEMBERS[e])
        });
        if is_held {
            return;
        }
        let mut judged = Vec::new();
        for e in (0..self.clusters.len()).filter(|&e| e != t) {
            let entry = entries.remove(MEMBERS[e]);
            let due = self.oracle.due(e, p, healed, self.now);
            let of = format!("{place} of {}: {due:?}, {}", MEMBERS[e], json!(entry));
            match (due, &entry) {
                (Due::Entry, Some(entry)) => self.judge_entry(e, p, entry, &of),
                (Due::Drain, Some(entry)) => {
                    let until = text(entry, "/drainUntil").parse::<jiff::Timestamp>().ok();
                    assert!(until.is_some_and(|until| until > wall(self.now)), "{of}");
                    let ready = json!({"type": "Ready", "status": "False", "reason": "Draining"});
                    assert!(has_condition(entry, &ready), "{of}");
                }
                (Due::Entry, None) | (Due::Nothing, Some(_)) => panic!("{of}"),
                (Due::Either, _) | (Due::Drain | Due::Nothing, None) => {}
            }
            judged.extend(entry);
        }
        // others' entries go, and its own never is there (P4)
        assert!(entries.is_empty(), "{place}: {entries:?}");
        if judged.is_empty() {
            let is_ours = import.pointer("/metadata/labels/isthmus.dev~1clusterset");
            assert!(is_ours.is_none(), "{place} is empty: {import}");
            return;
        }
        let policy = mk_policy();
        assert_eq!(
            import["metadata"]["labels"],
            json!({"app.kubernetes.io/managed-by": "isthmus-mci-controller",
                "isthmus.dev/clusterset": policy.clusterset, "isthmus.dev/controller-instance": policy.instance}),
            "{place}"
        );
        let mut exporting: Vec<String> = judged.iter().map(|one| text(one, "/name")).collect();
        match self.oracle.told(t, p) {
            Told::Exported => exporting.push(MEMBERS[t].to_owned()),
            Told::Doubted | Told::Absent => named.retain(|one| one != MEMBERS[t]),
            Told::Nothing | Told::NotExported | Told::Deleted => {}
        }
        exporting.sort_unstable();
        assert_eq!(named, exporting, "{place}");
        judge_summary(&import, &ours, &judged, &place);
        let gateway = cluster.gateways.contains(&text(&import, "/metadata/uid"));
        assert!(!gateway || keeps_gateway(&import), "{place}: {import}");
    }

    fn judge_entry(&self, e: usize, p: usize, entry: &Value, of: &str) {
        let Some(wanted) = self.oracle.entry(e, p, self.now) else {
            return;
        };
        let mut found = entry.clone();
        found["conditions"] = conditions(entry);
        let wants = list(&wanted, "/conditions");
        let wants = |one: &Value| wants.iter().any(|wanted| wanted["type"] == one["type"]);
        let list = found["conditions"].as_array_mut().expect("a list");
        // where the guard may hold it
        list.retain(|one| one["type"] != "Ready" || wants(one));
        assert!(found == wanted, "{of}: not {wanted}");
    }

    /// `Exported` in a pool's status.
    fn judge_pool(&self, e: usize, p: usize, healed: bool) {
        let Some(pool) = self.clusters[e].pool(POOLS[p]) else {
            return;
        };
        let found = ours(&pool, "/status/parents", "controllerName");
        let found = found.map(|found| conditions(&found));
        let condition = |status: &str, reason: &str| {
            Some(
                json!([{"type": "Exported", "status": status, "reason": reason,
                "observedGeneration": pool["metadata"]["generation"]}]),
            )
        };
        let wanted = if self.clusters[e].exports(POOLS[p]) {
            let Some((status, reason)) = self.exported(e, p, healed) else {
                return;
            };
            condition(status, reason)
        } else if pool["metadata"]["annotations"]
            .get(crd::annotations::EXPORT)
            .is_some()
        {
            condition("False", "NotSupported")
        } else {
            None
        };
        assert!(
            found == wanted,
            "{} of {}: {} is not {}",
            POOLS[p],
            MEMBERS[e],
            json!(found),
            json!(wanted)
        );
    }

    /// Status and reason of `Exported`; none where it is for others to judge how an importer stands.
    fn exported(&self, e: usize, p: usize, healed: bool) -> Option<(&'static str, &'static str)> {
        let (mut others, mut missing, mut blocked) = (0, 0, 0);
        for (t, cluster) in self.clusters.iter().enumerate().filter(|(t, _)| *t != e) {
            if !cluster.listed {
                if self.rules.isolation_guard && !healed {
                    return None;
                }
                continue;
            }
            if self.may_be_contested(t, p) && !healed {
                return None;
            }
            others += 1;
            let silent = !cluster.up || cluster.flavour == Flavour::Absent;
            if silent || cluster.foreign.contains_key(POOLS[p]) && cluster.namespace == Some(false)
            {
                blocked += 1;
            } else if cluster.namespace != Some(false) {
                missing += 1;
            } else if cluster.flavour == Flavour::Superset
                && !cluster.entries(POOLS[p]).contains_key(MEMBERS[e])
            {
                // one that is held: see above
                blocked += 1;
            }
        }
        Some(if others == 0 {
            ("False", "NoOtherMember")
        } else if missing == others {
            ("False", "NamespaceMissing")
        } else if blocked > 0 {
            ("False", "PartiallyExported")
        } else {
            ("True", "Exported")
        })
    }
}

/// What the import says of itself, from the entries that it has.
fn judge_summary(import: &Value, ours: &Value, entries: &[Value], place: &str) {
    let generation = &import["metadata"]["generation"];
    assert_eq!(
        &import["status"]["observedGeneration"], generation,
        "{place}"
    );
    let are = |type_: &str, status: &str| {
        let one = json!({"type": type_, "status": status});
        entries
            .iter()
            .filter(|entry| has_condition(entry, &one))
            .count()
    };
    let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "observedGeneration": generation});
    let accepted = if are("Accepted", "True") > 0 {
        condition("Accepted", "True", "Accepted")
    } else {
        condition("Accepted", "False", "NoValidCluster")
    };
    let ready = if are("Ready", "True") > 0 {
        condition("Ready", "True", "Ready")
    } else if are("Ready", "Unknown") == entries.len() {
        condition("Ready", "Unknown", "AllStale")
    } else {
        condition("Ready", "False", "NoReadyCluster")
    };
    assert!(
        conditions(ours) == json!([accepted, ready]),
        "{place}: {import}"
    );
    // of what drains, somebody may have made what he likes
    let ports = |entry: &Value| {
        (
            entry["targetPorts"].clone(),
            entry["targetPortNumber"].clone(),
        )
    };
    let mut top = vec![accepted];
    if entries.iter().any(|one| ports(one) != ports(&entries[0])) {
        top.push(condition("Consistent", "False", "TargetPortsDiffer"));
    } else if entries.len() > 1 {
        top.push(condition("Consistent", "True", "Consistent"));
    }
    top.push(ready);
    let mut found = conditions(&import["status"]);
    let found = found.as_array_mut().expect("a list");
    found.retain(|one| one["type"] != GATEWAYS_CONDITION);
    assert!(*found == top, "{place}: {import}");
}

/// Of a type that only a gateway writes.
pub(super) const GATEWAYS_CONDITION: &str = "example.com/Programmed";
/// A controller that is not ours.
pub(super) const GATEWAY: &str = "example.com/gateway";

fn keeps_gateway(import: &Value) -> bool {
    let controllers = list(import, "/status/controllers");
    has_condition(&import["status"], &json!({"type": GATEWAYS_CONDITION}))
        && controllers.iter().any(|one| one["name"] == GATEWAY)
}

/// Our item of a list.
fn ours(object: &Value, pointer: &str, field: &str) -> Option<Value> {
    let mut items = list(object, pointer).into_iter();
    items.find(|one| one[field] == mk_policy().controller_name)
}

/// Conditions by type, without texts and times.
fn conditions(holder: &Value) -> Value {
    let mut conditions = list(holder, "/conditions");
    for condition in &mut conditions {
        let condition = condition.as_object_mut().expect("an object");
        condition.retain(|field, _| field != "message" && field != "lastTransitionTime");
    }
    conditions.sort_unstable_by_key(|one| text(one, "/type"));
    conditions.into()
}

/// Whether there is a condition that says all of this.
fn has_condition(holder: &Value, wanted: &Value) -> bool {
    let wanted = wanted.as_object().expect("an object");
    let conditions = list(holder, "/conditions");
    let mut conditions = conditions.iter();
    conditions.any(|one| wanted.iter().all(|(field, value)| one[field] == *value))
}
