//! How long a tokenizer makes a text before it encodes it.
//!
//! A file may name any normalizers, one behind the other: forty that write `aa` for `a` make a terabyte of one letter.
//! So they are run one by one on short texts, and their result is looked at behind each: when a tokenizer is loaded,
//! and before a prompt is encoded that could become too long.

use serde::Deserialize;
use serde_json::Value as Json;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// Bytes that are encoded in one piece, after normalization. The tokenizer takes up to some three hundred bytes of memory
/// for each while it works.
pub(crate) const MAX_PART: usize = 2 << 20;

/// How many times as long normalizers may make a text of those that are tried at load; NFKC writes eleven bytes for one
/// at most.
const MAX_FACTOR: usize = 32;

/// How many bytes may be added to a text, however short it is.
const MAX_ADDED: usize = 256;

/// How many times as long one normalizer, or all pre-tokenizers together, may make any text.
const MAX_STEP: usize = 64;

/// Normalizers of one tokenizer: those of published models have ten at most.
const MAX_STEPS: usize = 128;

/// Bytes that are normalized at once where only the length is wanted.
const CHUNK: usize = 4 << 10;

/// Texts that known normalizers lengthen: ligatures, marks, letters without a lower case of their own, ideographs.
const PROBES: [&str; 10] = [
    " ",
    "ﷺ",
    "İ",
    "Ⱥ",
    "ΐ",
    "가",
    "日本",
    "é",
    "\u{1d160}",
    "x\ny",
];

/// The normalizers of a tokenizer.
#[derive(Debug)]
pub(crate) struct Growth {
    steps: Vec<NormalizerWrapper>,
    /// The factor by which a text may become longer at most; none where that is not known.
    factor: Option<usize>,
}

/// The parts of a `tokenizer.json` that make a text longer.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    normalized: bool,
}

/// Why a tokenizer or a text is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrowthError {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The tokenizer has more normalizers than are run.
    #[error("it has {0} normalizers: at most {MAX_STEPS} are taken")]
    Steps(usize),
    /// One part of the tokenizer may make any text much longer.
    #[error("its {0} may make a text {1} times as long: at most {MAX_STEP} times is taken")]
    Step(&'static str, usize),
    /// All normalizers together make a text much longer.
    #[error(
        "its normalizers make {0:?} more than {MAX_FACTOR} times as long, as a sequence of replacements by longer \
         texts does"
    )]
    Sequence(String),
    /// The post-processor repeats the ids of a text.
    #[error("its post-processor repeats the text, or adds more than {MAX_ADDED} tokens to it")]
    Repeated,
    /// A part of a prompt is too long after normalization.
    #[error(
        "a part of the prompt without special tokens has more than {} MiB after normalization",
        MAX_PART >> 20
    )]
    Part,
}

// === impl Growth ===

impl Growth {
    /// Reads the growth of a `tokenizer.json`, before anything else reads the file.
    ///
    /// # Errors
    /// [`GrowthError`] when it could make a short text a long one.
    pub(crate) fn of(json: &[u8]) -> Result<Self, GrowthError> {
        let unreadable = |error: serde_json::Error| GrowthError::Unreadable(error.to_string());
        let parts: Parts = serde_json::from_slice(json).map_err(unreadable)?;
        let mut found = Vec::new();
        members(&parts.normalizer, "normalizers", &mut found);
        if found.len() > MAX_STEPS {
            return Err(GrowthError::Steps(found.len()));
        }
        let mut factor = Some(1_usize);
        let mut steps = Vec::with_capacity(found.len());
        for step in &found {
            let longer = normalizer_factor(step);
            if let Some(longer) = longer.filter(|longer| *longer > MAX_STEP) {
                return Err(GrowthError::Step("normalizer", longer));
            }
            factor = factor
                .zip(longer)
                .map(|(factor, longer)| factor.saturating_mul(longer));
            let step = NormalizerWrapper::deserialize(*step).map_err(unreadable)?;
            steps.push(step);
        }
        let mut splits = Vec::new();
        members(&parts.pre_tokenizer, "pretokenizers", &mut splits);
        let longer = splits
            .iter()
            .map(|step| pre_tokenizer_factor(step))
            .fold(1_usize, usize::saturating_mul);
        if longer > MAX_STEP {
            return Err(GrowthError::Step("pre-tokenizer", longer));
        }
        check_post_processor(&parts.post_processor)?;
        let growth = Self { steps, factor };
        growth.try_out(&found, &parts.added_tokens)?;
        Ok(growth)
    }

