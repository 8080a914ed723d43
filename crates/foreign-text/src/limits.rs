//! Limits for the size of a document.

use crate::error::YamlError;

/// Open brackets at any place of a text. The library's scanner looks at all of them for each token: 40,000 took it 18 s. The
/// library reads no deeper than this; real files have fewer than ten.
const MAX_BRACKETS: usize = 128;

/// How large a document may be, as text and once each alias is replaced by what it stands for. Depth is always bounded, by
/// 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text.
    pub text: usize,
    /// Bytes of all keys and scalars together, those that aliases repeat included.
    pub expanded: usize,
    /// Maps, lists and scalars together, those that aliases repeat included; keys are not counted.
    pub values: usize,
}

// === impl Limits ===

impl Limits {
    /// Limits for a text of at most so many bytes, with room for aliases that double it. A value of real files takes 10 bytes
    /// or more; the limit of values is one for each 4.
    #[must_use]
    pub const fn of_text(bytes: usize) -> Self {
        Self {
            text: bytes,
            expanded: 2 * bytes,
            values: bytes / 4,
        }
    }

    /// Returns the text if it may be given to the library.
    pub(crate) fn check(self, text: &[u8]) -> Result<&str, YamlError> {
        if text.len() > self.text {
            return Err(YamlError::new(format!(
                "it has {} bytes, more than {}",
                text.len(),
                self.text
            )));
        }
        let text = std::str::from_utf8(text)
            .map_err(|error| YamlError::new(format!("it is not UTF-8: {error}")))?;
        if deepest(text) > MAX_BRACKETS {
            return Err(YamlError::new(format!(
                "it has more than {MAX_BRACKETS} brackets within each other"
            )));
        }
        Ok(text)
    }
}

/// Most brackets within each other; those in texts and comments count too, which no real file has many of.
fn deepest(text: &str) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}
