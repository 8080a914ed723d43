//! What a reader of the file found: things that are refused, and things that have no effect.

use std::{
    borrow::Cow,
    cell::RefCell,
    fmt::{self, Display},
};

use foreign_text::Lines;

use super::read::LIMITS;

/// As many refusals are written out; the others are counted.
const MAX_WRITTEN: usize = 10;

/// As many things without effect are kept: each becomes a log line and a label value.
const MAX_IGNORED: usize = 100;

/// As many words are listed in a message.
const MAX_LISTED: usize = 20;

/// Where all are.
const DOCS: &str = "docs/epp-config.md";

/// Characters of a place or a text in a message; a file can make them long.
const MAX_LENGTH: usize = 200;

/// No name of ours is longer; a longer word is compared by its beginning.
const MAX_COMPARED: usize = 64;

/// Something in the file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}: expected {expected}, for example {example}", self.place())]
pub struct Refusal {
    /// Where it is, such as `plugins[3].parameters.threshold`.
    pub item: String,
    /// Its line in the file, counted from 1, where that is known; of what is missing the line of what it is missing in.
    pub line: Option<usize>,
    /// What is wrong with it.
    pub problem: String,
    /// What could stand there.
    pub expected: String,
    /// One such thing.
    pub example: String,
}

/// All that cannot be used in a file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals {
    found: Vec<Refusal>,
    others: usize,
}

/// Something in the file that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Where it is, such as `dataLayer.injectDefaults`.
    pub item: String,
    /// Why it has none.
    pub why: String,
}

/// How strictly a file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Compat {
    /// Unknown types of plugins and unknown fields are refused.
    #[default]
    Strict,
    /// They are ignored with a warning.
    Lenient,
}

/// Collects while a file is read, so that one reading names everything.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    compat: Compat,
    refusals: RefCell<Vec<Refusal>>,
    others: RefCell<usize>,
    ignored: RefCell<Vec<Ignored>>,
}

// === impl Refusal ===

impl Refusal {
    /// Where it is, for people: `plugins[3].type (line 7)`.
    pub fn place(&self) -> Cow<'_, str> {
        match self.line {
            Some(line) => format!("{} (line {line})", self.item).into(),
            None => self.item.as_str().into(),
        }
    }
}

// === impl Refusals ===

impl Refusals {
    /// Finds each in the text that was read.
    #[must_use]
    pub(crate) fn located_in(mut self, text: &str) -> Self {
        let lines = Lines::of(text, LIMITS);
        for refusal in &mut self.found {
            refusal.line = lines
                .as_ref()
                .and_then(|lines| lines.of_item(&refusal.item));
        }
        self
    }

    /// Each, in the order of the file's parts; of very many the first.
    pub fn found(&self) -> &[Refusal] {
        &self.found
    }
}

impl From<Refusal> for Refusals {
    fn from(refusal: Refusal) -> Self {
        Self {
            found: vec![refusal],
            others: 0,
        }
    }
}

impl Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, refusal) in self.found.iter().enumerate() {
            let separator = if nth == 0 { "" } else { "; " };
            write!(f, "{separator}{refusal}")?;
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, "; and {others} more"),
        }
    }
}

impl std::error::Error for Refusals {}

// === impl Findings ===

impl Findings {
    pub(crate) fn new(compat: Compat) -> Self {
        Self {
            compat,
            ..Self::default()
        }
    }

    pub(crate) fn refuse(
        &self,
        item: impl Into<String>,
        problem: impl Into<String>,
        expected: impl Into<String>,
        example: impl Into<String>,
    ) {
        let refusal = Refusal {
            item: shorten(item.into()),
            line: None,
            problem: shorten(problem.into()),
            expected: expected.into(),
            example: example.into(),
        };
        let mut refusals = self.refusals.borrow_mut();
        if refusals.len() < MAX_WRITTEN {
            refusals.push(refusal);
        } else {
            *self.others.borrow_mut() += 1;
        }
    }

