//! Text that others wrote: what may become part of a name, and how the rest is shown in messages for users.

use std::fmt::Write as _;

/// How many characters of one value are shown. Longer Kubernetes names are rare, and their beginning identifies them.
const SHOWN: usize = 100;

/// The text in double quotes. What a terminal would act on, or a reader would not see, is escaped as in JSON.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown = String::from('"');
    let mut rest = text.chars();
    for c in rest.by_ref().take(SHOWN) {
        match c {
            '"' | '\\' => shown.extend(['\\', c]),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            _ if c.is_control() || is_invisible(c) => {
                // Writing to a String does not fail.
                let _ = write!(shown, "\\u{:04x}", u32::from(c));
            }
            _ => shown.push(c),
        }
    }
    if rest.next().is_some() {
        shown.push('…');
    }
    shown.push('"');
    shown
}

/// Whether the text is a label as RFC 1123 has them in Kubernetes, such as a cluster's name: 1 to 63 lower case letters,
/// digits and `-`, which is not at the ends.
pub(crate) fn is_label(text: &str) -> bool {
    let part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(part)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Characters that have no shape of their own, or change the direction of what follows.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual("x-a", r#""x-a""#)]
    #[case::empty("", r#""""#)]
    #[case::letters("é", r#""é""#)]
    #[case::quotes(r#"a"b\c"#, r#""a\"b\\c""#)]
    #[case::lines("a\r\n\tb", r#""a\r\n\tb""#)]
    #[case::escapes("\0\u{1b}[31m", r#""\u0000\u001b[31m""#)]
    #[case::direction("a\u{202e}b", r#""a\u202eb""#)]
    fn text_is_quoted_as_in_json(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(quoted(text), shown);
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(quoted(&"é".repeat(SHOWN)).chars().count(), SHOWN + 2);
        let cut = quoted(&"é".repeat(SHOWN + 1));
        assert!(cut.ends_with("é…\""), "{cut}");
        assert_eq!(cut.chars().count(), SHOWN + 3);
    }
}
