//! One update applied to a map of what is known.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tracing::warn;
use watch::Update;

use crate::world::{Key, project};

/// Keeps the objects that do not decode; those of a list are handed out with it.
pub(super) fn note_odd<K>(odd: &mut BTreeSet<Key>, update: &Update<K>) -> BTreeSet<Key> {
    match update {
        Update::Reset(_) => return std::mem::take(odd),
        Update::Failed(_) => odd.clear(), // a list that broke off proves nothing
        Update::Odd(one) => {
            odd.insert(Key::new(&one.namespace, &one.name));
        }
        Update::OddDelete(one) => {
            odd.remove(&Key::new(&one.namespace, &one.name));
        }
        Update::Apply(_) | Update::Delete(_) => {}
    }
    BTreeSet::new()
}

pub(super) fn keep<K, V: PartialEq>(
    map: &mut BTreeMap<Key, V>,
    update: Update<K>,
    odd: &BTreeSet<Key>,
    meta: impl Fn(&K) -> &ObjectMeta,
    project: impl Fn(&K) -> V,
) -> BTreeSet<Key> {
    keep_some(map, update, odd, meta, |object| Some(project(object)))
}

/// Applies the update to the map, and returns what that changed. What projects to none is not kept; of a
/// complete list `odd` did not decode and stays as it was.
pub(super) fn keep_some<K, V: PartialEq>(
    map: &mut BTreeMap<Key, V>,
    update: Update<K>,
    odd: &BTreeSet<Key>,
    meta: impl Fn(&K) -> &ObjectMeta,
    project: impl Fn(&K) -> Option<V>,
) -> BTreeSet<Key> {
    let removed = |map: &mut BTreeMap<Key, V>, key: Key| {
        let removed = map.remove(&key).map(|_| key);
        removed.into_iter().collect()
    };
    match update {
        Update::Reset(list) => {
            let found = list.iter().filter_map(|object| {
                let value = project(object)?;
                Some((project::key(meta(object)), value))
            });
            let now: BTreeMap<Key, V> = found.collect();
            let is_gone = |key: &&Key| !now.contains_key(*key) && !odd.contains(*key);
            let gone: BTreeSet<Key> = map.keys().filter(is_gone).cloned().collect();
            map.retain(|key, _| !gone.contains(key));
            let mut changed = gone;
            for (key, value) in now {
                if map.get(&key) != Some(&value) {
                    map.insert(key.clone(), value);
                    changed.insert(key);
                }
            }
            changed
        }
        Update::Apply(object) => {
            let key = project::key(meta(&object));
            match project(&object) {
                Some(value) if map.get(&key) == Some(&value) => BTreeSet::new(),
                Some(value) => {
                    map.insert(key.clone(), value);
                    BTreeSet::from([key])
                }
                None => removed(map, key),
            }
        }
        Update::Delete(object) => removed(map, project::key(meta(&object))),
        Update::OddDelete(odd) => removed(map, Key::new(&odd.namespace, &odd.name)),
        Update::Odd(odd) => {
            let watch::OddObject {
                namespace,
                name,
                error,
            } = odd;
            warn!(
                namespace,
                name, error, "object does not decode, left as it was"
            );
            BTreeSet::new()
        }
        Update::Failed(_) => BTreeSet::new(),
    }
}

/// A complete list came, or there is no such kind to list.
pub(super) fn is_listed<K>(update: &Update<K>) -> bool {
    match update {
        Update::Reset(_) => true,
        Update::Failed(failure) => failure.is_kind_missing(),
        Update::Apply(_) | Update::Delete(_) | Update::Odd(_) | Update::OddDelete(_) => false,
    }
}