    /// Whether a text may be encoded in one piece.
    ///
    /// # Errors
    /// [`GrowthError::Part`] when it may not.
    pub(crate) fn check(&self, text: &str) -> Result<(), GrowthError> {
        if text.len() > MAX_PART {
            return Err(GrowthError::Part);
        }
        let longest = self.factor.map(|factor| text.len().saturating_mul(factor));
        if longest.is_some_and(|longest| longest <= MAX_PART) {
            return Ok(());
        }
        let mut total = 0_usize;
        let mut rest = text;
        while !rest.is_empty() {
            let (chunk, after) = rest
                .split_at_checked(rest.floor_char_boundary(CHUNK))
                .unwrap_or((rest, ""));
            rest = after;
            let limit = MAX_PART.saturating_sub(total);
            let limit = limit.min(CHUNK * MAX_FACTOR + MAX_ADDED);
            let longest = self.longest(chunk, limit).ok_or(GrowthError::Part)?;
            total = total.saturating_add(longest);
        }
        Ok(())
    }

    /// Runs the normalizers on the texts that they name, and on some others.
    fn try_out(&self, found: &[&Json], added: &[AddedToken]) -> Result<(), GrowthError> {
        let ascii = (0..=0x7f_u8).map(|byte| char::from(byte).to_string());
        let named = found.iter().flat_map(|step| {
            let pattern = step.pointer("/pattern/String").and_then(Json::as_str);
            let content = step.get("content").and_then(Json::as_str);
            pattern.into_iter().chain(content).map(str::to_owned)
        });
        // the tokenizer normalizes these when it is made
        let added = added.iter().filter(|token| token.normalized);
        let added = added.map(|token| token.content.clone());
        let probes = PROBES.map(str::to_owned).into_iter().chain(ascii);
        for text in probes.chain(named).chain(added) {
            if text.len() > MAX_PART {
                return Err(GrowthError::Sequence(shown(&text)));
            }
            let repeated = text.repeat((64 / text.len().max(1)).max(1));
            let limit = repeated.len().saturating_mul(MAX_FACTOR) + MAX_ADDED;
            if self.longest(&repeated, limit).is_none() {
                return Err(GrowthError::Sequence(shown(&text)));
            }
        }
        Ok(())
    }

    /// The most bytes that a short text has before, between and behind the normalizers; none: that is over `limit`.
    fn longest(&self, text: &str, limit: usize) -> Option<usize> {
        let mut longest = text.len();
        let mut text = NormalizedString::from(text);
        for step in &self.steps {
            step.normalize(&mut text).ok()?;
            longest = longest.max(text.get().len());
            if longest > limit {
                return None;
            }
        }
        (longest <= limit).then_some(longest)
    }
}

fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}

/// Collects the steps of a sequence, and of sequences in it.
fn members<'a>(step: &'a Json, name: &str, found: &mut Vec<&'a Json>) {
    match step.get(name).and_then(Json::as_array) {
        Some(list) => {
            for step in list {
                members(step, name, found);
            }
        }
        None if step.is_null() => {}
        None => found.push(step),
    }
}

/// How many times as long it makes a text, if that is known.
fn normalizer_factor(step: &Json) -> Option<usize> {
    let len = |pointer: &str| step.pointer(pointer)?.as_str().map(str::len);
    match step.get("type")?.as_str()? {
        "Replace" => {
            let content = len("/content")?;
            Some(match len("/pattern/String") {
                Some(pattern) if pattern > 0 => content.div_ceil(pattern).max(1),
                // an expression may match nothing, between any two characters
                _ => content + 1,
            })
        }
        "Prepend" => Some(len("/prepend")? + 1),
        "Strip" | "StripAccents" | "Nmt" => Some(1),
        "Lowercase" | "ByteLevel" => Some(2),
        "NFC" | "NFD" => Some(3),
        "NFKC" | "NFKD" => Some(11),
        // spaces around ideographs, marks taken off, lower case
        "BertNormalizer" => Some(12),
        _ => None,
    }
}

fn pre_tokenizer_factor(step: &Json) -> usize {
    let adds_space = step.get("add_prefix_space").and_then(Json::as_bool);
    match step.get("type").and_then(Json::as_str) {
        Some("ByteLevel") if adds_space == Some(false) => 2,
        Some("ByteLevel") => 4,
        Some("Metaspace") => {
            let mark = step.get("replacement").and_then(Json::as_str);
            mark.map_or(4, str::len) * 2
        }
        _ => 1,
    }
}

