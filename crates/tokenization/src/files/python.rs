//! JSON as Python's reader accepts it, and what is read of a `config.json`.

use std::{
    borrow::Cow,
    fmt,
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value as Json;
use tracing::warn;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of a `config.json`: those of published models have some ten thousand.
const MAX_CONFIG: usize = 4 << 20;

/// Numbers that Python writes and reads although JSON has none of them, the longest first.
const NOT_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The settings of a `config.json` that select the tokenizer of the engine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelConfig {
    pub(crate) model_type: Option<String>,
    pub(crate) tokenizer_class: Option<String>,
}

/// Returns the text with `null` in the place of each number that is not finite.
pub(super) fn without_infinite_numbers(text: &[u8]) -> Cow<'_, [u8]> {
    let mut finite: Vec<u8> = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    let mut in_string = false;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            b'-' | b'I' | b'N' if !in_string => {
                let rest = text.get(at..).unwrap_or_default();
                let found = NOT_FINITE.iter().find(|number| rest.starts_with(number));
                if let Some(number) = found {
                    finite.extend_from_slice(text.get(copied..at).unwrap_or_default());
                    finite.extend_from_slice(b"null");
                    at += number.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return text.into();
    }
    finite.extend_from_slice(text.get(copied..).unwrap_or_default());
    finite.into()
}

// === impl ModelConfig ===

impl ModelConfig {
    /// Reads a `config.json`. One that cannot be used counts as absent: the engine may read it.
    pub(super) fn read(path: &Path) -> Self {
        Self::try_read(path).unwrap_or_else(|reason| {
            let path = path.display();
            warn!(
                %path, %reason,
                "the file cannot be used: whether the engine builds another tokenizer is decided without it"
            );
            Self::default()
        })
    }

    fn try_read(path: &Path) -> Result<Self, String> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.to_string()),
        };
        let text = read_bounded(file, MAX_CONFIG).map_err(|error| error.to_string())?;
        let text = text.ok_or_else(|| format!("it has more than {MAX_CONFIG} bytes"))?;
        Self::parse(&text).map_err(|error| error.to_string())
    }

    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(&without_infinite_numbers(text))
    }

    /// Adds it to the hash of the model's files.
    pub(super) fn hash(&self, hash: &mut Xxh3Default) {
        for setting in [&self.model_type, &self.tokenizer_class] {
            if let Some(text) = setting {
                hash.update(text.as_bytes());
            }
            // no text has this byte
            hash.update(&[0xff, u8::from(setting.is_some())]);
        }
    }
}

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Settings)
    }
}

/// Reads two settings, of a key given twice the last value, and skips all else.
struct Settings;

impl<'de> Visitor<'de> for Settings {
    type Value = ModelConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelConfig, A::Error> {
        let text = |value: Json| value.as_str().map(str::to_owned);
        let mut config = ModelConfig::default();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "model_type" => config.model_type = text(map.next_value()?),
                "tokenizer_class" => config.tokenizer_class = text(map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(config)
    }
}

/// All of a file; none if it has more bytes than `most`.
pub(super) fn read_bounded(file: File, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= most).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("[NaN,-Infinity,Infinity]", "[null,null,null]")]
    #[case(
        r#"{"Infinity":"NaN \" -Infinity","a":-1}"#,
        r#"{"Infinity":"NaN \" -Infinity","a":-1}"#
    )]
    #[case(r#"["\\",NaN]"#, r#"["\\",null]"#)]
    #[case(r#"["\""#, r#"["\""#)]
    #[case("\"\\", "\"\\")]
    fn numbers_that_are_not_finite_become_null(#[case] text: &str, #[case] expected: &str) {
        let finite = without_infinite_numbers(text.as_bytes());
        assert_eq!(str::from_utf8(&finite).unwrap(), expected);
    }

    #[rstest]
    #[case::infinite(
        r#"{"time_step_limit":[0.0,Infinity],"model_type":"nemotron_h"}"#,
        Some("nemotron_h")
    )]
    #[case::beyond_a_float(
        r#"{"a":1e999,"b":[{"c":-1e999}],"model_type":"qwen2"}"#,
        Some("qwen2")
    )]
    #[case::given_twice(r#"{"model_type":"a","model_type":"b"}"#, Some("b"))]
    #[case::other_type(r#"{"model_type":["qwen2"]}"#, None)]
    #[case::lone_surrogate(r#"{"a":"\ud800","model_type":"qwen2"}"#, Some("qwen2"))]
    fn what_python_reads_is_read(#[case] text: &str, #[case] model_type: Option<&str>) {
        let config = ModelConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config.model_type.as_deref(), model_type);
    }
}
