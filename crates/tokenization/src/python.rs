//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Enumerator, Kwargs, Object, ObjectExt, ObjectRepr, Tuple, ValueKind},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::json::Map;

/// Nesting that is written at most; the values of a request have 128 levels at most.
const MAX_DEPTH: usize = 200;

/// A list of a request: it prints as in Python wherever it is made a string.
#[derive(Debug)]
pub(crate) struct List(pub(crate) Vec<Value>);

/// An object of a request, likewise.
#[derive(Debug)]
pub(crate) struct Dict(pub(crate) Map);

/// `str(value)`.
pub(crate) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Map | ValueKind::Seq => {
            let mut text = String::new();
            write_repr(value, &mut text, 0);
            text
        }
        _ => value.to_string(),
    }
}

/// The shortest digits that read back, with Python's exponents.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let mut text = value.to_string();
        if !text.contains('.') {
            text.push_str(".0");
        }
        return text;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Whether Python writes it, or a number in it, with an exponent.
pub(crate) fn has_exponent(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => !value.is_integer() && number(value).contains('e'),
        ValueKind::Seq => value
            .try_iter()
            .into_iter()
            .flatten()
            .any(|item| has_exponent(&item)),
        ValueKind::Map => {
            let mut keys = value.try_iter().into_iter().flatten();
            keys.any(|key| value.get_item(&key).is_ok_and(|item| has_exponent(&item)))
        }
        _ => false,
    }
}

/// Methods of Python's types.
pub(crate) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), name, arguments) {
        (Some(text), "title", []) => Ok(title(text).into()),
        _ => unknown_method_callback(state, value, name, arguments),
    }
}

/// Every letter that follows none is upper case, and all others lower.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut titled = String::with_capacity(text.len());
    for character in text.chars() {
        if after_letter {
            titled.extend(character.to_lowercase());
        } else {
            titled.extend(character.to_uppercase());
        }
        after_letter = character.is_alphabetic();
    }
    titled
}

fn write_repr(value: &Value, text: &mut String, depth: usize) {
    if depth > MAX_DEPTH {
        text.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Number => text.push_str(&number(value)),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), text),
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            text.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                write_repr(&item, text, depth + 1);
                count += 1;
            }
            if tuple && count == 1 {
                text.push(',');
            }
            text.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            text.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                write_repr(&key, text, depth + 1);
                text.push_str(": ");
                let item = value.get_item(&key).unwrap_or_default();
                write_repr(&item, text, depth + 1);
            }
            text.push('}');
        }
        ValueKind::Undefined => text.push_str("Undefined"),
        _ => {
            let _ = write!(text, "{value:?}");
        }
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

fn write_quoted(value: &str, text: &mut String) {
    let quote = if value.contains('\'') && !value.contains('"') {
        '"'
    } else {
        '\''
    };
    text.push(quote);
    for character in value.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            _ if character == quote => {
                text.push('\\');
                text.push(quote);
            }
            _ if is_printable(character) => text.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(text, "\\x{code:02x}"),
                    0x100..=0xffff => write!(text, "\\u{code:04x}"),
                    _ => write!(text, "\\U{code:08x}"),
                };
            }
        }
    }
    text.push(quote);
}

/// What Rust does not escape after another character is what Python calls printable.
fn is_printable(character: char) -> bool {
    let mut buffer = ['a', character].iter().collect::<String>();
    if matches!(character, '\'' | '"') {
        return true;
    }
    let len = buffer.len();
    buffer = buffer.escape_debug().to_string();
    buffer.len() == len
}

/// How `json.dumps` writes, by its arguments.
#[derive(Debug)]
pub(crate) struct Dumps {
    ensure_ascii: bool,
    /// Of each level.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

// === impl List ===

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&str(&Value::from_dyn_object(self.clone())))
    }
}

// === impl Dict ===

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_enumerator(|this| Box::new(this.0.keys().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&str(&Value::from_dyn_object(self.clone())))
    }
}

// === impl Dumps ===

