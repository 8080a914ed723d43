//! Permissions that a member denies us. A kind that we may not read stops only the role that needs it: without Services a
//! member still imports, without namespaces it still exports (spec 5.3).

use std::{collections::BTreeSet, time::Duration};

use super::{
    changes::Changes,
    member::{FLIP_DELAY, Fault, Member, Reach},
    update::Kind,
};
use moment::Moment;

/// The kinds that we may not read in a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// Kinds that its server answers with 403.
    pub kinds: BTreeSet<Kind>,
    /// Since when we may not read what it exports.
    exports: Option<Moment>,
}

/// The verbs that we need for each kind.
const VERBS: &str = "get, list and watch";

fn is_of_exports(kind: Kind) -> bool {
    match kind {
        Kind::Pools | Kind::Services | Kind::Slices => true,
        Kind::Namespaces | Kind::Imports => false,
    }
}

// === impl Denied ===

impl Denied {
    /// Whether importing needs a kind that we may not read.
    pub fn imports(&self) -> bool {
        self.kinds.iter().any(|kind| !is_of_exports(*kind))
    }

    /// Whether every kind may be read.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The missing permissions, for the operator.
    pub fn missing(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.plural()).collect();
        format!("{VERBS} {}", kinds.join(", "))
    }
}

// === impl Member ===

impl Member {
    /// Sets the kinds that we may not read.
    pub(super) fn deny(&mut self, kinds: BTreeSet<Kind>, now: Moment) -> Changes {
        if self.denied.kinds == kinds {
            return Changes::default();
        }
        let hidden = kinds.iter().any(|kind| is_of_exports(*kind));
        self.denied = Denied {
            exports: hidden.then(|| self.denied.exports.unwrap_or(now)),
            kinds,
        };
        Changes::all()
    }

    /// How its entries show that we may not read what it exports; none: we may, or the denial is too new.
    pub fn exports_denied(&self, now: Moment, stale_after: Duration) -> Option<Reach> {
        let age = now.since(self.denied.exports?);
        if age >= stale_after {
            Some(Reach::Stale(Fault::AuthFailed))
        } else if self.contact.met && age < FLIP_DELAY {
            None
        } else {
            Some(Reach::Lost(Fault::AuthFailed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{
            STALE_AFTER, entries, export, exported, member, mk_key, mk_name, mk_policy, mk_world,
            settle,
        },
        index::{World, update::Update},
    };

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn deny(world: &mut World, name: &str, kinds: &[Kind], now: Moment) {
        let denied = Update::Denied(kinds.iter().copied().collect());
        world.update(&mk_name(name), denied, now);
    }

    fn reachable(world: &World, importer: &str) -> String {
        let import = &member(world, importer).imports.items[&mk_key("llm")];
        let conditions = &import.status.clusters[0].conditions;
        let found = conditions.iter().find(|one| one.type_ == "Reachable");
        found.map(|one| one.reason.clone()).unwrap_or_default()
    }

    #[test]
    fn hidden_services_stop_the_export_and_not_the_import() {
        let mut world = mk_world(&["a", "b"]);
        export(&mut world, "a", "llm");
        settle(&mut world, &mk_policy(), at(0));
        deny(&mut world, "a", &[Kind::Services], at(10));
        assert_eq!(
            settle(&mut world, &mk_policy(), at(11)),
            0,
            "not before 2 s"
        );
        settle(&mut world, &mk_policy(), at(12));
        assert_eq!(reachable(&world, "b"), "AuthFailed");
        assert_eq!(entries(&world, "b", &mk_key("llm")), ["a"]);
        // a imports as ever
        export(&mut world, "b", "other");
        settle(&mut world, &mk_policy(), at(13));
        assert_eq!(entries(&world, "a", &mk_key("other")), ["b"]);
        // permission is given
        deny(&mut world, "a", &[], at(20));
        settle(&mut world, &mk_policy(), at(20));
        assert_eq!(reachable(&world, "b"), "Reachable");
    }

    #[test]
    fn hidden_namespaces_stop_the_import_and_not_the_export() {
        let mut world = mk_world(&["a", "b"]);
        deny(&mut world, "b", &[Kind::Namespaces], at(10));
        export(&mut world, "a", "llm");
        export(&mut world, "b", "other");
        settle(&mut world, &mk_policy(), at(20));
        assert!(entries(&world, "b", &mk_key("llm")).is_empty());
        assert_eq!(entries(&world, "a", &mk_key("other")), ["b"]);
        let (_, reason, message) = exported(&world, &mk_policy(), "a", &mk_key("llm"), at(20));
        assert_eq!(reason, "PartiallyExported");
        assert!(message.contains("b AuthFailed"), "{message}");
        assert_eq!(
            member(&world, "b").denied.missing(),
            "get, list and watch namespaces"
        );
    }

    #[test]
    fn what_is_hidden_for_long_is_stale() {
        let mut world = mk_world(&["a"]);
        deny(&mut world, "a", &[Kind::Pools], at(10));
        let denied = |world: &World, now| member(world, "a").exports_denied(now, STALE_AFTER);
        assert_eq!(denied(&world, at(11)), None);
        assert_eq!(denied(&world, at(12)), Some(Reach::Lost(Fault::AuthFailed)));
        // one more does not restart the time
        deny(&mut world, "a", &[Kind::Pools, Kind::Slices], at(40));
        assert_eq!(
            denied(&world, at(70)),
            Some(Reach::Stale(Fault::AuthFailed))
        );
        deny(&mut world, "a", &[Kind::Imports], at(80));
        assert_eq!(denied(&world, at(200)), None);
    }
}
