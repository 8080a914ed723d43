//! What is known of one member. Silence of the member removes nothing here.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crd::RoutingMode;

use super::{
    counted::Counted,
    denied::Denied,
    entry::Entry,
    facts::{LiveImport, NamespaceFacts, PoolFacts, ServiceFacts, SliceFacts},
    flavour::ImportCrd,
    grant::MayExport,
    heap::Heap,
    interest::Scope,
    link::Contact,
    origin::Origin,
    parents::Parents,
    pools::Pools,
    undo::UndoDetector,
    update::{AnyKind, Change},
};
use crate::name::Key;
use moment::Moment;

/// One member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Whether it can be reached.
    pub contact: Contact,
    /// Out of the inventory, but not removed yet.
    pub leaving: Option<Leaving>,
    /// Silent for so long that what it exports is withdrawn, until it is back.
    pub withdrawn: bool,
    /// The same, but held by the guard, and reported.
    pub withheld: bool,
    /// Why its newest credentials are not used, while older ones still are.
    pub unusable_credentials: Option<String>,
    /// The kinds that we may not read.
    pub denied: Denied,
    /// Uid of its `kube-system` namespace.
    pub uid: Option<String>,
    /// Uid of the cluster that it is, while that is a member under another name.
    pub(super) stands_by: Option<String>,
    /// What the inventory has about it.
    pub origin: Arc<Origin>,
    /// Its pools, and what the absence of one means.
    pub pools: Pools,
    /// Its Services; if there are too many, only those that pools name.
    pub services: Store<Key, ServiceFacts>,
    /// EndpointSlices within `slices_scope`.
    pub slices: Store<Key, SliceFacts>,
    /// The Services whose EndpointSlices are known.
    pub slices_scope: Scope,
    /// By name; imports are written only into those that exist.
    pub namespaces: Store<Arc<str>, NamespaceFacts>,
    /// All imports in it, other owners' too.
    pub imports: Store<Key, LiveImport>,
    /// Last seen entries of imports that the current CRD shows without them.
    pub remembered: Counted<Key, Remembered>,
    /// Which of them somebody keeps undoing.
    pub undone_imports: UndoDetector,
    /// Gateways and HTTPRoutes, watched only while it exports in ParentMode.
    pub parents: Parents,
    /// Mode of exports that name none.
    pub default_mode: RoutingMode,
    /// The controller's own namespace: its pools are exported only where a list names it.
    pub(super) own_namespace: Arc<str>,
    /// The import CRD; none: not seen yet, or we may not read it.
    pub import_crd: Option<ImportCrd>,
}

/// The last seen entries of an import.
#[derive(Clone, Debug)]
pub struct Remembered {
    /// Of the import.
    pub(super) uid: String,
    pub(super) entries: Vec<Entry>,
}

/// A pool, and the doubt about its existence.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolRecord {
    /// The pool as last seen.
    pub facts: PoolFacts,
    /// None: the pool exists.
    pub doubt: Option<Doubt>,
}

/// The pool vanished without proof of its deletion: it is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// When the absence counts as proof; none: not before the CRD is back.
    pub ends: Option<Moment>,
    /// Decides how the entry is marked meanwhile.
    pub cause: DoubtCause,
}

/// Why an absence proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoubtCause {
    /// The CRD is missing or was replaced: marked `CRDMissing`.
    Crd,
    /// The isolation guard was active.
    Guard,
}

/// A member that is out of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// When the inventory first lacked it.
    pub since: Moment,
    /// When it counts as removed.
    pub until: Moment,
    /// Held by the isolation guard.
    pub held: bool,
}

/// What it means that a pool has not been seen since the start. The first list may be of a CRD that is being deleted, or
/// was just reinstalled. So a pool that the list lacks counts as absent only once the CRD has existed for as long as a
/// reinstalled one is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Nothing: no list yet, or the CRD was missing or going at the last one.
    #[default]
    Unknown,
    /// Nothing before then.
    UnknownUntil(Moment),
    /// It does not exist.
    Absent,
}

/// A member's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// When contact was lost; for a member that was never in contact, when it was added.
    pub since: Moment,
    /// The newest known cause; it may change during the silence.
    pub fault: Fault,
}

/// Why a member is silent; also a condition reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server does not answer, or another cluster does.
    ConnectionLost,
    /// No authority of the credentials has signed the server's certificate.
    CertificateUntrusted,
    /// The server's certificate has expired, or is not valid yet.
    CertificateExpired,
    /// The server's certificate is not of the host that the credentials name.
    CertificateNameMismatch,
    /// The server refuses the credentials (401, 403), or they cannot be used.
    AuthFailed,
}

