//! Whether an engine uses a `tokenizer.json` as it is.
//!
//! From version 5 on the transformers library, with which engines load tokenizers, takes normalizer and pre-tokenizer
//! from the class that `tokenizer_class` and `model_type` name, and of the file the vocabulary, the merges and the
//! post-processor alone. Where both are not the same, ids made by the file are not those of the engine.
//!
//! What each class takes was recorded from the library: `tests/rebuilt.py`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::files::ModelConfig;

/// The recording, as `tests/rebuilt.py` wrote it.
const RECORDED: &str = include_str!("rebuilt/transformers.json");

/// Classes that use all of the file.
const BACKENDS: [&str; 4] = [
    "TokenizersBackend",
    "PythonBackend",
    "PreTrainedTokenizerFast",
    "MistralCommonBackend",
];

/// The settings of a `tokenizer_config.json` that decide what a class builds.
const SETTINGS: [&str; 2] = ["add_prefix_space", "legacy"];

/// The major version of the transformers library in a model's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u8")]
pub enum Transformers {
    /// Version 4, which uses the file as it is.
    V4,
    /// Version 5, which rebuilds tokenizers of classes that it knows: vLLM from 0.19.1 on has it.
    #[default]
    V5,
}

/// The files that the engine reads beside the tokenizer itself.
#[derive(Debug)]
pub(crate) struct Configs<'a> {
    /// The contents of `tokenizer_config.json`.
    pub(crate) tokenizer: &'a Map<String, Json>,
    /// What is used of `config.json`.
    pub(crate) model: &'a ModelConfig,
}

/// The error for a file that differs from the tokenizer that the engine builds.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "transformers {version} builds another tokenizer than this file for the class {class} (another {part}): the engine \
     would have other ids. Take the file that it builds, which AutoTokenizer.from_pretrained(..).save_pretrained(..) \
     writes; or say transformers: 4 in the models file if the engine has that version"
)]
pub(crate) struct Rebuilt {
    version: String,
    class: String,
    part: &'static str,
}

/// The recorded results of the transformers library.
#[derive(Deserialize)]
struct Recorded {
    version: String,
    classes: BTreeMap<String, Vec<Variant>>,
    /// The class of each type of model.
    model_types: BTreeMap<String, String>,
    /// Types of models whose own class counts more than that of their files.
    wrong_classes: Vec<String>,
}

/// The tokenizer that a class builds with some settings.
#[derive(Deserialize)]
struct Variant {
    settings: Vec<Map<String, Json>>,
    normalizer: Json,
    pre_tokenizer: Json,
    byte_fallback: bool,
    ignore_merges: bool,
}

/// The parts of a `tokenizer.json` that are compared.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    model: FileModel,
}

#[derive(Default, Deserialize)]
struct FileModel {
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

// === impl Transformers ===

impl TryFrom<u8> for Transformers {
    type Error = String;

