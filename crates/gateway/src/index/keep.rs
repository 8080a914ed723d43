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
) -> bool {
    keep_some(map, update, odd, meta, |object| Some(project(object)))
}

/// Applies the update to the map; whether that changed it. What projects to none is not kept; of a
/// complete list `odd` did not decode and stays as it was.
pub(super) fn keep_some<K, V: PartialEq>(
    map: &mut BTreeMap<Key, V>,
    update: Update<K>,
    odd: &BTreeSet<Key>,
    meta: impl Fn(&K) -> &ObjectMeta,
    project: impl Fn(&K) -> Option<V>,
) -> bool {
    match update {
        Update::Reset(list) => {
            let found = list.iter().filter_map(|object| {
                let value = project(object)?;
                Some((project::key(meta(object)), value))
            });
            let now: BTreeMap<Key, V> = found.collect();
            let before = map.len();
            map.retain(|key, _| now.contains_key(key) || odd.contains(key));
            let mut changed = map.len() != before;
            for (key, value) in now {
                if map.get(&key) != Some(&value) {
                    map.insert(key, value);
                    changed = true;
                }
            }
            changed
        }
        Update::Apply(object) => {
            let key = project::key(meta(&object));
            match project(&object) {
                Some(value) if map.get(&key) == Some(&value) => false,
                Some(value) => {
                    map.insert(key, value);
                    true
                }
                None => map.remove(&key).is_some(),
            }
        }
        Update::Delete(object) => map.remove(&project::key(meta(&object))).is_some(),
        Update::OddDelete(odd) => map.remove(&Key::new(&odd.namespace, &odd.name)).is_some(),
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
            false
        }
        Update::Failed(_) => false,
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
