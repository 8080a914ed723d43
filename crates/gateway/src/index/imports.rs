//! Imports: those that are back with their CRD and have no entries yet, and the former modes of their clusters.

use std::collections::{BTreeMap, BTreeSet};

use moment::Moment;
use watch::Update;

use crate::world::{Key, World, project};

use super::keep::keep;
use super::{IMPORT, Index};

impl Index {
    /// Keeps imports, with the former modes of their clusters. Returns those that changed.
    pub(super) fn imports(
        &mut self,
        update: Update<crd::InferencePoolImport>,
        odd: &BTreeSet<Key>,
        now: Moment,
    ) -> BTreeSet<Key> {
        let World {
            imports, formers, ..
        } = &mut self.world;
        let before = match &update {
            Update::Apply(import) => {
                let key = project::key(&import.metadata);
                let known = imports.get(&key).cloned();
                known.map(|import| (key, import)).into_iter().collect()
            }
            Update::Reset(_) => imports.clone(),
            // none of these leaves another entry
            Update::Delete(_) | Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => {
                BTreeMap::new()
            }
        };
        let changed = keep(imports, update, odd, |o| &o.metadata, project::import);
        for key in &changed {
            formers.follow(key, before.get(key), imports.get(key), now);
        }
        changed
    }

    /// An import is created first and gets its entries after that: one that returns with its CRD replaces what is kept
    /// only once it has them.
    pub(super) fn without_unwritten(
        &mut self,
        update: Update<crd::InferencePoolImport>,
    ) -> Option<Update<crd::InferencePoolImport>> {
        let vanished = &self.vanished;
        let is_unwritten = |import: &crd::InferencePoolImport| {
            let key = project::key(&import.metadata);
            import.clusters().is_empty() && vanished.is_kept(IMPORT, &key)
        };
        self.unwritten
            .retain(|key, _| vanished.is_kept(IMPORT, key));
        match update {
            Update::Reset(list) => {
                let (unwritten, list): (Vec<_>, Vec<_>) = list.into_iter().partition(is_unwritten);
                let named = unwritten
                    .into_iter()
                    .map(|import| (project::key(&import.metadata), import));
                self.unwritten = named.collect();
                Some(Update::Reset(list))
            }
            Update::Apply(import) if is_unwritten(&import) => {
                let key = project::key(&import.metadata);
                self.unwritten.insert(key, import);
                None
            }
            update => Some(update),
        }
    }
}
