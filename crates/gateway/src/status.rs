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

/// An object whose status we write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Without a namespace.
    Class(Key),
    Gateway(Key),
    Route(Key),
    Pool(Key),
    Import(Key),
    Policy(Key),
    TlsPolicy(Key),
}

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

// === impl Target ===

impl Target {
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Class(key)
            | Self::Gateway(key)
            | Self::Route(key)
            | Self::Pool(key)
            | Self::Import(key)
            | Self::Policy(key)
            | Self::TlsPolicy(key) => key,
        }
    }

    /// Group, version, kind.
    pub(crate) fn api(&self) -> (&'static str, &'static str, &'static str) {
        use crd::annotations::{GATEWAY_GROUP, IMPORT_GROUP, IMPORT_KIND, POOL_GROUP, POOL_KIND};
        use crd::selection_policy;
        match self {
            Self::Class(_) => (GATEWAY_GROUP, "v1", "GatewayClass"),
            Self::Gateway(_) => (GATEWAY_GROUP, "v1", "Gateway"),
            Self::Route(_) => (GATEWAY_GROUP, "v1", "HTTPRoute"),
            Self::Pool(_) => (POOL_GROUP, "v1", POOL_KIND),
            Self::Import(_) => (IMPORT_GROUP, crd::import::VERSION, IMPORT_KIND),
            Self::Policy(_) => (
                selection_policy::GROUP,
                selection_policy::VERSION,
                selection_policy::KIND,
            ),
            Self::TlsPolicy(_) => (GATEWAY_GROUP, "v1", "BackendTLSPolicy"),
        }
    }
}
