//! The text of an answer, from parts that may repeat what came before.

use crate::error::Failure;

/// What a decoder writes for bytes that are no character yet.
const INCOMPLETE: char = '\u{FFFD}';

/// Makes the model's text of what a server sends.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// What the model read: a server may repeat it before the answer.
    input: String,
    /// Bytes of the input that have been repeated so far; `None`: it is decided whether it repeats the input.
    repeated: Option<usize>,
    /// Of a server that sends all text so far: what of it has been passed on.
    so_far: Option<String>,
    /// What was behind it, and may still become another character.
    unsure: String,
}

// === impl Text ===

impl Text {
    /// For a server that may repeat `input`. `cumulative`: each part is all text so far.
    pub(super) fn new(input: String, cumulative: bool) -> Self {
        Self {
            repeated: (!input.is_empty()).then_some(0),
            input,
            so_far: cumulative.then(String::new),
            unsure: String::new(),
        }
    }

    /// The new text of a part.
    ///
    /// # Errors
    /// [`Failure::Broken`] when text that was passed on is not in it any more.
    pub(super) fn add(&mut self, part: &str) -> Result<String, Failure> {
        let Some(so_far) = &mut self.so_far else {
            return Ok(self.cut(part));
        };
        let sure = part.trim_end_matches(INCOMPLETE);
        // A last part may be without text.
        if part.is_empty() {
            return Ok(String::new());
        }
        let Some(new) = sure.strip_prefix(so_far.as_str()) else {
            let problem =
                "an event has not all text of the events before: set stream_output to delta";
            return Err(Failure::Broken(problem.to_owned()));
        };
        so_far.push_str(new);
        part.get(sure.len()..)
            .unwrap_or_default()
            .clone_into(&mut self.unsure);
        Ok(self.cut(new))
    }

    /// What was held back; nothing follows.
    pub(super) fn finish(&mut self) -> String {
        let unsure = std::mem::take(&mut self.unsure);
        let mut text = self.cut(&unsure);
        if let Some(repeated) = self.repeated.take() {
            text.insert_str(0, self.input.get(..repeated).unwrap_or_default());
        }
        text
    }

    /// What of `text` is no repetition of the input.
    fn cut(&mut self, text: &str) -> String {
        let Some(repeated) = self.repeated else {
            return text.to_owned();
        };
        let (before, rest) = self.input.split_at_checked(repeated).unwrap_or(("", ""));
        if let Some(answer) = text.strip_prefix(rest) {
            self.forget_input();
            return answer.to_owned();
        }
        if rest.starts_with(text) {
            self.repeated = Some(repeated.saturating_add(text.len()));
            return String::new();
        }
        let text = format!("{before}{text}");
        self.forget_input();
        text
    }

    /// It is decided: a long prompt need not stay in memory while the answer comes.
    fn forget_input(&mut self) {
        self.repeated = None;
        self.input = String::new();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// What clients get of the parts.
    fn run<'a>(
        mut text: Text,
        parts: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, Failure> {
        let mut out = String::new();
        for part in parts {
            out.push_str(&text.add(part)?);
        }
        out.push_str(&text.finish());
        Ok(out)
    }

    #[rstest]
    #[case(&["user: Hi\nassistant:", " Hello"], " Hello")]
    #[case(&["user: ", "Hi\nassistant: He", "llo"], " Hello")]
    #[case(&["user: ", "Hello"], "user: Hello")]
    #[case(&["user: "], "user: ")]
    #[case(&["Hello", "user: Hi\nassistant:"], "Hellouser: Hi\nassistant:")]
    #[case(&["user: Hi\nassistant:user: Hi\nassistant:"], "user: Hi\nassistant:")]
    fn one_leading_copy_of_the_input_is_cut(#[case] parts: &[&str], #[case] text: &str) {
        let cutter = Text::new("user: Hi\nassistant:".to_owned(), false);
        assert_eq!(run(cutter, parts.iter().copied()), Ok(text.to_owned()));
    }

    #[test]
    fn cumulative_text_may_change_only_where_it_is_no_character_yet() {
        let parts = [
            "in",
            "in a",
            "in a\u{FFFD}\u{FFFD}",
            "in aé",
            "in aé\u{FFFD}",
            "",
        ];
        let mut text = Text::new("in".to_owned(), true);
        let sent: Vec<_> = parts.iter().map(|part| text.add(part).unwrap()).collect();
        assert_eq!(sent, ["", " a", "", "é", "", ""]);
        assert_eq!(text.finish(), "\u{FFFD}");
        let error = text.add("another").expect_err("refused").to_string();
        assert!(error.contains("set stream_output to delta"), "{error}");
    }

    proptest! {
        #[test]
        fn delta_and_cumulative_text_are_the_same(
            input in "[ab]{0,4}",
            answer in "[abc]{0,8}",
            repeats: bool,
            cuts in prop::collection::vec(0usize..12, 0..4),
        ) {
            let all = if repeats { format!("{input}{answer}") } else { format!("c{answer}") };
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let deltas = cuts.windows(2).map(|pair| all.get(pair[0]..pair[1]).unwrap());
            let cumulative = cuts.iter().map(|end| all.get(..*end).unwrap());
            let wanted = if repeats { answer.clone() } else { all.clone() };
            prop_assert_eq!(run(Text::new(input.clone(), false), deltas), Ok(wanted.clone()));
            prop_assert_eq!(run(Text::new(input, true), cumulative), Ok(wanted));
        }
    }
}
