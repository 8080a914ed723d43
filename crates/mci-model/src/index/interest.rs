//! The objects to watch in a member, given what it exports.
//!
//! EndpointSlices are selected by Service, so that the churn of model servers never reaches us. A pool whose EPP is not
//! in the selection yet waits until a list with it has completed. Until then its last known state stays, so that its
//! readiness does not flap.

use std::{collections::BTreeSet, sync::Arc};

use crd::RoutingMode;

use super::{
    Changes,
    facts::{PoolFacts, SliceFacts},
    member::{Coverage, Member},
    update::Change,
};
use crate::name::{ClusterName, Key, is_label};

/// The objects that a member's tasks watch on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// EPP Services of its exported pools.
    pub epps: BTreeSet<Key>,
    /// A pool is exported in ParentMode: its Gateways and HTTPRoutes are needed.
    pub parents: bool,
}

/// The EndpointSlices that a list selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of Services of these names, in any namespace.
    Services(BTreeSet<Arc<str>>),
    /// Those of every Service.
    All,
}

/// Label of the Service that an EndpointSlice belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Longest selector, in bytes. It is part of the URL, where each comma takes three bytes, and proxies commonly limit a
/// request's head to 8 KiB.
const MAX_SELECTOR: usize = 4096;

/// The EPP Service of a pool, if it is exported and has one. A name that no Service can have is left out: the server would
/// refuse the whole selector, and with it the endpoints of all the member's other pools.
fn epp_of(pool: &PoolFacts) -> Option<Key> {
    let epp = pool.epp.as_ref()?;
    let is_service = epp.group.is_empty() && epp.kind == "Service";
    let possible = is_service && pool.export.is_requested() && is_label(&epp.name);
    possible.then(|| Key::new(&pool.key.namespace, &epp.name))
}

// === impl Interest ===

impl Interest {
    /// The EndpointSlices to select; all of them if the selector would be too long.
    pub fn scope(&self) -> Scope {
        let names: BTreeSet<Arc<str>> = self.epps.iter().map(|key| key.name.clone()).collect();
        let scope = Scope::Services(names);
        if scope.selector().len() > MAX_SELECTOR {
            Scope::All
        } else {
            scope
        }
    }
}

// === impl Scope ===

impl Scope {
    /// As a label selector.
    pub fn selector(&self) -> String {
        match self {
            Self::All => SERVICE_NAME.to_owned(),
            Self::Services(names) => {
                let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
                format!("{SERVICE_NAME} in ({})", names.join(","))
            }
        }
    }

    /// Whether there is nothing to select.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Services(names) if names.is_empty())
    }

    /// Whether it selects all that `other` selects.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Services(_), Self::All) => false,
            (Self::Services(names), Self::Services(others)) => names.is_superset(others),
        }
    }

    fn holds(&self, service: &str) -> bool {
        match self {
            Self::All => true,
            Self::Services(names) => names.contains(service),
        }
    }
}

// === impl Member ===

impl Member {
    /// The objects to watch; none before its pools are known.
    pub fn interest(&self) -> Option<Interest> {
        if self.pools.coverage == Coverage::Never {
            return None;
        }
        let known = self.pools.records.values().map(|record| &record.facts);
        let mut interest = Interest::default();
        for pool in known.chain(self.pools.waiting.values()) {
            interest.epps.extend(epp_of(pool));
            interest.parents |= self.mode_of(pool) == Some(RoutingMode::ParentMode);
        }
        Some(interest)
    }

    /// A complete list of the EndpointSlices in this scope. Pools that waited for it are applied.
    pub(super) fn list_slices(
        &mut self,
        name: &ClusterName,
        slices: Vec<SliceFacts>,
        scope: Scope,
    ) -> Changes {
        self.slices_scope = scope;
        let mut changes = self.change_slices(Change::Listed(slices));
        let mut waiting: Vec<PoolFacts> = self.pools.waiting.take().into_values().collect();
        waiting.sort_unstable_by(|a, b| (a.created, a.key.text()).cmp(&(b.created, b.key.text())));
        for pool in waiting {
            // one that is still not in the scope waits again
            changes.merge(self.apply_pool(name, pool));
        }
        changes
    }