    fn try_from(version: u8) -> Result<Self, String> {
        match version {
            4 => Ok(Self::V4),
            5 => Ok(Self::V5),
            _ => Err(format!("transformers {version} is not known: use 4 or 5")),
        }
    }
}

/// Whether version 5 uses a tokenizer of this file. Of a class that was not recorded nothing is known: it is taken.
///
/// # Errors
/// [`Rebuilt`] when it builds another one.
pub(crate) fn check(tokenizer: &[u8], configs: &Configs<'_>) -> Result<(), Rebuilt> {
    // the model has its own code, which decides
    if configs.tokenizer.contains_key("auto_map") {
        return Ok(());
    }
    // a file that is not a tokenizer is rejected where it is read
    let Ok(file) = serde_json::from_slice::<File>(tokenizer) else {
        return Ok(());
    };
    let recorded = recorded();
    let Some(class) = recorded.class(&file, configs) else {
        return Ok(());
    };
    let settings = SETTINGS.map(|name| configs.tokenizer.get(name).cloned().unwrap_or_default());
    let variants = recorded.classes.get(class).map(Vec::as_slice);
    let variant = variants.unwrap_or_default().iter().find(|variant| {
        variant.settings.iter().any(|other| {
            let others = SETTINGS.map(|name| other.get(name).cloned().unwrap_or_default());
            others == settings
        })
    });
    let differing = match variant {
        None => None,
        Some(variant) if plain(&file.normalizer) != plain(&variant.normalizer) => {
            Some("normalizer")
        }
        Some(variant) if plain(&file.pre_tokenizer) != plain(&variant.pre_tokenizer) => {
            Some("pre-tokenizer")
        }
        Some(variant) => {
            let flags = (
                file.model.byte_fallback.unwrap_or_default(),
                file.model.ignore_merges.unwrap_or_default(),
            );
            (flags != (variant.byte_fallback, variant.ignore_merges)).then_some("model")
        }
    };
    match differing {
        None => Ok(()),
        Some(part) => Err(Rebuilt {
            version: recorded.version.clone(),
            class: class.to_owned(),
            part,
        }),
    }
}

fn recorded() -> Recorded {
    serde_json::from_str(RECORDED).expect("it is written by a script, and read by a test")
}

// === impl Recorded ===

impl Recorded {
    /// The class that is built; none if all of the file is used.
    fn class<'a>(&'a self, file: &File, configs: &'a Configs<'_>) -> Option<&'a str> {
        let model_type = configs.model.model_type.as_deref().unwrap_or_default();
        let named = configs.tokenizer.get("tokenizer_class");
        let named = named.and_then(Json::as_str);
        let named = named.or(configs.model.tokenizer_class.as_deref());
        let named = named.map(without_fast);
        let of_type = self.model_types.get(model_type);
        let of_type = of_type.map(|class| without_fast(class));
        let is_wrong = self.wrong_classes.iter().any(|name| name == model_type);
        let is_llama = named == Some("LlamaTokenizer") && of_type != Some("MistralCommonBackend");
        if is_llama && !is_wrong && file.has_byte_level() {
            return None;
        }
        match (named, of_type) {
            (Some(named), Some(of_type)) if named != of_type => {
                if BACKENDS.contains(&of_type) {
                    None
                } else {
                    Some(if is_wrong { of_type } else { named })
                }
            }
            (named, of_type) => named.or(of_type),
        }
    }
}

// === impl File ===

impl File {
    fn has_byte_level(&self) -> bool {
        let is = |step: &Json| step.get("type").and_then(Json::as_str) == Some("ByteLevel");
        let steps = self.pre_tokenizer.get("pretokenizers");
        let steps = steps.and_then(Json::as_array);
        is(&self.pre_tokenizer) || steps.is_some_and(|steps| steps.iter().any(is))
    }
}

fn without_fast(class: &str) -> &str {
    match class.strip_suffix("Fast") {
        Some(class) if class != "PreTrainedTokenizer" => class,
        _ => class,
    }
}

