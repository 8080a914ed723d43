//! The files of a model's directory.

mod python;

use std::{
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use minijinja::Value;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map as JsonMap, Value as JsonValue};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    json::Map,
    model::ModelSource,
    rebuilt::Transformers,
    template::{Template, TemplateError},
};

pub(crate) use python::ModelConfig;
use python::{read_bounded, without_infinite_numbers};

/// Bytes of one file: the largest tokenizers have 40 MiB.
const MAX_FILE: usize = 256 << 20;

/// Longest reason why a file cannot be used, in bytes.
const MAX_REASON: usize = 2048;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const MODEL_CONFIG: &str = "config.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

/// The lists of special tokens that are no single one.
const TOKEN_LIST: &str = "additional_special_tokens";

/// What is in a model's directory.
#[derive(Debug)]
pub(crate) struct ModelFiles {
    /// Of the tokenizer.
    pub(crate) tokenizer: Vec<u8>,
    /// Absent: the model takes no chat.
    pub(crate) templates: Templates,
    /// Variables of the template.
    pub(crate) special_tokens: Map,
    /// The contents of `tokenizer_config.json`.
    pub(crate) tokenizer_config: JsonMap<String, JsonValue>,
    /// What is used of `config.json`; nothing of it is used for version 4 of the transformers library.
    pub(crate) model_config: ModelConfig,
    /// Names these contents: xxh3-128, as hex.
    pub(crate) tag: String,
}

/// The chat templates of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Templates {
    /// For requests without tools, and with them where there is no other.
    pub(crate) default: Option<Template>,
    /// For requests with tools.
    pub(crate) tool_use: Option<Template>,
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that must be there cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, String),
    /// A file is not what its name says.
    #[error("{0} cannot be used: {1}")]
    Unusable(PathBuf, String),
    /// The loader failed in a way that says nothing of the files.
    #[error("the model cannot be loaded: {0}")]
    Internal(String),
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    chat_template: Option<ConfigTemplate>,
    #[serde(flatten)]
    others: JsonMap<String, JsonValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConfigTemplate {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct TemplateFile {
    chat_template: String,
}

// === impl ModelFiles ===

impl ModelFiles {
    /// Reads the directory of a model.
    pub(crate) fn read(source: &ModelSource<'_>) -> Result<Self, LoadError> {
        let directory = source.directory;
        let mut hash = Xxh3Default::new();
        let tokenizer = required(&directory.join(TOKENIZER), &mut hash)?;
        let config_path = directory.join(TOKENIZER_CONFIG);
        let config: TokenizerConfig = match optional(&config_path, &mut hash)? {
            Some(bytes) => from_json(&config_path, &bytes)?,
            None => TokenizerConfig::default(),
        };
        let special_tokens = special_tokens(&config.others);
        let given = source.chat_template;
        let templates = read_templates(directory, given, config.chat_template, &mut hash)?;
        let model_config = match source.transformers {
            Transformers::V4 => ModelConfig::default(),
            Transformers::V5 => ModelConfig::read(&directory.join(MODEL_CONFIG)),
        };
        model_config.hash(&mut hash);
        Ok(Self {
            tokenizer,
            templates,
            special_tokens,
            tokenizer_config: config.others,
            model_config,
            tag: format!("{:032x}", hash.digest128()),
        })
    }
}

fn from_json<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, LoadError> {
    serde_json::from_slice(&without_infinite_numbers(bytes)).map_err(|error| unusable(path, error))
}

/// Of several places the first that has one.
fn read_templates(
    directory: &Path,
    given: Option<&Path>,
    config: Option<ConfigTemplate>,
    hash: &mut Xxh3Default,
) -> Result<Templates, LoadError> {
    let one = |path: &Path, source: &[u8]| {
        let source = str::from_utf8(source).map_err(|error| unusable(path, error))?;
        compile(path, source).map(Templates::one)
    };
    if let Some(path) = given {
        return one(path, &required(path, hash)?);
    }
    let path = directory.join(TEMPLATE);
    if let Some(source) = optional(&path, hash)? {
        return one(&path, &source);
    }
    let path = directory.join(TOKENIZER_CONFIG);
    match config {
        Some(ConfigTemplate::One(source)) => return compile(&path, &source).map(Templates::one),
        Some(ConfigTemplate::Several(several)) => {
            let named = |name: &str| {
                let found = several.iter().find(|template| template.name == name);
                found
                    .map(|template| compile(&path, &template.template))
                    .transpose()
            };
            return Ok(Templates {
                default: named("default")?,
                tool_use: named("tool_use")?,
            });
        }
        None => {}
    }
    let path = directory.join(TEMPLATE_JSON);
    match optional(&path, hash)? {
        Some(bytes) => {
            let file: TemplateFile = from_json(&path, &bytes)?;
            compile(&path, &file.chat_template).map(Templates::one)
        }
        None => Ok(Templates::default()),
    }
}

fn compile(path: &Path, source: &str) -> Result<Template, LoadError> {
    Template::new(source).map_err(|error: TemplateError| unusable(path, error))
}

/// Each is a string, or an object with `content`.
fn special_tokens(config: &JsonMap<String, JsonValue>) -> Map {
    let mut tokens = Map::new();
    for (name, value) in config {
        if name.ends_with("_token")
            && let Some(content) = content(value)
        {
            tokens.insert(name.as_str().into(), content.into());
        }
    }
    if let Some(JsonValue::Array(list)) = config.get(TOKEN_LIST) {
        let list: Value = list.iter().filter_map(content).collect();
        tokens.insert(TOKEN_LIST.into(), list);
    }
    tokens
}

fn content(value: &JsonValue) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn required(path: &Path, hash: &mut Xxh3Default) -> Result<Vec<u8>, LoadError> {
    optional(path, hash)?
        .ok_or_else(|| LoadError::Unreadable(path.to_owned(), "there is no such file".to_owned()))
}

/// No file is no error; one that cannot be read is.
fn optional(path: &Path, hash: &mut Xxh3Default) -> Result<Option<Vec<u8>>, LoadError> {
    let unreadable =
        |error: std::io::Error| LoadError::Unreadable(path.to_owned(), error.to_string());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let Some(bytes) = read_bounded(file, MAX_FILE).map_err(unreadable)? else {
        let message = format!("it has more than {MAX_FILE} bytes");
        return Err(LoadError::Unreadable(path.to_owned(), message));
    };
    // the length keeps two files from being taken for two others of the same bytes
    hash.update(&limit_len(bytes.len()));
    hash.update(&bytes);
    Ok(Some(bytes))
}

fn limit_len(len: usize) -> [u8; 8] {
    u64::try_from(len).unwrap_or(u64::MAX).to_le_bytes()
}

/// The reason may repeat what is in the file: it is cut.
pub(crate) fn unusable(path: &Path, error: impl ToString) -> LoadError {
    let mut reason = error.to_string();
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
    LoadError::Unusable(path.to_owned(), reason)
}

// === impl Templates ===

impl Templates {
    fn one(template: Template) -> Self {
        Self {
            default: Some(template),
            tool_use: None,
        }
    }

    /// For a request.
    pub(crate) fn of(&self, has_tools: bool) -> Option<&Template> {
        let tool_use = self.tool_use.as_ref().filter(|_| has_tools);
        tool_use.or(self.default.as_ref())
    }
}

// === impl LoadError ===

impl LoadError {
    /// Stable, for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(..) => "unreadable",
            Self::Unusable(..) => "unusable",
            Self::Internal(_) => "internal",
        }
    }
}
