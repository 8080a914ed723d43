//! A model that is loaded: from a client's body to ids.

use std::{path::Path, sync::Arc};

use jiff::civil::DateTime;
use minijinja::{Value, value::ValueKind};
use processor_api::Refusal;
use rand::Rng;

use crate::{
    chat::{Body, ContentFormat, bad},
    files::{LoadError, ModelFiles, Templates, unusable},
    json::Map,
    python::MAX_TEXT,
    rebuilt::{self, Configs, Transformers},
    segment::SegmentCache,
    tokenizer::Tokenizer,
};

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `chat/completions`: messages.
    Chat,
    /// `completions`: a prompt.
    Completions,
}

/// How a template takes the content of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentFormatOption {
    /// As its source shows.
    #[default]
    Auto,
    /// A string.
    String,
    /// A list of parts, as in the API of OpenAI.
    OpenAi,
}

/// What is to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct ModelSource<'a> {
    /// The directory of its files.
    pub directory: &'a Path,
    /// A file in place of the directory's own chat template.
    pub chat_template: Option<&'a Path>,
    /// How the template takes content.
    pub content_format: ContentFormatOption,
    /// The most ids of a prompt.
    pub max_model_len: Option<usize>,
    /// The version of the library by which the model's engine loads tokenizers.
    pub transformers: Transformers,
}

/// A prompt, ready to be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text {
        /// It.
        text: String,
        /// Whether the tokenizer adds the tokens that it begins and ends a text with.
        add_special_tokens: bool,
    },
    /// The client's own ids: they are routed, and need not be transferred.
    Ids(Vec<u32>),
}

/// How prompts are encoded.
#[derive(Clone, Debug)]
pub struct EncodeOptions {
    /// Of all models together.
    pub cache: SegmentCache,
    /// The share of prompts that are encoded whole too, and compared.
    pub verify_sample: f64,
}

/// A model that is loaded. It is shared by all threads.
#[derive(Debug)]
pub struct Model {
    tokenizer: Tokenizer,
    templates: Templates,
    special_tokens: Map,
    content_format: ContentFormatOption,
    max_model_len: Option<usize>,
    tag: String,
}

// === impl Api ===

impl Api {
    /// By the client's path, or by the body where there is none. Of other paths: none.
    ///
    /// # Errors
    /// [`Refusal`] when the body has to be read for it, and is no JSON object.
    pub fn of(path: Option<&str>, body: &str) -> Result<Option<Self>, Refusal> {
        if let Some(path) = path {
            return Ok(Self::of_path(path));
        }
        let body = Body::parse(body)?;
        let by_field = |name: &str, api| body.get(name).map(|_| api);
        Ok(by_field("messages", Self::Chat).or_else(|| by_field("prompt", Self::Completions)))
    }

    fn of_path(path: &str) -> Option<Self> {
        let (path, _) = path.split_once(['?', '#']).unwrap_or((path, ""));
        let path = path.strip_suffix("/render").unwrap_or(path);
        let rest = path.strip_suffix("completions")?;
        if let Some(rest) = rest.strip_suffix("chat/")
            && (rest.is_empty() || rest.ends_with('/'))
        {
            return Some(Self::Chat);
        }
        (rest.is_empty() || rest.ends_with('/')).then_some(Self::Completions)
    }
}

// === impl Model ===

impl Model {
    /// Loads one; `number` is one that no model before it has had. It takes seconds and much memory.
    ///
    /// # Errors
    /// [`LoadError`] when a file cannot be read or used.
    pub fn load(source: &ModelSource<'_>, number: u64) -> Result<Self, LoadError> {
        let files = ModelFiles::read(source)?;
        Self::from_files(source, files, number)
    }

    /// The same one, if `former` was loaded by the same source from files of the same contents.
    pub(crate) fn load_unless_same(
        source: &ModelSource<'_>,
        former: Option<&Arc<Self>>,
        next_number: impl FnOnce() -> u64,
    ) -> Result<Arc<Self>, LoadError> {
        let files = ModelFiles::read(source)?;
        match former.filter(|former| former.tag == files.tag) {
            Some(former) => Ok(former.clone()),
            None => Self::from_files(source, files, next_number()).map(Arc::new),
        }
    }

    fn from_files(
        source: &ModelSource<'_>,
        files: ModelFiles,
        number: u64,
    ) -> Result<Self, LoadError> {
        let path = source.directory.join("tokenizer.json");
        if source.transformers == Transformers::V5 {
            let configs = Configs {
                tokenizer: &files.tokenizer_config,
                model: &files.model_config,
            };
            let checked = rebuilt::check(&files.tokenizer, &configs);
            checked.map_err(|error| unusable(&path, error))?;
        }
        let tokenizer = Tokenizer::from_bytes(&files.tokenizer, number);
        let tokenizer = tokenizer.map_err(|error| unusable(&path, error))?;
        Ok(Self {
            tokenizer,
            templates: files.templates,
            special_tokens: files.special_tokens,
            content_format: source.content_format,
            max_model_len: source.max_model_len,
            tag: files.tag,
        })
    }

