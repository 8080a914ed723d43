//! The models file: what it may say, and what is wrong with it.

use std::{collections::BTreeMap, path::PathBuf};

use foreign_text::{Limits, read};
use serde::Deserialize;

use crate::{model::ContentFormatOption, rebuilt::Transformers};

/// One model of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// As requests name it, once rewritten.
    pub name: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// The directory of its files.
    pub path: PathBuf,
    /// A file in place of the directory's own chat template.
    pub chat_template: Option<PathBuf>,
    /// How its template takes content.
    pub content_format: ContentFormatOption,
    /// The most ids of a prompt; absent: no limit.
    pub max_model_len: Option<usize>,
    /// The major version of the transformers library in the engine.
    pub transformers: Transformers,
    /// Adapters of the same tokenizer: requests name them in place of the model.
    pub lora_adapters: Vec<String>,
}

/// Why a models file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// It is no YAML of the expected fields; the text has path and line.
    #[error("the models file cannot be read: {0}; expected, for example: {EXAMPLE}")]
    Syntax(String),
    /// A field has a value that cannot be.
    #[error("models[{index}].{field}: {problem}; expected, for example: {EXAMPLE}")]
    Value {
        /// Of the model, from 0.
        index: usize,
        /// As in the file.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no model.
    #[error("models is empty: expected, for example: {EXAMPLE}")]
    Empty,
}

/// The limits of the file: as much as a ConfigMap can hold.
const LIMITS: Limits = Limits::of_text(1 << 20);

const EXAMPLE: &str = "models: [{name: llama-instruct, path: llama-instruct}]";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    models: Vec<RawModel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawModel {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    path: PathBuf,
    #[serde(default)]
    chat_template: PathBuf,
    #[serde(default)]
    content_format: ContentFormatOption,
    max_model_len: Option<usize>,
    #[serde(default)]
    transformers: Transformers,
    #[serde(default)]
    lora_adapters: Vec<String>,
}

/// Reads the file.
pub(super) fn parse(text: &str) -> Result<Vec<ModelEntry>, CatalogueError> {
    let file: RawFile =
        read(text, LIMITS).map_err(|error| CatalogueError::Syntax(error.to_string()))?;
    if file.models.is_empty() {
        return Err(CatalogueError::Empty);
    }
    let mut names = BTreeMap::new();
    let mut entries = Vec::with_capacity(file.models.len());
    for (index, model) in file.models.into_iter().enumerate() {
        let entry = ModelEntry::from(model);
        entry.check(index)?;
        let fields = [
            ("aliases", &entry.aliases),
            ("loraAdapters", &entry.lora_adapters),
        ];
        let others = fields
            .into_iter()
            .flat_map(|(field, names)| names.iter().map(move |name| (field, name)));
        for (field, name) in std::iter::once(("name", &entry.name)).chain(others) {
            if let Some(first) = names.insert(name.clone(), index) {
                let problem = format!("{name:?} is a name of models[{first}] already");
                return Err(CatalogueError::Value {
                    index,
                    field,
                    problem,
                });
            }
        }
        entries.push(entry);
    }
    Ok(entries)
}

// === impl ModelEntry ===

impl ModelEntry {
    /// Whether a model that was loaded by this entry is the one of another, as far as its files are the same.
    pub(super) fn loads_as(&self, other: &Self) -> bool {
        self.path == other.path
            && self.chat_template == other.chat_template
            && self.content_format == other.content_format
            && self.max_model_len == other.max_model_len
            && self.transformers == other.transformers
    }

    fn check(&self, index: usize) -> Result<(), CatalogueError> {
        let refuse = |field, problem: &str| {
            let problem = problem.to_owned();
            Err(CatalogueError::Value {
                index,
                field,
                problem,
            })
        };
        if self.name.is_empty() {
            return refuse("name", "it is empty");
        }
        if self.aliases.iter().any(String::is_empty) {
            return refuse("aliases", "one is empty");
        }
        if self.lora_adapters.iter().any(String::is_empty) {
            return refuse("loraAdapters", "one is empty");
        }
        if self.path.as_os_str().is_empty() {
            return refuse("path", "it is empty");
        }
        if self.max_model_len == Some(0) {
            return refuse("maxModelLen", "it is 0");
        }
        Ok(())
    }
}

impl From<RawModel> for ModelEntry {
    fn from(raw: RawModel) -> Self {
        let RawModel {
            name,
            aliases,
            path,
            chat_template,
            content_format,
            max_model_len,
            transformers,
            lora_adapters,
        } = raw;
        Self {
            name,
            aliases,
            path,
            chat_template: Some(chat_template).filter(|path| !path.as_os_str().is_empty()),
            content_format,
            max_model_len,
            transformers,
            lora_adapters,
        }
    }
}

// === impl CatalogueError ===

impl CatalogueError {
    /// Stable, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "syntax",
            Self::Value { .. } => "value",
            Self::Empty => "empty",
        }
    }
}
