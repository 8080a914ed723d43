//! The limit on the memory for one member. Pure.
//!
//! Beyond it, the kind that would grow counts as not listed ([`Coverage::Partial`]): its known objects are kept, no absence
//! counts, and it is listed again, at most once a minute, until it fits.

use std::collections::BTreeSet;

use super::{
    counted::Counted,
    heap::Heap,
    member::{Coverage, Member, Store},
    update::{AnyKind, Change, Kind, ParentKind, Update},
};
use crate::name::Key;

/// Approximate limit for one member, in bytes: 2000 pools, 20 000 Services and 20 000 namespaces of 600 B each, and
/// 5000 imports with 3 entries of 2.5 KiB. Entries are counted in full, though the interner shares most of them between
/// members.
///
/// The worst case: a hostile member costs this three times: for what is kept, for a complete list that is not applied yet,
/// and for its lists being received (`member::under_way`); and 32 MiB of pages being read (`client::guard`). In addition
/// there are names that are limited by number, of pools that cannot be read and of those known to be gone (24 000 of
/// each, 10 MiB), and up to 256 MiB for each thread that decodes a page of JSON. So under the 2 GiB of
/// `config/controller.yaml`, with 2 threads and the 376 MiB that 1000 members take (docs/figures.md), 4 hostile members
/// fit: 376 + 2 * 256 + 4 * (3 * 64 + 32 + 10) = 1824 MiB.
pub const MEMBER_MEMORY: usize = 64 * 1024 * 1024;

// === impl Member ===

impl Member {
    /// Approximate size of what is kept of it, in bytes.
    pub fn memory(&self) -> usize {
        self.pools.bytes()
            + self.pools.waiting.bytes()
            + self.services.items.bytes()
            + self.slices.items.bytes()
            + self.namespaces.items.bytes()
            + self.imports.items.bytes()
            + self.remembered.bytes()
            + self.parents.gateways.items.bytes()
            + self.parents.routes.items.bytes()
    }

    /// The kind that would exceed the limit with the update. `guarded`: absence from a list does not count.
    pub(super) fn exceeds(&self, update: &Update, guarded: bool) -> Option<AnyKind> {
        let (kind, new, old) = match update {
            Update::PoolsListed { pools, odd, crd } => {
                let new = Counted::<Key, _>::bytes_for(pools);
                if self.memory() + new <= MEMBER_MEMORY {
                    return None;
                }
                let listed = pools.iter().map(|pool| &pool.key).chain(odd).collect();
                let waiting = pools.iter().filter(|pool| self.must_wait(pool));
                let stays = waiting
                    .map(|pool| self.pools.records.bytes_of(&pool.key))
                    .sum::<usize>()
                    + self.pools.bytes_that_stay(&listed, crd, guarded);
                (Kind::Pools.into(), new, self.pools.bytes() - stays)
            }
            Update::PoolApplied(pool) => {
                let mut old = self.pools.waiting.bytes_of(&pool.key);
                if !self.must_wait(pool) {
                    old += self.pools.records.bytes_of(&pool.key);
                }
                let new = Counted::<Key, _>::bytes_for([pool]);
                (Kind::Pools.into(), new, old)
            }
            Update::Services(change) => {
                let (new, old) = growth(change, &self.services, |it| &it.key);
                (Kind::Services.into(), new, old)
            }
            Update::Slices(change) => {
                let (new, old) = growth(change, &self.slices, |it| &it.key);
                (Kind::Slices.into(), new, old)
            }
            Update::SlicesListed { slices, .. } => {
                let new = Counted::<Key, _>::bytes_for(slices);
                (Kind::Slices.into(), new, self.slices.items.bytes())
            }
            Update::Namespaces(change) => {
                let (new, old) = growth(change, &self.namespaces, |it| &it.name);
                (Kind::Namespaces.into(), new, old)
            }
            Update::Imports(change) => {
                let (new, old) = growth(change, &self.imports, |it| &it.key);
                // remembered entries are dropped once they show again
                let remembered = match change {
                    Change::Listed(_) => self.remembered.bytes(),
                    Change::Applied(item) => self.remembered.bytes_of(&item.key),
                    Change::Deleted(_) => 0,
                };
                (Kind::Imports.into(), new, old + remembered)
            }
            Update::Gateways(change) => {
                let (new, old) = growth(change, &self.parents.gateways, |it| &it.key);
                (ParentKind::Gateways.into(), new, old)
            }
            Update::Routes(change) => {
                let (new, old) = growth(change, &self.parents.routes, |it| &it.key);
                (ParentKind::Routes.into(), new, old)
            }
            _ => return None,
        };
        let exceeds = new > old && self.memory() - old + new > MEMBER_MEMORY;
        exceeds.then_some(kind)
    }

