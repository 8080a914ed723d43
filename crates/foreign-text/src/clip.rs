//! The beginning of a text, for logs and conditions.

/// Longest text from another party that becomes part of a log line or of a condition, in bytes. Errors of the API
/// server, of Envoy and of the YAML library are shorter unless they quote what a tenant wrote.
pub const MAX_MESSAGE: usize = 1024;

/// The beginning of a text that another party can make megabytes long: at most `max` bytes of a longer text, and no
/// fewer than `max - 3`. No character is cut.
#[must_use]
pub fn clipped(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clipped("short".to_owned(), 5), "short");
        assert_eq!(clipped("shorter".to_owned(), 5), "short");
        assert_eq!(clipped("äöü".to_owned(), 5), "äö");
    }
}
