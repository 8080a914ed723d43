//! Which ConfigMaps policies name for authorities, as many as a namespace may have.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::{BackendTlsPolicy, Key, TlsValidation, World};

/// ConfigMaps with authorities of one namespace, each of which costs a watch of its own. Those of older policies go first.
pub(super) const MAX_MAPS: usize = 64;

/// Lists of several ConfigMaps of one namespace, of which each has its authorities made as one.
pub(super) const MAX_LISTS: usize = 64;

/// The ConfigMaps that policies name for authorities.
#[derive(Debug, Default)]
pub(crate) struct NamedMaps {
    /// Those of what policies ask for now.
    pub(crate) now: BTreeSet<Key>,
    /// And those of what they asked for before. They take no places of the others.
    pub(crate) all: BTreeSet<Key>,
}

// === impl NamedMaps ===

impl NamedMaps {
    pub(crate) fn of(world: &World) -> Self {
        let now = bounded_maps(world, |_, policy| policy.validation.as_ref().ok());
        let before = bounded_maps(world, |key, _| world.tls_before.get(key));
        Self {
            all: now.union(&before).cloned().collect(),
            now,
        }
    }
}

/// The ConfigMaps that policies name for authorities: no others are read for them.
pub(crate) fn named_maps(world: &World) -> BTreeSet<Key> {
    NamedMaps::of(world).all
}

/// As many as are read, of these parts of all policies.
fn bounded_maps<'w>(
    world: &'w World,
    part: impl Fn(&'w Key, &'w BackendTlsPolicy) -> Option<&'w TlsValidation>,
) -> BTreeSet<Key> {
    let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for (key, policy) in by_age(world) {
        let validation = part(key, policy).into_iter();
        for map in validation.flat_map(|validation| validation.maps(key)) {
            let count = of_namespaces.entry(&key.namespace).or_default();
            if !named.contains(&map) && *count < MAX_MAPS {
                *count += 1;
                named.insert(map);
            }
        }
    }
    named
}

/// The lists of several ConfigMaps whose authorities are made as one.
pub(super) fn merged_lists(world: &World) -> BTreeSet<BTreeSet<Key>> {
    let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lists = BTreeSet::new();
    for (key, policy) in by_age(world) {
        let Some(validation) = held(world, key, policy) else {
            continue;
        };
        let list: BTreeSet<Key> = validation.maps(key).collect();
        let count = of_namespaces.entry(&key.namespace).or_default();
        if list.len() > 1 && *count < MAX_LISTS && lists.insert(list) {
            *count += 1;
        }
    }
    lists
}

/// What holds of the policy: what it asked for before, until it can hold as it is now.
pub(super) fn held<'w>(
    world: &'w World,
    key: &Key,
    policy: &'w BackendTlsPolicy,
) -> Option<&'w TlsValidation> {
    let now = policy.validation.as_ref().ok()?;
    Some(world.tls_before.get(key).unwrap_or(now))
}

/// Older policies first, then by name.
pub(super) fn by_age(world: &World) -> Vec<(&Key, &BackendTlsPolicy)> {
    let mut all: Vec<_> = world.tls_policies.iter().collect();
    all.sort_by_key(|(key, policy)| (policy.created, *key));
    all
}
