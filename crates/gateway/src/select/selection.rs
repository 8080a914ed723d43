//! How requests are shared among the clusters of each import, as of one moment.
//!
//! It is an input of assignments and of status alone: routes, listeners and clusters never follow from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Import, Imported, Mode, Readiness};
use crate::text::quoted;
use crate::world::Key;

use super::Ineligible;

/// Shares of the clusters of one priority add up to about this.
pub(crate) const WHOLE: u32 = 1000;

/// By import, then by cluster name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    imports: BTreeMap<Key, BTreeMap<String, Assigned>>,
    /// The remote clusters whose metrics are not read, where shares depend on them.
    unread: BTreeMap<Key, Vec<String>>,
}

/// What one cluster of an import gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// Its share of the new requests of its priority, in permille; 0: none.
    pub(crate) weight: u32,
    /// Requests go to the healthy clusters of the lowest number that has any. Gaps mean nothing.
    pub(crate) priority: u32,
    pub(crate) health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Healthy,
    /// Nothing new is sent, and nothing is retried there.
    Unhealthy,
    /// Existing streams go on, nothing new is sent.
    Draining,
}

// === impl Selection ===

impl Selection {
    /// `None`: nothing is known of that cluster, and nothing is sent to it.
    pub(crate) fn of(&self, import: &Key, cluster: &str) -> Option<Assigned> {
        self.imports.get(import)?.get(cluster).copied()
    }

    /// The imports whose requests are shared in another way, or of which something else is said.
    pub(crate) fn differing(&self, other: &Self) -> BTreeSet<Key> {
        let imports = self.imports.keys().chain(other.imports.keys());
        let imports = imports.filter(|key| self.imports.get(*key) != other.imports.get(*key));
        let unread = self.unread.keys().chain(other.unread.keys());
        let unread = unread.filter(|key| self.unread.get(*key) != other.unread.get(*key));
        imports.chain(unread).cloned().collect()
    }

    /// Sets what the clusters of the import get.
    pub(crate) fn insert(&mut self, import: Key, clusters: BTreeMap<String, Assigned>) {
        self.imports.insert(import, clusters);
    }

    /// Sets whose metrics are not read.
    pub(crate) fn note_unread(&mut self, import: &Key, clusters: Vec<String>) {
        if !clusters.is_empty() {
            self.unread.insert(import.clone(), clusters);
        }
    }

    /// Equal shares of each import for those of its clusters that want new requests.
    #[cfg(test)]
    pub(crate) fn equal<'a>(imports: impl IntoIterator<Item = &'a Import>) -> Self {
        let mut selection = Self::default();
        for import in imports {
            selection.insert(import.key.clone(), equal_shares(import));
        }
        selection
    }
}

#[cfg(test)]
fn equal_shares(import: &Import) -> BTreeMap<String, Assigned> {
    let is_active = |cluster: &Imported| cluster.readiness == Readiness::Ready;
    let hops = import.hops().map(|(cluster, _)| cluster);
    let active = hops.clone().filter(|cluster| is_active(cluster)).count();
    // At most 256 clusters in an import, so each share is 3 or more.
    let share = u32::try_from(active).ok();
    let share = share.and_then(|n| WHOLE.checked_div(n)).unwrap_or(0);
    let assigned = hops.map(|cluster| {
        let (weight, health) = match cluster.readiness {
            Readiness::Ready => (share, Health::Healthy),
            Readiness::NotReady(_) => (0, Health::Unhealthy),
            Readiness::Draining { .. } => (0, Health::Draining),
        };
        let assigned = Assigned {
            weight,
            priority: 0,
            health,
        };
        (cluster.name.clone(), assigned)
    });
    assigned.collect()
}

/// Whether any cluster of the import gets new requests, be it in its former mode.
pub(crate) fn is_used(import: &Import, selection: &Selection) -> bool {
    first_priority(import, selection).is_some() || import.former_hops().next().is_some()
}

/// The priority that gets new requests.
fn first_priority(import: &Import, selection: &Selection) -> Option<u32> {
    let clusters = import.clusters.iter();
    let clusters = clusters.filter(|cluster| cluster.eligible().is_ok());
    let assigned = clusters.filter_map(|cluster| selection.of(&import.key, &cluster.name));
    let used = assigned.filter(|one| one.health == Health::Healthy && one.weight > 0);
    used.map(|one| one.priority).min()
}

