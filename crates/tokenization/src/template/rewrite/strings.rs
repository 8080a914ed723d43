//! Strings of templates, as Python reads them and as the library does.

/// What Python reads from the inside of a string.
pub(super) enum Unescaped {
    Text(String),
    /// The string has an escape that names a character.
    Name,
    /// The string is not valid Unicode.
    Other,
}

/// Replaces the escapes of Python.
pub(super) fn unescape(inner: &str) -> Unescaped {
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        let Some(escape) = characters.next() else {
            return Unescaped::Other;
        };
        let mut coded = |digits: usize, radix: u32| {
            let rest = characters.as_str();
            let len = rest
                .chars()
                .take(digits)
                .take_while(|digit| digit.is_digit(radix))
                .count();
            let (code, after) = rest.split_at_checked(len)?;
            characters = after.chars();
            let code = u32::from_str_radix(code, radix).ok();
            code.and_then(char::from_u32).map(|code| (code, len))
        };
        let exact = |coded: Option<(char, usize)>, digits: usize| {
            coded
                .filter(|(_, len)| *len == digits)
                .map(|(code, _)| code)
        };
        let found = match escape {
            '\n' => continue,
            '\\' | '\'' | '"' => Some(escape),
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            'x' => exact(coded(2, 16), 2),
            'u' => exact(coded(4, 16), 4),
            'U' => exact(coded(8, 16), 8),
            'N' => return Unescaped::Name,
            '0'..='7' => {
                let first = escape.to_digit(8).unwrap_or_default();
                let rest = coded(2, 8);
                let code = match rest {
                    Some((code, len)) => first * if len == 1 { 8 } else { 64 } + u32::from(code),
                    None => first,
                };
                char::from_u32(code)
            }
            _ => {
                text.push('\\');
                Some(escape)
            }
        };
        match found {
            Some(found) => text.push(found),
            None => return Unescaped::Other,
        }
    }
    Unescaped::Text(text)
}

/// A string as the library reads it.
pub(super) fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            _ => literal.push(character),
        }
    }
    literal.push('"');
    literal
}
