//! Texts of others, shortened for log lines, conditions and pages. Pure.

/// Longest message of a server that is passed on, in characters: the API server's own are shorter, and a hostile one's is
/// up to 2 MiB.
pub const MAX_MESSAGE: usize = 256;

/// The beginning of a text, of at most `max` characters.
pub fn clipped(text: &str, max: usize) -> &str {
    let end = text.char_indices().nth(max).map(|(end, _)| end);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clipped("short", 5), "short");
        let fits = "\u{e4}".repeat(MAX_MESSAGE);
        assert_eq!(clipped(&fits, MAX_MESSAGE), fits);
        assert_eq!(clipped(&format!("{fits}x"), MAX_MESSAGE), fits);
    }
}
