//! A member as its API server holds it.

use std::{collections::BTreeMap, sync::Arc};

use crd::{Condition, ImportedCluster, InferencePoolImportStatus};
use jiff::Timestamp;

use crate::{
    fixtures::*,
    index::{
        digest::LiveStatus,
        facts::{Claim, CrdCheck, LiveImport, NamespaceFacts, PoolFacts},
        flavour::{Flavour, ImportCrd},
        update::Change,
    },
    name::Key,
    plan::PlannedImport,
};

/// What may become of the pools CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrdState {
    Stands,
    /// Deleted and installed again: another uid, and no pools.
    Reinstalled,
    /// Being deleted: its pools go, and their going proves nothing.
    Going,
    Gone,
    /// The same, while our watch was broken: nobody tells of the pools.
    GoneUnseen,
}

pub(super) struct Cluster {
    /// In the inventory.
    pub(super) listed: bool,
    /// Answers us.
    pub(super) up: bool,
    /// Terminating; none: missing.
    pub(super) namespace: Option<bool>,
    pools: BTreeMap<Key, PoolFacts>,
    imports: BTreeMap<Key, LiveImport>,
    pools_crd: CrdState,
    crd_uid: u32,
    flavour: Flavour,
    import_crd_uid: u32,
    generation: i64,
    versions: u64,
    /// Its imports were destroyed by its own doing.
    pub(super) excused: bool,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            listed: true,
            up: true,
            namespace: Some(false),
            pools: BTreeMap::new(),
            imports: BTreeMap::new(),
            pools_crd: CrdState::Stands,
            crd_uid: 1,
            flavour: Flavour::Superset,
            import_crd_uid: 1,
            generation: 1,
            versions: 1,
            excused: false,
        }
    }

    /// Sets a pool's annotations, and makes the pool; whether the API server takes it.
    pub(super) fn export(&mut self, pool: &str, value: Option<&str>, drain: Option<u32>) -> bool {
        if self.namespace != Some(false) || self.pools_crd != CrdState::Stands {
            return false;
        }
        let mut facts = mk_pool(pool, value);
        let drain = drain.map(|drain| drain.to_string());
        let value = value.map(|value| (crd::annotations::EXPORT, value));
        let drain = drain.as_deref();
        let drain = drain.map(|drain| (crd::annotations::DRAIN_SECONDS, drain));
        let annotations: Vec<_> = value.into_iter().chain(drain).collect();
        facts.export = mk_export(&annotations);
        let old = self.pools.get(&facts.key);
        facts.exported = old.and_then(|old| old.exported.clone());
        self.pools.insert(facts.key.clone(), facts);
        true
    }

    pub(super) fn exports(&self, pool: &str) -> bool {
        let facts = self.pools.get(&mk_key(pool));
        facts.is_some_and(|facts| facts.export.is_requested())
    }

    pub(super) fn delete_pool(&mut self, pool: &str) -> bool {
        self.pools.remove(&mk_key(pool)).is_some()
    }

    pub(super) fn pool(&self, pool: &str) -> Option<PoolFacts> {
        self.pools.get(&mk_key(pool)).cloned()
    }

    pub(super) fn pools(&self) -> Vec<PoolFacts> {
        self.pools.values().cloned().collect()
    }

    pub(super) fn has_pool(&self, pool: &str) -> bool {
        self.pools.contains_key(&mk_key(pool))
    }

    /// All in the namespace goes; returns which pools.
    pub(super) fn empty_namespace(&mut self) -> Vec<usize> {
        self.imports.clear();
        self.excused = true;
        self.empty_pools()
    }

    fn empty_pools(&mut self) -> Vec<usize> {
        let pools = std::mem::take(&mut self.pools);
        let all = super::POOLS.iter().enumerate();
        all.filter(|(_, pool)| pools.contains_key(&mk_key(pool)))
            .map(|(p, _)| p)
            .collect()
    }

    /// Returns which pools go with it.
    pub(super) fn set_crd(&mut self, state: CrdState) -> Vec<usize> {
        let gone = match (self.pools_crd, state) {
            // one that is gone comes back as another
            (CrdState::Gone | CrdState::Going | CrdState::GoneUnseen, CrdState::Stands)
            | (_, CrdState::Reinstalled) => {
                self.crd_uid += 1;
                self.empty_pools()
            }
            (_, CrdState::Stands) => Vec::new(),
            (_, CrdState::Going | CrdState::Gone | CrdState::GoneUnseen) => self.empty_pools(),
        };
        self.pools_crd = match state {
            CrdState::Reinstalled => CrdState::Stands,
            other => other,
        };
        gone
    }

    pub(super) fn serves_pools(&self) -> bool {
        !matches!(self.pools_crd, CrdState::Gone | CrdState::GoneUnseen)
    }

    pub(super) fn crd_stands(&self) -> bool {
        self.pools_crd == CrdState::Stands
    }

    pub(super) fn crd_uid(&self) -> u32 {
        self.crd_uid
    }

    pub(super) fn crd_check(&self) -> CrdCheck {
        match self.pools_crd {
            CrdState::Stands | CrdState::Reinstalled => CrdCheck::Serving {
                uid: self.crd_uid.to_string(),
            },
            CrdState::Going | CrdState::Gone | CrdState::GoneUnseen => CrdCheck::Doubtful,
        }
    }

    pub(super) fn set_flavour(&mut self, flavour: Flavour) {
        if self.flavour == flavour {
            return;
        }
        self.excused = true;
        self.generation += 1;
        if self.flavour == Flavour::Absent {
            self.import_crd_uid += 1;
        }
        if flavour == Flavour::Absent {
            self.imports.clear();
        }
        self.flavour = flavour;
    }

    pub(super) fn reinstall_import_crd(&mut self) {
        if self.flavour != Flavour::Absent {
            self.import_crd_uid += 1;
            self.imports.clear();
            self.excused = true;
        }
    }

    pub(super) fn import_crd(&self) -> ImportCrd {
        if self.flavour == Flavour::Absent {
            return ImportCrd::ABSENT;
        }
        ImportCrd {
            flavour: self.flavour,
            uid: Some(self.import_crd_uid.to_string()),
            generation: self.generation,
        }
    }

    pub(super) fn namespaces(&self) -> Vec<NamespaceFacts> {
        self.namespace.map(mk_namespace).into_iter().collect()
    }

    /// Imports as they read: under upstream's CRD all but `controllers` is left out (K6).
    pub(super) fn imports(&self) -> Vec<LiveImport> {
        let imports = self.imports.values();
        imports.map(|import| self.read(import)).collect()
    }

    fn read(&self, import: &LiveImport) -> LiveImport {
        let mut import = import.clone();
        if self.flavour == Flavour::Upstream {
            let named = InferencePoolImportStatus {
                controllers: import.status.controllers.clone(),
                ..InferencePoolImportStatus::default()
            };
            import.status = LiveStatus::new(named, &mk_policy().controller_name);
            import.owned_entries = Arc::default();
        }
        import
    }

    /// None: the API server refuses it.
    pub(super) fn apply_import(
        &mut self,
        key: &Key,
        planned: &PlannedImport,
    ) -> Option<Change<LiveImport>> {
        let declared = match self.flavour {
            Flavour::Superset => true,
            Flavour::Upstream => planned.status.clusters.is_empty(),
            Flavour::Absent => false,
        };
        if !declared || self.namespace != Some(false) {
            return None;
        }
        self.versions += 1;
        let import = mk_live(key, planned, self.versions);
        self.imports.insert(key.clone(), import.clone());
        Some(Change::Applied(self.read(&import)))
    }

    /// Takes out what others added; of that, nothing but drains is ever added here.
    pub(super) fn patch_import(
        &mut self,
        key: &Key,
        pointers: &[String],
    ) -> Option<Change<LiveImport>> {
        let import = self.imports.get_mut(key)?;
        for pointer in pointers {
            let at = pointer.strip_prefix("/status/clusters/")?;
            let at: usize = at.strip_suffix("/drainUntil")?.parse().ok()?;
            import.status.clusters.get_mut(at)?.drain_until = None;
        }
        let import = import.clone();
        Some(Change::Applied(self.read(&import)))
    }

    pub(super) fn delete_import(&mut self, key: &Key) -> Option<Change<LiveImport>> {
        let found = self.imports.remove(key);
        found.map(|_| Change::Deleted(key.clone()))
    }

    /// Somebody with rights there has an import of ours drain for ever, or says so of an exporter.
    pub(super) fn forge(&mut self, key: &Key, exporter: &str) -> Option<Change<LiveImport>> {
        let import = self.imports.get_mut(key)?;
        let mut clusters = import.status.clusters.iter_mut();
        let entry: &mut ImportedCluster = clusters.find(|entry| entry.name == exporter)?;
        let forever = Timestamp::from_second(20_000_000_000).expect("in range");
        entry.drain_until = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            forever,
        ));
        self.versions += 1;
        import.resource_version = self.versions.to_string();
        self.excused = true;
        let import = import.clone();
        (import.claim == Claim::Ours).then(|| Change::Applied(self.read(&import)))
    }

    pub(super) fn set_exported(
        &mut self,
        key: &Key,
        exported: Option<Vec<Condition>>,
    ) -> Option<PoolFacts> {
        let pool = self.pools.get_mut(key)?;
        pool.exported = exported;
        Some(pool.clone())
    }

    pub(super) fn entries(&self, key: &Key) -> BTreeMap<String, Option<Timestamp>> {
        let import = self.imports.get(key).map(|import| self.read(import));
        let clusters = import
            .into_iter()
            .flat_map(|import| import.status.clusters.clone());
        clusters
            .map(|entry| {
                (
                    entry.name.clone(),
                    entry.drain_until.as_ref().map(|time| time.0),
                )
            })
            .collect()
    }

    pub(super) fn has_import(&self, key: &Key) -> bool {
        self.imports.contains_key(key)
    }
}
