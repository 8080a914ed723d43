//! An entry of an import, shared: the lists of nearly all importers have the same entries.

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

/// The shared part of an [`Entry`].
#[derive(Clone, Debug)]
pub struct SharedEntry {
    /// Boxed, so that it is freed with the last entry even if weak references remain.
    cluster: Box<ImportedCluster>,
    /// See [`digest_entry`]. None: not known.
    digest: Option<u64>,
    /// Digest of the whole entry, with times.
    exact: u64,
    /// Size in bytes.
    heap: usize,
}

/// Size of an entry besides its texts and lists: two allocations, and its place in the interner.
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

    /// None: only a full comparison can decide.
    pub fn digest(&self) -> Option<u64> {
        self.0.digest
    }

    pub(super) fn exact(&self) -> u64 {
        self.0.exact
    }

    /// Whether both are equal except for times; false also where only a full comparison can decide.
    pub fn same_digest(&self, other: &Self) -> bool {
        self.0.digest.is_some() && self.0.digest == other.0.digest
    }

    /// Whether both share one entry.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its address, unique while it lives.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The shared part.
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

/// A change, as tests make it, clears the digest and leaves the size as it was.
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
    /// The whole size, though most entries are shared.
    fn heap(&self) -> usize {
        self.0.heap
    }
}