/// A step without the fields that have no influence on ids, and with its default values.
fn plain(step: &Json) -> Json {
    let list = ["normalizers", "pretokenizers"]
        .iter()
        .find_map(|name| step.get(name)?.as_array());
    if let Some(list) = list {
        let mut steps: Vec<Json> = list.iter().map(plain).collect();
        return match steps.len() {
            1 => steps.remove(0),
            _ => Json::Array(steps),
        };
    }
    let Json::Object(members) = step else {
        return step.clone();
    };
    let mut members = members.clone();
    members.remove("trim_offsets");
    if members.get("type").and_then(Json::as_str) == Some("ByteLevel") {
        members.entry("use_regex").or_insert(true.into());
    }
    Json::Object(members)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Split at digits of one to three, as tokenizers of many models do it.
    fn o200k() -> Json {
        let split = json!({"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+"}, "behavior": "Isolated",
            "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        json!({"normalizer": null, "model": {"type": "BPE"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]}})
    }

    fn llama2() -> Json {
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        json!({"normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}, "pre_tokenizer": null,
            "model": {"type": "BPE", "byte_fallback": true, "ignore_merges": false}})
    }

    /// A tokenizer as the library itself saves it.
    fn saved(class: &str) -> Json {
        let recorded: Json = serde_json::from_str(RECORDED).unwrap();
        let variant = &recorded["classes"][class][0];
        json!({"normalizer": variant["normalizer"], "pre_tokenizer": variant["pre_tokenizer"],
            "model": {"byte_fallback": variant["byte_fallback"], "ignore_merges": variant["ignore_merges"]}})
    }

    fn checked(file: &Json, tokenizer: &Json, model: &Json) -> Result<(), &'static str> {
        let tokenizer = tokenizer.as_object().cloned().unwrap_or_default();
        let model = ModelConfig::parse(model.to_string().as_bytes()).unwrap_or_default();
        let configs = Configs {
            tokenizer: &tokenizer,
            model: &model,
        };
        check(file.to_string().as_bytes(), &configs).map_err(|rebuilt| rebuilt.part)
    }

    /// The results of the library itself on files of published models.
    #[rstest]
    #[case::gpt4o(o200k(), json!({"tokenizer_class": "GPT2Tokenizer"}), json!({}))]
    #[case::gpt4o_fast(o200k(), json!({"tokenizer_class": "GPT2TokenizerFast"}), json!({"model_type": "llama"}))]
    #[case::under_qwen2(o200k(), json!({"tokenizer_class": "PreTrainedTokenizerFast"}), json!({"model_type": "qwen2"}))]
    #[case::by_model_type(o200k(), json!({}), json!({"model_type": "starcoder2"}))]
    #[case::by_config(o200k(), json!({}), json!({"tokenizer_class": "GPT2Tokenizer"}))]
    #[case::llama2(llama2(), json!({"tokenizer_class": "LlamaTokenizer", "legacy": false}), json!({"model_type": "llama"}))]
    #[case::with_a_space(saved("GPT2Tokenizer"), json!({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}),
        json!({}))]
    fn a_file_that_is_rebuilt_otherwise_is_found(
        #[case] file: Json,
        #[case] tokenizer: Json,
        #[case] model: Json,
    ) {
        checked(&file, &tokenizer, &model).unwrap_err();
    }

    #[rstest]
    #[case::llama3(o200k(), json!({"tokenizer_class": "PreTrainedTokenizerFast"}), json!({"model_type": "llama"}))]
    #[case::deepseek(o200k(), json!({"tokenizer_class": "LlamaTokenizerFast"}), json!({"model_type": "deepseek_v3"}))]
    #[case::mistral(llama2(), json!({"tokenizer_class": "LlamaTokenizer"}), json!({"model_type": "mistral"}))]
    #[case::own_class(o200k(), json!({"tokenizer_class": "ClaudeTokenizer"}), json!({}))]
    #[case::own_code(o200k(), json!({"tokenizer_class": "GPT2Tokenizer", "auto_map": {}}), json!({}))]
    #[case::no_class(o200k(), json!({}), json!({}))]
    #[case::qwen(saved("Qwen2Tokenizer"), json!({"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": false}),
        json!({"model_type": "qwen3"}))]
    #[case::gemma(saved("GemmaTokenizer"), json!({"tokenizer_class": "GemmaTokenizer"}), json!({"model_type": "gemma3"}))]
    #[case::saved_llama(saved("LlamaTokenizer"), json!({"tokenizer_class": "LlamaTokenizer"}), json!({}))]
    fn a_file_that_is_used_as_it_is_is_taken(
        #[case] file: Json,
        #[case] tokenizer: Json,
        #[case] model: Json,
    ) {
        assert_eq!(checked(&file, &tokenizer, &model), Ok(()));
    }
}
