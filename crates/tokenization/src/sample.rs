//! A small model for tests and examples: the ids of a text are its bytes.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

/// Its special tokens, by id.
pub const SPECIAL: [(u32, &str); 2] = [(256, "<|start|>"), (257, "<|end|>")];

/// Of each message its role and content, between special tokens.
pub const TEMPLATE: &str = "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// As in models of today: it looks ahead.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` to a directory, which is made if it is
/// not there.
///
/// # Errors
/// When it cannot.
pub fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let tokenizer = tokenizer().to_string();
    fs::write(directory.join("tokenizer.json"), tokenizer)?;
    let config = json!({"bos_token": SPECIAL[0].1, "eos_token": SPECIAL[1].1}).to_string();
    fs::write(directory.join("tokenizer_config.json"), config)?;
    fs::write(directory.join("chat_template.jinja"), TEMPLATE)
}

fn tokenizer() -> Value {
    let vocabulary: serde_json::Map<String, Value> = (0..=u8::MAX)
        .map(|byte| (letter(byte).to_string(), byte.into()))
        .collect();
    let added = SPECIAL.map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": []},
    })
}

/// The letter that byte-level tokenizers write for a byte: itself where it can be seen, else one from 256 on.
fn letter(byte: u8) -> char {
    let is_seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_seen(byte) {
        return char::from(byte);
    }
    let unseen = (0..byte).filter(|other| !is_seen(*other)).count();
    let code = 256 + u32::try_from(unseen).unwrap_or_default();
    char::from_u32(code).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jiff::civil::DateTime;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        Api, ContentFormatOption, EncodeOptions, Model, ModelSource, SegmentCache, Transformers,
    };

    #[test]
    fn its_ids_are_the_bytes_of_the_text() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let source = ModelSource {
            directory: directory.path(),
            chat_template: None,
            content_format: ContentFormatOption::Auto,
            max_model_len: None,
            transformers: Transformers::V5,
        };
        let model = Model::load(&source, 1).unwrap();
        assert!(model.encodes_in_parts());
        let body = r#"{"messages":[{"role":"user","content":"Grüße,  \u0000 世界!"}]}"#;
        let prompt = model.prompt(Api::Chat, body, DateTime::default()).unwrap();
        let options = EncodeOptions {
            cache: SegmentCache::new(1 << 20, 1),
            verify_sample: 1.0,
        };
        let rng = &mut StdRng::seed_from_u64(1);
        let ids = model.encode(prompt, &options, rng).unwrap();
        let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
        let want = [
            vec![256],
            bytes("user\nGrüße,  \0 世界!"),
            vec![257],
            bytes("\n"),
            vec![256],
            bytes("assistant\n"),
        ];
        assert_eq!(ids, want.concat());
    }
}
