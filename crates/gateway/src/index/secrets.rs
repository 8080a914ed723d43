//! Secrets that listeners and imports name, each with a watch of its own, and what policies for TLS asked for before.

use std::collections::BTreeSet;

use watch::Update;

use crate::model::backend_tls::NamedMaps;
use crate::world::{
    BadCredential, BadSecret, Key, ListedCredential, ListedSecret, RawTlsPolicy,
    backend_tls_policy, project,
};

use super::{Changes, Index};

/// So often in a row a Secret may not be read until that is taken for the role's word. An API server that has just started
/// may deny what it allows a moment later.
pub(super) const DENIALS: u32 = 4;

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
                    Some(found) => found.content,
                    None if !odd.contains(key) => Err(BadSecret::NotFound),
                    None if unknown => Err(BadSecret::Undecodable),
                    None => return Changes::default(),
                }
            }
            Update::Apply(one) if one.key() == *key => one.content,
            Update::Delete(one) if one.key() == *key => Err(BadSecret::NotFound),
            Update::OddDelete(_) => Err(BadSecret::NotFound),
            // What is known stays: that it cannot be read says nothing of it.
            Update::Failed(failure) if unknown && failure.is_denied() => {
                let denials = self.denials.entry(key.clone()).or_default();
                *denials += 1;
                if *denials < DENIALS {
                    return Changes::default();
                }
                Err(BadSecret::Denied)
            }
            Update::Failed(failure) if unknown && failure.is_bad_request() => {
                Err(BadSecret::NotFound)
            }
            Update::Apply(_) | Update::Delete(_) | Update::Odd(_) | Update::Failed(_) => {
                return Changes::default();
            }
        };
        self.denials.remove(key);
        let before = self.world.certificates.insert(key.clone(), now.clone());
        Changes::world(before != Some(now))
    }

    /// Only a scrape waits for it: what is denied for a moment is read a moment later.
    pub(super) fn credential(
        &mut self,
        key: &Key,
        update: Update<ListedCredential>,
        odd: &BTreeSet<Key>,
    ) -> Changes {
        let unknown = !self.world.credentials.contains_key(key);
        let now = match update {
            Update::Reset(_) if odd.contains(key) && !unknown => return Changes::default(),
            Update::Reset(_) if odd.contains(key) => Err(BadCredential::Undecodable),
            Update::Reset(list) => {
                let found = list.into_iter().find(|one| one.key() == *key);
                found.map_or(Err(BadCredential::NotFound), |one| one.content)
            }
            Update::Apply(one) if one.key() == *key => one.content,
            Update::Delete(one) if one.key() == *key => Err(BadCredential::NotFound),
            Update::OddDelete(_) => Err(BadCredential::NotFound),
            Update::Failed(failure) if unknown && failure.is_denied() => Err(BadCredential::Denied),
            Update::Failed(failure) if unknown && failure.is_bad_request() => {
                Err(BadCredential::NotFound)
            }
            Update::Apply(_) | Update::Delete(_) | Update::Odd(_) | Update::Failed(_) => {
                return Changes::default();
            }
        };
        let before = self.world.credentials.insert(key.clone(), now.clone());
        Changes {
            observed: before != Some(now),
            ..Changes::default()
        }
    }

    /// Keeps what a policy asks for that is about to change: where its next authorities are not listed yet, it holds until
    /// they are.
    pub(super) fn note_validation(&mut self, update: &Update<RawTlsPolicy>) {
        let objects = match update {
            Update::Apply(object) => std::slice::from_ref(object),
            Update::Reset(list) => &list[..],
            Update::Delete(_) | Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => return,
        };
        let world = &self.world;
        let edited = objects.iter().filter_map(|object| {
            let key = project::key(&object.metadata);
            let now = world.tls_policies.get(&key)?.validation.as_ref().ok()?;
            let next = backend_tls_policy(object).validation;
            (next.as_ref() != Ok(now)).then(|| (key, now.clone()))
        });
        let mut edited: Vec<_> = edited.collect();
        if edited.is_empty() {
            return;
        }
        let maps = NamedMaps::of(world);
        edited.retain(|(key, _)| world.awaited_authorities(key, &maps.now).is_none());
        self.world.tls_before.extend(edited);
    }

    /// Drops what policies asked for before, of those whose authorities are all listed.
    pub(super) fn forget_validations(&mut self) {
        if self.world.tls_before.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut self.world.tls_before);
        let maps = NamedMaps::of(&self.world);
        before.retain(|key, _| self.world.awaited_authorities(key, &maps.now).is_some());
        self.world.tls_before = before;
    }
}
