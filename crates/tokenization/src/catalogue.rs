//! The models that are served, by the file that names them.

mod file;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use file::{CatalogueError, ModelEntry};

use crate::{
    files::LoadError,
    model::{Model, ModelSource},
};

/// The models in force. It is replaced as a whole; models that have not changed are carried over.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    by_name: BTreeMap<String, Served>,
    models: Vec<Entry>,
}

/// A model under one of its names.
#[derive(Clone, Debug)]
pub struct Served {
    /// How it is called in metrics: by its name in the file.
    pub name: Arc<str>,
    /// The adapter that this name stands for.
    pub lora_name: Option<Arc<str>>,
    /// Absent: it could not be loaded.
    pub model: Option<Arc<Model>>,
}

/// One entry of the file, and what became of it.
#[derive(Clone, Debug)]
struct Entry {
    entry: ModelEntry,
    loaded: Result<Arc<Model>, String>,
}

// === impl Catalogue ===

impl Catalogue {
    /// Reads the text of a models file, and loads its models one after the other; paths are relative to `base`. Of
    /// `former`, models whose entry and files have not changed are kept as they are, with all that was learned of them.
    /// It takes as long as the files are large.
    ///
    /// `next_number` is one that no model before it has had.
    ///
    /// # Errors
    /// [`CatalogueError`] when the file cannot be used. A model that cannot be loaded is no error: it is
    /// [`failed`](Self::failed).
    pub fn load(
        text: &str,
        base: &Path,
        former: &Self,
        mut next_number: impl FnMut() -> u64,
    ) -> Result<Self, CatalogueError> {
        let mut catalogue = Self::default();
        for entry in file::parse(text)? {
            let loaded = former.load_one(&entry, base, &mut next_number);
            catalogue.add(entry, loaded);
        }
        Ok(catalogue)
    }

    /// Whether the text of a models file can be used; nothing is loaded.
    ///
    /// # Errors
    /// [`CatalogueError`] when it cannot.
    pub fn check(text: &str) -> Result<(), CatalogueError> {
        file::parse(text).map(|_| ())
    }

    /// By the name of a request.
    pub fn get(&self, name: &str) -> Option<&Served> {
        self.by_name.get(name)
    }

    /// Names of models that could not be loaded, and why.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.models.iter().filter_map(|model| {
            let why = model.loaded.as_ref().err()?;
            Some((model.entry.name.as_str(), why.as_str()))
        })
    }

    /// Names of models that are loaded, and these.
    pub fn loaded(&self) -> impl Iterator<Item = (&str, &Arc<Model>)> {
        self.models.iter().filter_map(|model| {
            let loaded = model.loaded.as_ref().ok()?;
            Some((model.entry.name.as_str(), loaded))
        })
    }

    fn load_one(
        &self,
        entry: &ModelEntry,
        base: &Path,
        next_number: &mut impl FnMut() -> u64,
    ) -> Result<Arc<Model>, LoadError> {
        let directory = base.join(&entry.path);
        let chat_template: Option<PathBuf> =
            entry.chat_template.as_ref().map(|path| base.join(path));
        let source = ModelSource {
            directory: &directory,
            chat_template: chat_template.as_deref(),
            content_format: entry.content_format,
            max_model_len: entry.max_model_len,
            transformers: entry.transformers,
        };
        let former = self
            .models
            .iter()
            .filter(|former| former.entry.loads_as(entry))
            .find_map(|former| former.loaded.as_ref().ok());
        Model::load_unless_same(&source, former, next_number)
    }

    fn add(&mut self, entry: ModelEntry, loaded: Result<Arc<Model>, LoadError>) {
        let name: Arc<str> = entry.name.as_str().into();
        let served = |lora_name: Option<&String>| Served {
            name: name.clone(),
            lora_name: lora_name.map(|name| name.as_str().into()),
            model: loaded.as_ref().ok().cloned(),
        };
        for alias in std::iter::once(&entry.name).chain(&entry.aliases) {
            self.by_name.insert(alias.clone(), served(None));
        }
        for adapter in &entry.lora_adapters {
            self.by_name.insert(adapter.clone(), served(Some(adapter)));
        }
        let loaded = loaded.map_err(|error| error.to_string());
        self.models.push(Entry { entry, loaded });
    }
}

#[cfg(test)]
mod tests;
