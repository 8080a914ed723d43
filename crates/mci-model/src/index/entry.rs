//! An entry of an import, shared: each importer has its own list of them, and nearly all of these have the same.

use std::{
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use crd::{ImportedCluster, InferencePoolImportStatus};
use serde::{Serialize, Serializer};
use xxhash_rust::xxh3::Xxh3Default;

use super::{
    digest::{digest_entry, times_of_entry},
    heap::{ALLOCATION, Heap},
};

/// Cheap to clone; never changed.
#[derive(Clone, Debug)]
pub struct Entry(Arc<SharedEntry>);

/// What is shared.
#[derive(Clone, Debug)]
pub struct SharedEntry {
    /// Apart, so that it goes with the last entry, though somebody still remembers that there was one.
    cluster: Box<ImportedCluster>,
    /// See [`digest_entry`]. None: not known.
    digest: Option<u64>,
    /// Equal only for entries that are equal, times too, but for what collides.
    exact: u64,
    /// What it takes, in bytes.
    heap: usize,
}

/// What an entry takes besides its texts and lists: two allocations, and that its text is remembered.
const OWN: usize = size_of::<SharedEntry>()
    + size_of::<ImportedCluster>()
    + 4 * ALLOCATION
    + 2 * size_of::<usize>();

/// The status of an import as it is held here.
pub type ImportStatus<E = Entry> = InferencePoolImportStatus<E>;

// === impl Entry ===

impl Entry {
    /// Computes the digest and the size in memory once; `cluster` must not change afterwards.
    pub fn new(cluster: ImportedCluster) -> Self {
        let digest = digest_entry(&cluster);
        let mut exact = Xxh3Default::new();
        digest.hash(&mut exact);
        times_of_entry(&cluster, &mut exact);
        Self(Arc::new(SharedEntry {
            digest: Some(digest),
            exact: exact.finish(),
            heap: cluster.heap() + OWN,
            cluster: Box::new(cluster),
        }))
    }

    /// None: only a full comparison tells.
    pub fn digest(&self) -> Option<u64> {
        self.0.digest
    }

    pub(super) fn exact(&self) -> u64 {
        self.0.exact
    }

    /// Whether both say the same, but for times; false where only a full comparison tells.
    pub fn same_digest(&self, other: &Self) -> bool {
        self.0.digest.is_some() && self.0.digest == other.0.digest
    }

    /// Whether both are one.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where it is: another's is another while this one lives.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// What is shared.
    pub fn shared(&self) -> &Arc<SharedEntry> {
        &self.0
    }
}

impl From<Arc<SharedEntry>> for Entry {
    fn from(shared: Arc<SharedEntry>) -> Self {
        Self(shared)
    }
}

impl Deref for Entry {
    type Target = ImportedCluster;

    fn deref(&self) -> &ImportedCluster {
        &self.0.cluster
    }
}

/// What changes afterwards, as tests do, is not known by its digest any more, and counts for what it did.
#[cfg(any(test, feature = "fixtures"))]
impl std::ops::DerefMut for Entry {
    fn deref_mut(&mut self) -> &mut ImportedCluster {
        let shared = Arc::make_mut(&mut self.0);
        shared.digest = None;
        &mut shared.cluster
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.ptr_eq(other) || **self == **other
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl Heap for Entry {
    /// Whole, though most entries are shared.
    fn heap(&self) -> usize {
        self.0.heap
    }
}