/// State of the connection to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No connection has been made yet.
    Connecting,
    /// Connected and identified; its first lists have not completed.
    Syncing,
    /// The last probe passed and every kind that it must list was listed.
    Live,
    /// One probe failed.
    Suspect,
    /// Contact was lost; it is tried again without end.
    Lost,
    /// Its credentials are not used, or it is not the cluster it should be.
    Refused(Refusal),
    /// Gone from the inventory; its imports are being deleted.
    Removing,
}

/// Why a member is not used; also the reason of its condition `Active`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The kubeconfig, or what a credential plugin issued, cannot be used.
    BadCredentials,
    /// The kubeconfig asks for exec, files, insecure TLS or plain HTTP.
    InsecureCredentials,
    /// None of the configured credential providers serves it.
    NoAccessProvider,
    /// Its cluster is a member under another name.
    DuplicateCluster,
    /// Its name had another cluster before, and the operator has not accepted this one.
    IdentityChanged,
    /// It belongs to another ClusterSet.
    ClusterSetMismatch,
}

/// The contact to an exporter, as its entries show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In contact, or silent for too short a time to be reported.
    Reachable,
    /// Silent: its exports are kept as last known.
    Lost(Fault),
    /// Silent for so long that its readiness is unknown.
    Stale(Fault),
}

/// Whether the objects of one kind are known completely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coverage {
    /// No complete list yet: absence means nothing.
    #[default]
    Never,
    /// A list completed, and a watch keeps it current.
    Listed,
    /// Never listed: the server answers that it does not serve the kind.
    NotServed,
    /// There is more than is kept: what is kept may be stale, and absence means nothing until a list fits.
    Partial,
}

/// Objects of one kind.
#[derive(Clone, Debug)]
pub struct Store<K, V> {
    /// The objects that are kept; not all, if `capped`.
    pub items: Counted<K, V>,
    /// Whether an object that is not in `items` is absent.
    pub coverage: Coverage,
    /// There are more objects than may be kept; those that are needed are kept.
    pub capped: bool,
}

/// Lost contact is written only after this time: two failed probes may be a short disturbance (spec 4.4).
pub const FLIP_DELAY: Duration = Duration::from_secs(2);

// === impl Member ===

impl Member {
    /// A member before its first contact; its silence begins at `now`.
    pub fn new(now: Moment) -> Self {
        Self {
            contact: Contact::new(now),
            unusable_credentials: None,
            denied: Denied::default(),
            leaving: None,
            withdrawn: false,
            withheld: false,
            uid: None,
            stands_by: None,
            origin: Arc::default(),
            pools: Pools::default(),
            services: Store::default(),
            slices: Store::default(),
            slices_scope: Scope::All,
            namespaces: Store::default(),
            imports: Store::default(),
            remembered: Counted::default(),
            undone_imports: UndoDetector::of_imports(),
            parents: Parents::default(),
            default_mode: RoutingMode::EndpointMode,
            own_namespace: Arc::from(""),
            import_crd: None,
        }
    }

    /// Whether the inventory allows the member to export the pools of this namespace.
    pub fn may_export(&self, namespace: &str) -> MayExport {
        let stated = &self.origin.export_namespaces;
        stated.admits(namespace, &self.own_namespace)
    }

    /// Whether all that an entry is derived from has been listed once; before that, entries are carried over.
    pub fn exports_known(&self) -> bool {
        let all = [
            self.pools.coverage,
            self.services.coverage,
            self.slices.coverage,
        ];
        let known = |one| matches!(one, &Coverage::Listed | &Coverage::Partial);
        all.iter().all(known)
    }

    /// Whether the Service that a pool names, and its endpoints, are known if they exist.
    pub fn parts_known(&self) -> bool {
        self.services.coverage != Coverage::Partial && self.slices.coverage != Coverage::Partial
    }

    /// Whether its namespaces and imports are known, so that the plan can be compared with them.
    pub fn imports_known(&self) -> bool {
        self.namespaces.coverage == Coverage::Listed && self.all_imports_known()
    }

    /// Whether an unknown import does not exist.
    pub fn all_imports_known(&self) -> bool {
        self.imports.coverage == Coverage::Listed
    }

    /// The last seen entries of an import that is now shown, or was written, without them through another CRD.
    pub fn remembered_entries(&self, key: &Key) -> &[Entry] {
        let remembered = self.remembered.get(key);
        remembered.map_or(&[], |remembered| &remembered.entries)
    }

    /// Whether writing need not wait for it any more after a start.
    pub fn settled(&self) -> bool {
        if self.leaving.is_some_and(|leaving| leaving.held) {
            return true;
        }
        match self.contact.link {
            Link::Live | Link::Suspect | Link::Refused(_) | Link::Removing => true,
            Link::Connecting | Link::Syncing | Link::Lost => self.contact.met,
        }
    }

