//! Token counts of a response.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use smallvec::SmallVec;

/// 2^53: up to this value a float represents each whole number exactly.
const MAX_FLOAT: f64 = 9_007_199_254_740_992.0;

/// Tokens as the engine counted them; `None`: it did not say. In Anthropic's format `input_tokens` may
/// leave out the cached ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub input_tokens: Option<u64>,
    /// Generated.
    pub output_tokens: Option<u64>,
    /// Of the prompt, found in the engine's cache.
    pub cached_tokens: Option<u64>,
}

/// What is read of a usage object, under the names of all formats.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    PromptTokens,
    InputTokens,
    CompletionTokens,
    OutputTokens,
    PromptTokensDetails,
    InputTokensDetails,
    CacheReadInputTokens,
    /// The number of cached tokens, a member of the details.
    CachedTokens,
    #[serde(other)]
    Other,
}

/// The members of an object, each as far as it is what it should be: engines differ in what they write.
struct Members<'a>(SmallVec<[(Key, &'a RawValue); 8]>);

// === impl Usage ===

impl Usage {
    /// Reads the value of `usage`; one that cannot be read says nothing.
    pub(super) fn from_json(json: &[u8]) -> Self {
        let Some(members) = Members::read(json) else {
            return Self::default();
        };
        let details = [Key::PromptTokensDetails, Key::InputTokensDetails];
        let mut details = details.iter().filter_map(|key| {
            let details = Members::read(members.get(*key)?.as_bytes())?;
            details.count(Key::CachedTokens)
        });
        let count = |key| members.count(key);
        Self {
            input_tokens: count(Key::PromptTokens).or_else(|| count(Key::InputTokens)),
            output_tokens: count(Key::CompletionTokens).or_else(|| count(Key::OutputTokens)),
            cached_tokens: details.next().or_else(|| count(Key::CacheReadInputTokens)),
        }
    }

    /// Adds what came later, which counts where both say something.
    pub(super) fn merge(&mut self, later: Self) {
        self.input_tokens = later.input_tokens.or(self.input_tokens);
        self.output_tokens = later.output_tokens.or(self.output_tokens);
        self.cached_tokens = later.cached_tokens.or(self.cached_tokens);
    }
}

// === impl Members ===

impl<'a> Members<'a> {
    /// Reads the members of a JSON object; `None` if the text is not an object.
    fn read(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The last value of this key, as most readers take it.
    fn get(&self, key: Key) -> Option<&'a str> {
        let mut members = self.0.iter().rev();
        let (_, value) = members.find(|(one, _)| *one == key)?;
        Some(value.get())
    }

    /// The value as a whole number, which may also be written as `3.0`.
    fn count(&self, key: Key) -> Option<u64> {
        let text = self.get(key)?;
        text.parse().ok().or_else(|| {
            let number: f64 = text.parse().ok()?;
            let is_count = (0.0..=MAX_FLOAT).contains(&number) && number.fract() == 0.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is a whole number in the range"
            )]
            is_count.then_some(number as u64)
        })
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = SmallVec::new();
                while let Some(key) = map.next_key()? {
                    let value = map.next_value()?;
                    if key != Key::Other {
                        members.push((key, value));
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
