//! Messages as one text.

use crate::backend::ChatTemplate;

// === impl ChatTemplate ===

impl ChatTemplate {
    /// The text that a model continues with its answer to messages, each a role and a text.
    pub(crate) fn render<'a>(
        self,
        messages: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> String {
        let mut text = String::new();
        for (role, content) in messages {
            match self {
                Self::Plain => text.extend([role, ": ", content, "\n"]),
                Self::ChatMl => {
                    text.extend(["<|im_start|>", role, "\n", content, "<|im_end|>\n"]);
                }
            }
        }
        text.push_str(match self {
            Self::Plain => "assistant:",
            Self::ChatMl => "<|im_start|>assistant\n",
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(ChatTemplate::Plain, "system: Be brief.\nuser: Hi\nassistant:")]
    #[case(
        ChatTemplate::ChatMl,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )]
    fn messages_end_where_the_answer_begins(#[case] template: ChatTemplate, #[case] text: &str) {
        let messages = [("system", "Be brief."), ("user", "Hi")];
        assert_eq!(template.render(messages), text);
    }
}
