//! Which objects are other than before. What depends on them is made again:
//!
//! | changed | made again |
//! |---|---|
//! | route | its rules, its Gateways before and after, what is said of the pools and imports that it names |
//! | Service | routes that name it, pools whose endpoint picker it is |
//! | pool | routes that name it, Gateways that reach it, the import that it may join |
//! | import | routes that name it, Gateways that reach it, what is said of policies |
//! | what runs for a Gateway | what is said of the Gateway, of its routes, and of policies for TLS |
//! | anything else | everything |

use std::collections::BTreeSet;

use super::Key;

/// What of the world is other than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Any object may be, also of kinds that have no list here.
    pub(crate) all: bool,
    pub(crate) routes: BTreeSet<Key>,
    pub(crate) services: BTreeSet<Key>,
    pub(crate) pools: BTreeSet<Key>,
    pub(crate) imports: BTreeSet<Key>,
    /// What their status says of them, and nothing else.
    pub(crate) reports: BTreeSet<Key>,
}

// === impl Touched ===

impl Touched {
    pub(crate) fn all() -> Self {
        Self::any(true)
    }

    /// Everything, if anything is other than before.
    pub(crate) fn any(changed: bool) -> Self {
        Self {
            all: changed,
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, other: Self) {
        let Self {
            all,
            routes,
            services,
            pools,
            imports,
            reports,
        } = other;
        self.all |= all;
        self.routes.extend(routes);
        self.services.extend(services);
        self.pools.extend(pools);
        self.imports.extend(imports);
        self.reports.extend(reports);
    }
}
