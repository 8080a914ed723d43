//! Secrets that listeners name, each with a watch of its own.

use std::collections::BTreeSet;

use watch::Update;

use crate::world::{BadSecret, Key, ListedSecret};

use super::{Changes, Index};

impl Index {
    pub(super) fn secret(
        &mut self,
        key: &Key,
        update: Update<ListedSecret>,
        odd: &BTreeSet<Key>,
    ) -> Changes {
        let unknown = !self.world.certificates.contains_key(key);
        let now = match update {
            Update::Reset(list) => {
                let found = list.into_iter().find(|one| one.key() == *key);
                match found {
                    Some(found) => found.certificate,
                    None if !odd.contains(key) => Err(BadSecret::NotFound),
                    None if unknown => Err(BadSecret::Undecodable),
                    None => return Changes::default(),
                }
            }
            Update::Apply(one) if one.key() == *key => one.certificate,
            Update::Delete(one) if one.key() == *key => Err(BadSecret::NotFound),
            Update::OddDelete(_) => Err(BadSecret::NotFound),
            // What is known stays: that it cannot be read says nothing of it.
            Update::Failed(failure) if unknown && failure.is_denied() => Err(BadSecret::Denied),
            Update::Failed(failure) if unknown && failure.is_bad_request() => {
                Err(BadSecret::NotFound)
            }
            Update::Apply(_) | Update::Delete(_) | Update::Odd(_) | Update::Failed(_) => {
                return Changes::default();
            }
        };
        let before = self.world.certificates.insert(key.clone(), now.clone());
        Changes::world(before != Some(now))
    }
}