impl Dumps {
    /// The arguments of the filter that templates call.
    pub(crate) fn new(
        ensure_ascii: Option<Value>,
        indent: Option<Value>,
        kwargs: &Kwargs,
    ) -> Result<Self, Error> {
        let argument = |name: &str, positional: Option<Value>| match positional {
            Some(value) => Ok(Some(value)),
            None => kwargs.get::<Option<Value>>(name),
        };
        let indent = argument("indent", indent)?.filter(|indent| !indent.is_none());
        let indent = match indent {
            None => None,
            Some(indent) => match indent.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(u8::try_from(indent)?.into())),
            },
        };
        let separators = kwargs.get::<Option<Value>>("separators")?;
        let separators = separators.filter(|separators| !separators.is_none());
        let (item_separator, key_separator) = match separators {
            Some(pair) => {
                let at = |index: usize| {
                    let part = pair.get_item(&index.into())?;
                    let text = part.as_str().map(str::to_owned);
                    text.ok_or_else(|| invalid("separators must be two strings"))
                };
                (at(0)?, at(1)?)
            }
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        let ensure_ascii = argument("ensure_ascii", ensure_ascii)?;
        let sort_keys = kwargs.get::<Option<Value>>("sort_keys")?;
        kwargs.assert_all_used()?;
        Ok(Self {
            ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
            indent,
            item_separator,
            key_separator,
            sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        })
    }

    /// `json.dumps(value)`.
    pub(crate) fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut text = String::new();
        self.write(value, &mut text, 0)?;
        Ok(text)
    }

    fn write(&self, value: &Value, text: &mut String, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("the value is nested too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&json_number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), text),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all('[', &items, ']', text, depth, |item, text| {
                    self.write(item, text, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_all('{', &keys, '}', text, depth, |key, text| {
                    self.write_string(&json_key(key)?, text);
                    text.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, text, depth + 1)
                })?;
            }
            kind => {
                return Err(invalid(&format!(
                    "a value of kind {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn write_all(
        &self,
        open: char,
        items: &[Value],
        close: char,
        text: &mut String,
        depth: usize,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                text.push_str(&self.item_separator);
            }
            self.break_line(text, depth + 1);
            write(item, text)?;
        }
        if !items.is_empty() {
            self.break_line(text, depth);
        }
        text.push(close);
        Ok(())
    }

    fn break_line(&self, text: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            for _ in 0..depth {
                text.push_str(indent);
            }
        }
    }

    fn write_string(&self, value: &str, text: &mut String) {
        text.push('"');
        for character in value.chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                '\0'..' ' => {
                    let _ = write!(text, "\\u{:04x}", u32::from(character));
                }
                _ if self.ensure_ascii && !(' '..='~').contains(&character) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                _ => text.push(character),
            }
        }
        text.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        text => text.to_owned(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => json_number(key),
        kind => {
            return Err(invalid(&format!(
                "keys of JSON are strings, not of kind {kind}"
            )));
        }
    })
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(1e5, "100000.0")]
    #[case(1e15, "1000000000000000.0")]
    #[case(1e16, "1e+16")]
    #[case(1.5e-4, "0.00015")]
    #[case(1e-5, "1e-05")]
    #[case(-1.25e-10, "-1.25e-10")]
    #[case(1e100, "1e+100")]
    #[case(0.1, "0.1")]
    #[case(-0.0, "-0.0")]
    #[case(f64::INFINITY, "inf")]
    fn floats_are_written_as_python_does(#[case] value: f64, #[case] expected: &str) {
        assert_eq!(float(value), expected);
    }

    #[rstest]
    #[case("it's", "\"it's\"")]
    #[case("\"it's\"", "'\"it\\'s\"'")]
    #[case(
        "a\u{301}é\u{a0}\u{200b}\u{7f}\u{10ffff}",
        "'a\u{301}é\\xa0\\u200b\\x7f\\U0010ffff'"
    )]
    #[case("tab\tback\\", "'tab\\tback\\\\'")]
    fn strings_are_quoted_as_python_does(#[case] value: &str, #[case] expected: &str) {
        let list: Value = [value.to_owned()].into_iter().collect();
        assert_eq!(str(&list), format!("[{expected}]"));
    }

    #[test]
    fn tuples_have_parentheses() {
        let env = minijinja::Environment::new();
        let tuple = |source: &str| str(&env.compile_expression(source).unwrap().eval(()).unwrap());
        assert_eq!(tuple("(1, 'a')"), "(1, 'a')");
        assert_eq!(tuple("(1.0,)"), "(1.0,)");
    }
}