    /// Names its tokenizer and template files, and what is used of its configuration, by their contents.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Whether prompts are encoded in parts, which the cache may know.
    pub fn encodes_in_parts(&self) -> bool {
        self.tokenizer.encodes_in_parts()
    }

    /// Prompts whose parts had other ids than the whole: at most one for each thread that was encoding then.
    pub fn verify_failed(&self) -> u64 {
        self.tokenizer.verify_failed()
    }

    /// The prompt of a client's body.
    ///
    /// # Errors
    /// [`Refusal`] when the client is wrong, or only the engine can render it.
    pub fn prompt(&self, api: Api, body: &str, now: DateTime) -> Result<Prompt, Refusal> {
        let body = Body::parse(body)?;
        body.check_supported()?;
        let add_special_tokens = body.flag("add_special_tokens")?;
        match api {
            Api::Chat => Ok(Prompt::Text {
                text: self.render(&body, now)?,
                // the template writes the first token itself
                add_special_tokens: add_special_tokens.unwrap_or(false),
            }),
            Api::Completions => {
                let prompt = body.get("prompt").unwrap_or_default();
                completion_prompt(&prompt, add_special_tokens.unwrap_or(true))
            }
        }
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// [`Refusal`] when it is longer than the model takes, or cannot be encoded.
    pub fn encode<R: Rng + ?Sized>(
        &self,
        prompt: Prompt,
        options: &EncodeOptions,
        rng: &mut R,
    ) -> Result<Vec<u32>, Refusal> {
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text { text, .. } if text.len() > MAX_TEXT => {
                return Err(Refusal::Unsupported(format!(
                    "a prompt of more than {} MiB is left to the engine",
                    MAX_TEXT >> 20
                )));
            }
            Prompt::Text {
                text,
                add_special_tokens,
            } => self
                .tokenizer
                .encode(
                    &text,
                    add_special_tokens,
                    &options.cache,
                    options.verify_sample,
                    rng,
                )
                // the limit of a regular expression's steps: the engine may have another
                .map_err(|error| Refusal::Unsupported(format!("it cannot be encoded: {error}")))?,
        };
        if let Some(max) = self.max_model_len.filter(|max| ids.len() > *max) {
            let count = ids.len();
            // the file may name less than the engine accepts, and the engine reports the error to the client itself
            return Err(Refusal::Unsupported(format!(
                "the prompt has {count} tokens, and the models file names a limit of {max}"
            )));
        }
        Ok(ids)
    }

    fn render(&self, body: &Body, now: DateTime) -> Result<String, Refusal> {
        let template = self
            .templates
            .of(body.has_tools())
            .ok_or_else(|| Refusal::Unsupported("the model has no chat template".to_owned()))?;
        let format = match self.content_format {
            ContentFormatOption::OpenAi => ContentFormat::Parts,
            ContentFormatOption::Auto if template.iterates_content() => ContentFormat::Parts,
            ContentFormatOption::Auto | ContentFormatOption::String => ContentFormat::Text,
        };
        let variables = body.variables(&self.special_tokens, format)?;
        Ok(template.render(variables, now)?)
    }
}

/// One prompt: a string or its ids, or a list of one of these.
fn completion_prompt(prompt: &Value, add_special_tokens: bool) -> Result<Prompt, Refusal> {
    let inner = match prompt.kind() {
        ValueKind::Seq if prompt.len() == Some(1) => prompt.get_item_by_index(0).ok(),
        _ => None,
    };
    match inner.filter(|inner| !inner.is_number()) {
        Some(inner) => one_prompt(&inner, add_special_tokens),
        None => one_prompt(prompt, add_special_tokens),
    }
}

fn one_prompt(prompt: &Value, add_special_tokens: bool) -> Result<Prompt, Refusal> {
    if let Some(text) = prompt.as_str() {
        return Ok(Prompt::Text {
            text: text.to_owned(),
            add_special_tokens,
        });
    }
    if prompt.kind() != ValueKind::Seq || prompt.len() == Some(0) {
        return Err(bad(
            "the prompt is neither a string nor a list of token ids",
        ));
    }
    let mut ids = Vec::with_capacity(prompt.len().unwrap_or_default());
    for id in prompt.try_iter().into_iter().flatten() {
        if !id.is_number() {
            return Err(Refusal::Unsupported(
                "several prompts in one request are left to the engine".to_owned(),
            ));
        }
        let id = Some(id).filter(Value::is_integer);
        let id = id.and_then(|id| u32::try_from(id).ok());
        ids.push(id.ok_or_else(|| bad("the prompt has a number that is no token id"))?);
    }
    Ok(Prompt::Ids(ids))
}

#[cfg(test)]
mod tests;