    /// Whether the endpoints of the pool's EPP are not watched yet. Before the first list of EndpointSlices no pool waits:
    /// the member's exports are not known then in any case.
    pub(super) fn must_wait(&self, pool: &PoolFacts) -> bool {
        self.slices.coverage == Coverage::Listed
            && epp_of(pool).is_some_and(|service| !self.slices_scope.holds(&service.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{
            entries, export, member, mk_crd, mk_key, mk_name, mk_policy, mk_pool, mk_slice,
            mk_world, settle,
        },
        index::{World, update::Update},
    };
    use moment::Moment;

    fn services(names: &[&str]) -> Scope {
        Scope::Services(names.iter().map(|name| Arc::from(*name)).collect())
    }

    fn list(world: &mut World, from: &str, slices: Vec<SliceFacts>, scope: Scope) {
        let update = Update::SlicesListed { slices, scope };
        world.update(&mk_name(from), update, Moment::default());
    }

    fn mk_pool_with_epp(name: &str, epp: &str) -> PoolFacts {
        let mut pool = mk_pool(name, Some("ClusterSet"));
        if let Some(reference) = &mut pool.epp {
            reference.name = epp.to_owned();
        }
        pool
    }

    #[test]
    fn only_epps_of_exported_pools_are_of_interest() {
        let mut world = mk_world(&["a"]);
        assert_eq!(member(&world, "a").interest(), Some(Interest::default()));
        export(&mut world, "a", "llm");
        let quiet = mk_pool("quiet", None);
        world.update(&mk_name("a"), Update::PoolApplied(quiet), Moment::default());
        let interest = member(&world, "a").interest().expect("pools are listed");
        assert_eq!(interest.epps, BTreeSet::from([mk_key("epp")]));
        assert_eq!(
            interest.scope().selector(),
            "kubernetes.io/service-name in (epp)"
        );
    }

    #[test]
    fn an_epp_that_no_service_can_be_does_not_spoil_the_selection() {
        let mut world = mk_world(&["a"]);
        export(&mut world, "a", "llm");
        for (n, epp) in ["a b", "x)", "UPPER", "", &"x".repeat(64)]
            .into_iter()
            .enumerate()
        {
            let pool = mk_pool_with_epp(&format!("odd-{n}"), epp);
            world.update(&mk_name("a"), Update::PoolApplied(pool), Moment::default());
        }
        let interest = member(&world, "a").interest().expect("pools are listed");
        assert_eq!(
            interest.scope().selector(),
            "kubernetes.io/service-name in (epp)"
        );
        // nor do they wait for what never comes
        list(&mut world, "a", Vec::new(), services(&["epp"]));
        let pool = mk_pool_with_epp("odd", "a b");
        assert!(!member(&world, "a").must_wait(&pool));
    }

    #[test]
    fn nothing_is_known_before_the_pools_are() {
        assert_eq!(Member::new(Moment::default()).interest(), None);
    }

    #[test]
    fn a_selector_that_would_be_too_long_is_a_broad_one() {
        let epps = |count: usize| Interest {
            epps: (0..count)
                .map(|n| mk_key(&format!("epp-{n:020}")))
                .collect(),
            parents: false,
        };
        assert_ne!(epps(100).scope(), Scope::All);
        assert_eq!(epps(1000).scope(), Scope::All);
        assert_eq!(Scope::All.selector(), "kubernetes.io/service-name");
        assert!(epps(100).scope().selector().len() <= MAX_SELECTOR);
    }

    #[test]
    fn a_scope_covers_what_it_holds() {
        assert!(Scope::All.covers(&services(&["a"])));
        assert!(services(&["a", "b"]).covers(&services(&["b"])));
        assert!(!services(&["a"]).covers(&services(&["a", "b"])));
        assert!(!services(&["a"]).covers(&Scope::All));
        assert!(services(&[]).is_empty() && !Scope::All.is_empty());
    }

    #[test]
    fn a_new_export_shows_once_its_endpoints_are_known() {
        let mut world = mk_world(&["a", "b"]);
        list(&mut world, "a", Vec::new(), services(&[]));
        export(&mut world, "a", "llm");
        assert_eq!(settle(&mut world, &mk_policy(), Moment::default()), 0);
        let interest = member(&world, "a").interest().expect("known");
        assert_eq!(interest.epps, BTreeSet::from([mk_key("epp")]));
        list(
            &mut world,
            "a",
            vec![mk_slice(&["10.0.0.1"])],
            services(&["epp"]),
        );
        assert!(settle(&mut world, &mk_policy(), Moment::default()) > 0);
        assert_eq!(entries(&world, "b", &mk_key("llm")), ["a"]);
    }

    #[test]
    fn an_export_that_changes_its_epp_stays_as_it_is_meanwhile() {
        let mut world = mk_world(&["a", "b"]);
        list(
            &mut world,
            "a",
            vec![mk_slice(&["10.0.0.1"])],
            services(&["epp"]),
        );
        export(&mut world, "a", "llm");
        settle(&mut world, &mk_policy(), Moment::default());
        let moved = mk_pool_with_epp("llm", "epp2");
        world.update(&mk_name("a"), Update::PoolApplied(moved), Moment::default());
        assert_eq!(settle(&mut world, &mk_policy(), Moment::default()), 0);
        list(&mut world, "a", Vec::new(), services(&["epp", "epp2"]));
        assert!(settle(&mut world, &mk_policy(), Moment::default()) > 0);
        let facts = &member(&world, "a").pools.records[&mk_key("llm")].facts;
        assert_eq!(
            facts.epp.as_ref().map(|epp| epp.name.as_str()),
            Some("epp2")
        );
    }

    #[test]
    fn an_export_that_waits_and_is_taken_back_leaves_nothing() {
        let mut world = mk_world(&["a", "b"]);
        list(&mut world, "a", Vec::new(), services(&[]));
        export(&mut world, "a", "llm");
        assert!(!member(&world, "a").pools.knows(&mk_key("llm")));
        let quiet = mk_pool("llm", None);
        world.update(&mk_name("a"), Update::PoolApplied(quiet), Moment::default());
        assert_eq!(member(&world, "a").interest(), Some(Interest::default()));
        export(&mut world, "a", "llm");
        let gone = Update::PoolDeleted {
            key: mk_key("llm"),
            crd: mk_crd(),
        };
        world.update(&mk_name("a"), gone, Moment::default());
        assert!(member(&world, "a").pools.waiting.is_empty());
        export(&mut world, "a", "llm");
        let listed = Update::PoolsListed {
            pools: Vec::new(),
            odd: BTreeSet::new(),
            crd: mk_crd(),
        };
        world.update(&mk_name("a"), listed, Moment::default());
        assert!(member(&world, "a").pools.waiting.is_empty());
    }
}