    /// The EndpointSlices of a Service.
    pub fn slices_of<'a>(&'a self, service: &'a Key) -> impl Iterator<Item = &'a SliceFacts> + 'a {
        self.slices
            .items
            .range(Key::all_of(&service.namespace))
            .filter(|(key, _)| key.namespace == service.namespace)
            .map(|(_, slice)| slice)
            .filter(|slice| slice.service == service.name)
    }
}

// === impl Fault ===

impl Fault {
    /// All of them, for references.
    pub const ALL: [Self; 5] = [
        Self::ConnectionLost,
        Self::CertificateUntrusted,
        Self::CertificateExpired,
        Self::CertificateNameMismatch,
        Self::AuthFailed,
    ];

    /// The reason of `Reachable=False`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ConnectionLost => "ConnectionLost",
            Self::CertificateUntrusted => "CertificateUntrusted",
            Self::CertificateExpired => "CertificateExpired",
            Self::CertificateNameMismatch => "CertificateNameMismatch",
            Self::AuthFailed => "AuthFailed",
        }
    }

    /// What it means for an entry of the member, for a person.
    pub fn message(self) -> &'static str {
        match self {
            Self::ConnectionLost | Self::AuthFailed => {
                "no contact with the exporting cluster: this is the last known state"
            }
            Self::CertificateUntrusted => {
                "the kubeconfig of the exporting cluster does not have the authority of its API server's certificate: this is the last known state"
            }
            Self::CertificateExpired => {
                "the certificate of the exporting cluster's API server has expired or is not valid yet: this is the last known state"
            }
            Self::CertificateNameMismatch => {
                "the certificate of the exporting cluster's API server is not of the host in its kubeconfig: this is the last known state"
            }
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// The reason of `Active=False`, also an event reason and a metric label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::BadCredentials => "BadCredentials",
            Self::InsecureCredentials => "InsecureCredentials",
            Self::NoAccessProvider => "NoAccessProvider",
            Self::DuplicateCluster => "DuplicateCluster",
            Self::IdentityChanged => "IdentityChanged",
            Self::ClusterSetMismatch => "ClusterSetMismatch",
        }
    }
}

// === impl Link ===

impl Link {
    /// The state without its refusal, for logs and debug pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "Connecting",
            Self::Syncing => "Syncing",
            Self::Live => "Live",
            Self::Suspect => "Suspect",
            Self::Lost => "Lost",
            Self::Refused(_) => "Refused",
            Self::Removing => "Removing",
        }
    }
}

// === impl Store ===

impl<K: Ord + Clone, V: PartialEq + Heap> Store<K, V> {
    /// A complete list: returns the keys of what appeared, changed or vanished.
    pub fn reset(&mut self, items: impl Iterator<Item = (K, V)>) -> BTreeSet<K> {
        self.coverage = Coverage::Listed;
        let old = self.items.take();
        for (key, item) in items {
            self.items.insert(key, item);
        }
        let changed = self
            .items
            .iter()
            .filter(|(key, item)| old.get(key) != Some(item))
            .map(|(key, _)| key.clone());
        let gone = old.keys().filter(|key| !self.items.contains_key(key));
        changed.chain(gone.cloned()).collect()
    }

    /// Returns whether the item changed.
    pub fn apply(&mut self, key: K, item: V) -> bool {
        let changed = self.items.get(&key) != Some(&item);
        if changed {
            self.items.insert(key, item);
        }
        changed
    }

    /// Cuts a change to `max` objects. Of a longer list, needed objects are kept first, then known ones. A single new
    /// object that is not needed is dropped if `max` are kept.
    pub(super) fn cap(
        &mut self,
        kind: AnyKind,
        max: usize,
        change: Change<V>,
        key: impl Fn(&V) -> &K,
        needed: impl Fn(&V) -> bool,
    ) -> Option<Change<V>> {
        let dropped = match &change {
            Change::Listed(items) => items.len() > max,
            Change::Applied(item) => {
                self.items.len() >= max && !self.items.contains_key(key(item)) && !needed(item)
            }
            Change::Deleted(_) => return Some(change),
        };
        if dropped && !self.capped {
            tracing::warn!(
                kind = kind.plural(),
                max,
                "a member has too many objects of a kind: some are not kept"
            );
        }
        match change {
            Change::Listed(mut items) => {
                self.capped = dropped;
                if dropped {
                    let is_new = |item: &V| !self.items.contains_key(key(item));
                    items.sort_by_key(|item| (!needed(item), is_new(item)));
                    items.truncate(max);
                }
                Some(Change::Listed(items))
            }
            change => {
                self.capped |= dropped;
                (!dropped).then_some(change)
            }
        }
    }
}

impl<K, V> Default for Store<K, V> {
    fn default() -> Self {
        Self {
            items: Counted::default(),
            coverage: Coverage::Never,
            capped: false,
        }
    }
}