/// For people: `east 500, south 500; north NotReady; metrics are not read: south`.
pub(crate) fn summary(import: &Import, selection: &Selection) -> String {
    let first = first_priority(import, selection);
    let (mut eligible, mut others) = (Vec::new(), Vec::new());
    for cluster in &import.clusters {
        let name = &cluster.name;
        match cluster.eligible() {
            Ok(mode) => {
                let assigned = selection.of(&import.key, name);
                if assigned.is_some_and(|one| one.health == Health::Unhealthy) {
                    others.push(format!("{name} {}", unhealthy(mode)));
                } else {
                    eligible.push(format!("{name} {}", state(cluster, assigned, first)));
                }
            }
            Err(why) => others.push(ineligible(name, &why)),
        }
    }
    let unread = selection.unread.get(&import.key);
    let unread = unread.map(|names| format!("metrics are not read: {}", names.join(", ")));
    let formers = import.former_hops().map(|(cluster, mode)| {
        let name = &cluster.name;
        format!("what {name} cannot serve yet goes there by {}", mode.name())
    });
    let parts = [eligible.join(", "), others.join(", ")].into_iter();
    let parts = parts
        .filter(|part| !part.is_empty())
        .chain(formers)
        .chain(unread);
    parts.collect::<Vec<_>>().join("; ")
}

fn state(cluster: &Imported, assigned: Option<Assigned>, first: Option<u32>) -> String {
    if let Readiness::Draining { until } = cluster.readiness {
        let until = until.and_then(|second| jiff::Timestamp::from_second(second).ok());
        return until.map_or_else(
            || "Draining".to_owned(),
            |until| format!("Draining until {until}"),
        );
    }
    match assigned {
        None => "Unhealthy".to_owned(),
        Some(one) => match one.health {
            Health::Unhealthy => "Unhealthy".to_owned(),
            Health::Draining => "Draining".to_owned(),
            Health::Healthy if Some(one.priority) != first => "Standby".to_owned(),
            Health::Healthy => one.weight.to_string(),
        },
    }
}

/// Who does not answer the gateway's probes.
fn unhealthy(mode: &Mode) -> &'static str {
    match mode {
        Mode::Endpoint(_) | Mode::Local(_) => "EPPUnhealthy",
        Mode::Parent(_) => "ParentUnhealthy",
    }
}

fn ineligible(name: &str, why: &Ineligible) -> String {
    let reason = why.reason();
    match why {
        Ineligible::InvalidName => format!("{} {reason}", quoted(name)),
        Ineligible::AddressDenied(_)
        | Ineligible::NetworksDenied
        | Ineligible::NetworksUnknown(_)
        | Ineligible::HostnameUnknown => {
            format!("{name} {reason} ({why})")
        }
        _ => format!("{name} {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{key, mk_import, mk_settings, mk_world};
    use crate::model::build;

    fn mk_made(change: impl FnOnce(&mut Vec<crate::world::ImportedCluster>)) -> Import {
        let names = ["east", "north", "south"].map(|name| (name, "10.2.0.9"));
        let mut import = mk_import(&names);
        change(&mut import.clusters);
        let mut world = mk_world();
        world.imports.insert(key("llm"), import);
        let (models, _) = build(&world, &mk_settings());
        Import::clone(&models[0].imports[&key("llm")])
    }

    fn mk_assigned(weight: u32, priority: u32, health: Health) -> Assigned {
        Assigned {
            weight,
            priority,
            health,
        }
    }

    #[test]
    fn those_that_want_requests_share_them_equally() {
        let import = mk_made(|clusters| {
            clusters[1].not_ready = Some("NoReadyEndpoint".into());
        });
        let selection = Selection::equal([&import]);
        let half = mk_assigned(500, 0, Health::Healthy);
        let none = mk_assigned(0, 0, Health::Unhealthy);
        for (name, expected) in [("east", half), ("north", none), ("south", half)] {
            assert_eq!(selection.of(&import.key, name), Some(expected), "{name}");
        }
        assert_eq!(selection.of(&import.key, "west"), None);
        let said = "east 500, south 500; north NoReadyEndpoint";
        assert_eq!(summary(&import, &selection), said);
    }

    /// The end of an export is known by its time also where no condition says it.
    #[test]
    fn import_is_not_used_when_all_its_clusters_drain() {
        let import = mk_made(|clusters| {
            clusters.truncate(2);
            clusters[0].not_ready = Some("Draining".into());
            clusters[1].drain_until = Some(60);
        });
        let selection = Selection::equal([&import]);
        assert!(!is_used(&import, &selection));
        let said = "east Draining, north Draining until 1970-01-01T00:01:00Z";
        assert_eq!(summary(&import, &selection), said);
    }

    #[test]
    fn summary_tells_who_gets_requests_now_from_who_stands_by() {
        let import = mk_made(|_| {});
        let mut selection = Selection::default();
        let assigned = [
            ("east", mk_assigned(1000, 0, Health::Unhealthy)),
            ("north", mk_assigned(1000, 4, Health::Healthy)),
            ("south", mk_assigned(1000, 7, Health::Healthy)),
        ];
        let assigned = assigned.map(|(name, one)| (name.to_owned(), one));
        selection.insert(import.key.clone(), assigned.into());
        let said = "north 1000, south Standby; east EPPUnhealthy";
        assert_eq!(summary(&import, &selection), said);
        selection.note_unread(&import.key, vec!["north".to_owned(), "south".to_owned()]);
        let said = format!("{said}; metrics are not read: north, south");
        assert_eq!(summary(&import, &selection), said);
    }
}