    pub(crate) fn ignore(&self, item: impl Into<String>, why: impl Into<String>) {
        let mut ignored = self.ignored.borrow_mut();
        if ignored.len() < MAX_IGNORED {
            ignored.push(Ignored {
                item: shorten(item.into()),
                why: shorten(why.into()),
            });
        }
    }

    /// A word that this EPP does not know, where it knows `known`: refused, or ignored if the reading is lenient.
    pub(crate) fn unknown(&self, item: String, what: &str, word: &str, known: &[&str]) {
        if self.compat == Compat::Lenient {
            return self.ignore(item, format!("{what} is not supported"));
        }
        let nearest = nearest(word, known).unwrap_or("{}");
        let expected = match known {
            [] => "nothing here".to_owned(),
            known if known.len() > MAX_LISTED => format!("one of the {} in {DOCS}", known.len()),
            known => format!("one of {}", known.join(", ")),
        };
        self.refuse(item, format!("{what} is not supported"), expected, nearest);
    }

    /// What has no effect.
    ///
    /// # Errors
    /// [`Refusals`] if anything was refused.
    pub(crate) fn into_result(self) -> Result<Vec<Ignored>, Refusals> {
        let (found, others) = (self.refusals.into_inner(), self.others.into_inner());
        if found.is_empty() {
            Ok(self.ignored.into_inner())
        } else {
            Err(Refusals { found, others })
        }
    }
}

/// The word of `known` that has all parts of `word` or the other way round, else the one that takes the fewest edits; of
/// equally near ones the first.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let letters = comparable(word);
    let distance = |other: &&&str| {
        let part = is_part(word, other) || is_part(other, word);
        (!part, edits(&letters, &comparable(other)))
    };
    known.iter().min_by_key(distance).copied()
}

/// `kv-cache-scorer` is a part of `kv-cache-utilization-scorer`.
fn is_part(word: &str, of: &str) -> bool {
    let has = |part: &str| of.split('-').any(|other| other == part);
    !word.is_empty() && (of.contains(word) || word.split('-').all(has))
}

fn shorten(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_LENGTH) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn comparable(word: &str) -> Vec<char> {
    word.chars()
        .take(MAX_COMPARED)
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

/// Levenshtein's distance: letters to insert, remove or replace.
fn edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (nth, letter) in from.iter().enumerate() {
        let mut diagonal = nth;
        let mut left = nth + 1;
        for (cell, other) in row.iter_mut().skip(1).zip(to) {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = nth + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "", 0)]
    #[case("queue", "queue", 0)]
    #[case("", "abc", 3)]
    #[case("abc", "", 3)]
    #[case("kitten", "sitting", 3)]
    #[case("flaw", "lawn", 2)]
    fn edits_are_counted(#[case] from: &str, #[case] to: &str, #[case] want: usize) {
        assert_eq!(edits(&comparable(from), &comparable(to)), want);
    }

    #[test]
    fn the_nearest_word_is_found_whatever_its_case() {
        let known = ["queueDepthThreshold", "kvCacheUtilThreshold", "headroom"];
        assert_eq!(
            nearest("queuedepththreshhold", &known),
            Some("queueDepthThreshold")
        );
        assert_eq!(nearest("headRoom", &known), Some("headroom"));
        let types = ["session-affinity-scorer", "queue-scorer"];
        assert_eq!(
            nearest("multicluster-queue-scorer", &types),
            Some("queue-scorer"),
            "a part of it, though more edits away"
        );
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn very_many_refusals_are_counted_not_written() {
        let findings = Findings::new(Compat::Strict);
        for nth in 0..MAX_WRITTEN + 3 {
            findings.unknown(format!("field{nth}"), "this field", "x", &["y"]);
        }
        let refusals = findings.into_result().expect_err("refused");
        assert_eq!(refusals.found().len(), MAX_WRITTEN);
        assert!(refusals.to_string().ends_with("; and 3 more"), "{refusals}");
    }
}