    /// Not all of the kind is kept from now on: it counts as not listed. Returns whether that changed.
    pub(super) fn set_partial(&mut self, kind: AnyKind) -> bool {
        let coverage = self.coverage_mut(kind);
        std::mem::replace(coverage, Coverage::Partial) != Coverage::Partial
    }

    /// The kinds that are not kept completely and must be listed again.
    pub fn partial_kinds(&self) -> BTreeSet<AnyKind> {
        let kinds = AnyKind::all().filter(|kind| self.state_of(*kind).0 == Coverage::Partial);
        kinds.collect()
    }

    /// The kinds that exceed a limit, by bytes or by number; none: all fit.
    pub fn over_limit(&self) -> Option<String> {
        let kinds = AnyKind::all();
        let over = kinds.filter(|kind| {
            let (coverage, capped) = self.state_of(*kind);
            coverage == Coverage::Partial || capped
        });
        let over: Vec<&str> = over.map(AnyKind::plural).collect();
        (!over.is_empty()).then(|| over.join(", "))
    }

    /// The coverage of the kind, and whether it exceeds its limit by number.
    fn state_of(&self, kind: AnyKind) -> (Coverage, bool) {
        fn of<K, V>(store: &Store<K, V>) -> (Coverage, bool) {
            (store.coverage, store.capped)
        }
        match kind {
            AnyKind::Kind(Kind::Pools) => (self.pools.coverage, !self.pools.over_cap.is_empty()),
            AnyKind::Kind(Kind::Services) => of(&self.services),
            AnyKind::Kind(Kind::Slices) => of(&self.slices),
            AnyKind::Kind(Kind::Namespaces) => of(&self.namespaces),
            AnyKind::Kind(Kind::Imports) => of(&self.imports),
            AnyKind::Parent(ParentKind::Gateways) => of(&self.parents.gateways),
            AnyKind::Parent(ParentKind::Routes) => of(&self.parents.routes),
        }
    }

    pub(super) fn coverage_mut(&mut self, kind: AnyKind) -> &mut Coverage {
        match kind {
            AnyKind::Kind(Kind::Pools) => &mut self.pools.coverage,
            AnyKind::Kind(Kind::Services) => &mut self.services.coverage,
            AnyKind::Kind(Kind::Slices) => &mut self.slices.coverage,
            AnyKind::Kind(Kind::Namespaces) => &mut self.namespaces.coverage,
            AnyKind::Kind(Kind::Imports) => &mut self.imports.coverage,
            AnyKind::Parent(ParentKind::Gateways) => &mut self.parents.gateways.coverage,
            AnyKind::Parent(ParentKind::Routes) => &mut self.parents.routes.coverage,
        }
    }
}

/// The size of the objects in a change, and of those that they replace.
fn growth<K: Ord, V: Heap>(
    change: &Change<V>,
    kept: &Store<K, V>,
    key: impl Fn(&V) -> &K,
) -> (usize, usize) {
    let bytes_for = |items: &[V]| Counted::<K, V>::bytes_for(items);
    match change {
        Change::Listed(items) => (bytes_for(items), kept.items.bytes()),
        Change::Applied(item) => {
            let new = bytes_for(std::slice::from_ref(item));
            (new, kept.items.bytes_of(key(item)))
        }
        Change::Deleted(_) => (0, 0),
    }
}