/// Checks that the text is used once, and that a bounded number of tokens is added.
fn check_post_processor(step: &Json) -> Result<(), GrowthError> {
    let mut steps = Vec::new();
    members(step, "processors", &mut steps);
    let mut added = steps.len();
    for step in steps {
        let pieces = step.get("single").and_then(Json::as_array);
        let pieces = pieces.map(Vec::as_slice).unwrap_or_default();
        let texts = pieces
            .iter()
            .filter(|piece| piece.get("Sequence").is_some());
        if texts.count() > 1 {
            return Err(GrowthError::Repeated);
        }
        for piece in pieces {
            let id = piece.pointer("/SpecialToken/id").and_then(Json::as_str);
            let tokens = id.and_then(|id| step.get("special_tokens")?.get(id)?.get("ids"));
            let tokens = tokens.and_then(Json::as_array);
            added += tokens.map_or(1, Vec::len);
        }
    }
    if added > MAX_ADDED {
        return Err(GrowthError::Repeated);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn growth(normalizer: &Json) -> Result<Growth, GrowthError> {
        Growth::of(json!({"normalizer": normalizer}).to_string().as_bytes())
    }

    fn replace(pattern: &str, content: &str) -> Json {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    fn sequence(steps: impl IntoIterator<Item = Json>) -> Json {
        json!({"type": "Sequence", "normalizers": steps.into_iter().collect::<Vec<_>>()})
    }

    #[rstest]
    #[case::doubled(sequence((0..40).map(|_| replace("a", "aa"))))]
    #[case::nested(sequence([sequence((0..20).map(|_| replace("a", "aa"))), sequence((0..20).map(|_| replace("a", "aa")))]))]
    #[case::chained(sequence(('b'..='j').map(|to| {
        let from = char::from_u32(u32::from(to) - 1).unwrap();
        replace(&from.to_string(), &to.to_string().repeat(4))
    })))]
    #[case::rare(sequence((0..40).map(|_| replace("\u{ab30}!", "\u{ab30}!\u{ab30}!"))))]
    #[case::expression(sequence((0..8).map(|_| json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "abc"}))))]
    #[case::prepended(sequence((0..40).map(|_| json!({"type": "Prepend", "prepend": "x".repeat(60)}))))]
    fn normalizers_that_make_a_short_text_long_are_refused(#[case] normalizer: Json) {
        let error = growth(&normalizer).unwrap_err();
        assert!(matches!(error, GrowthError::Sequence(_)), "{error}");
    }

    #[rstest]
    #[case::long(replace("a", &"b".repeat(10_000)), "64 times")]
    #[case::many(sequence((0..1000).map(|_| replace("a", "b"))), "at most 128")]
    fn one_step_is_bounded_too(#[case] normalizer: Json, #[case] reason: &str) {
        let error = growth(&normalizer).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }

    #[test]
    fn pre_tokenizers_that_write_bytes_of_bytes_are_refused() {
        let step = json!({"type": "ByteLevel", "add_prefix_space": false});
        let steps = vec![step; 40];
        let file = json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}});
        let error = Growth::of(file.to_string().as_bytes()).unwrap_err();
        assert!(
            matches!(error, GrowthError::Step("pre-tokenizer", _)),
            "{error}"
        );
    }

    #[test]
    fn a_post_processor_that_repeats_the_text_is_refused() {
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let file =
            json!({"post_processor": {"type": "TemplateProcessing", "single": [text, text]}});
        let error = Growth::of(file.to_string().as_bytes()).unwrap_err();
        assert_eq!(error, GrowthError::Repeated);
    }

    /// The normalizers of published models: Llama 2, Gemma, BERT, T5 without its table, ALBERT.
    #[rstest]
    #[case(Json::Null)]
    #[case(json!({"type": "NFC"}))]
    #[case(sequence([json!({"type": "Prepend", "prepend": "▁"}), replace(" ", "▁")]))]
    #[case(replace(" ", "▁"))]
    #[case(json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true}))]
    #[case(sequence([replace("``", "\""), replace("''", "\""), json!({"type": "NFKD"}),
        json!({"type": "StripAccents"}), json!({"type": "Lowercase"}),
        json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})]))]
    fn those_of_published_models_are_taken(#[case] normalizer: Json) {
        let growth = growth(&normalizer).unwrap();
        assert_eq!(growth.check(&"Some text. ".repeat(1000)), Ok(()));
    }

    #[test]
    fn a_prompt_is_measured_where_it_could_become_too_long() {
        let growth = growth(&json!({"type": "NFKC"})).unwrap();
        assert_eq!(growth.check(&"x".repeat(MAX_PART)), Ok(()));
        assert_eq!(
            growth.check(&"x".repeat(MAX_PART + 1)),
            Err(GrowthError::Part)
        );
        assert_eq!(growth.check(&"ﷺ".repeat(MAX_PART / 40)), Ok(()));
        assert_eq!(
            growth.check(&"ﷺ".repeat(MAX_PART / 30)),
            Err(GrowthError::Part)
        );
    }
}
