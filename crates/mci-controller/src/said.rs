//! What another's server says, as far as it may stand in a log line, a condition or a page. Pure.

/// Longest message that is passed on, in characters: the API server's own are shorter, and a hostile one's is up to 2 MiB.
const MAX: usize = 256;

/// The beginning of a message.
pub(crate) fn clipped(message: &str) -> &str {
    let end = message.char_indices().nth(MAX).map(|(end, _)| end);
    end.and_then(|end| message.get(..end)).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(clipped("short"), "short");
        let fits = "\u{e4}".repeat(MAX);
        assert_eq!(clipped(&fits), fits);
        assert_eq!(clipped(&format!("{fits}x")), fits);
    }
}
