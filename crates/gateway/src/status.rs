//! Status: what differs (pure), and the writer that makes it so.

use std::collections::BTreeMap;

use crate::model::{ClassStatus, GatewayStatus, ParentStatus, WantedStatus};
use crate::select::Selection;
use crate::world::Key;

pub(crate) mod diff;
pub(crate) mod pace;
pub(crate) mod writer;

#[cfg(test)]
mod tests;

pub(crate) use crate::model::Target;

/// What the status of one object shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Class(ClassStatus),
    Gateway(GatewayStatus),
    /// Our entries of a list of parents.
    Parents(Vec<ParentStatus>),
}

/// A list by key, and the kind of its objects.
type Parents<'a> = (&'a BTreeMap<Key, Vec<ParentStatus>>, fn(Key) -> Target);

/// Every object with what its status shall say, while requests are shared like this.
pub(crate) fn wanted<'a>(
    status: &'a WantedStatus,
    selection: &'a Selection,
) -> impl Iterator<Item = (Target, Wanted)> + 'a {
    let classes = status.classes.iter().map(|(name, class)| {
        let key = Key::new("", name);
        (Target::Class(key), Wanted::Class(class.clone()))
    });
    let gateways = status.gateways.iter().map(|(key, gateway)| {
        (
            Target::Gateway(key.clone()),
            Wanted::Gateway(gateway.clone()),
        )
    });
    let lists: [Parents<'_>; 4] = [
        (&status.routes, Target::Route),
        (&status.pools, Target::Pool),
        (&status.policies, Target::Policy),
        (&status.tls_policies, Target::TlsPolicy),
    ];
    let parents = lists.into_iter().flat_map(|(list, target)| {
        list.iter()
            .map(move |(key, parents)| (target(key.clone()), Wanted::Parents(parents.clone())))
    });
    let imports = status.imports.iter().map(|(key, import)| {
        let parents = Wanted::Parents(import.parents(selection));
        (Target::Import(key.clone()), parents)
    });
    classes.chain(gateways).chain(parents).chain(imports)
}

/// What the status of the object shall say; none of what we do not report on.
pub(crate) fn wanted_of(
    target: &Target,
    status: &WantedStatus,
    selection: &Selection,
) -> Option<Wanted> {
    let parents = |list: &BTreeMap<Key, Vec<ParentStatus>>, key: &Key| {
        let parents = list.get(key)?;
        Some(Wanted::Parents(parents.clone()))
    };
    match target {
        Target::Class(key) => {
            let class = status.classes.get(&key.name)?;
            Some(Wanted::Class(class.clone()))
        }
        Target::Gateway(key) => {
            let gateway = status.gateways.get(key)?;
            Some(Wanted::Gateway(gateway.clone()))
        }
        Target::Route(key) => parents(&status.routes, key),
        Target::Pool(key) => parents(&status.pools, key),
        Target::Policy(key) => parents(&status.policies, key),
        Target::TlsPolicy(key) => parents(&status.tls_policies, key),
        Target::Import(key) => {
            let import = status.imports.get(key)?;
            Some(Wanted::Parents(import.parents(selection)))
        }
    }
}

/// Whether we report on the object.
pub(crate) fn is_wanted(target: &Target, status: &WantedStatus) -> bool {
    match target {
        Target::Class(key) => status.classes.contains_key(&key.name),
        Target::Gateway(key) => status.gateways.contains_key(key),
        Target::Route(key) => status.routes.contains_key(key),
        Target::Pool(key) => status.pools.contains_key(key),
        Target::Policy(key) => status.policies.contains_key(key),
        Target::TlsPolicy(key) => status.tls_policies.contains_key(key),
        Target::Import(key) => status.imports.contains_key(key),
    }
}
