//! Methods of Python's types, where the library's own differ from them.

use minijinja::{
    Error, State, Value,
    filters::capitalize,
    formatting::{FormatStyle, format},
    value::{Kwargs, StringInput, Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{
    compare::pay_for_visits,
    invalid,
    objects::{Dict, Generator, List, Method, View},
    too_much, write_str,
    writer::{MAX_TEXT, Writer},
};

/// What a rewritten template puts before the name of an attribute that may be a method of `dict`.
pub(crate) const ATTRIBUTE: &str = "__python_";

/// Methods of `dict` that a template may see.
const READING: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];

/// Methods of `dict` that the sandbox hides, and the keys of these names with them.
const WRITING: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The largest width that is accepted in a format; published templates use far less.
const MAX_WIDTH: usize = 10_000;

/// Calls a method.
///
/// # Errors
/// When there is none of this name here, or it fails in Python too.
pub(crate) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(attribute) = name.strip_prefix(ATTRIBUTE) {
        return dict_attribute(value, attribute);
    }
    if let Some(text) = value.as_str() {
        return match (name, arguments) {
            ("title", []) => title(state, text).map(Value::from),
            ("strip", []) => Ok(text.trim_matches(is_space).into()),
            ("lstrip", []) => Ok(text.trim_start_matches(is_space).into()),
            ("rstrip", []) => Ok(text.trim_end_matches(is_space).into()),
            ("split", []) => Ok(list(text.split(is_space).filter(|word| !word.is_empty()))),
            ("splitlines", []) => Ok(list(split_lines(text).into_iter())),
            ("isspace", []) => Ok((!text.is_empty() && text.chars().all(is_space)).into()),
            ("join", [items]) => join(state, text, items),
            ("format", _) => formatted(state, text, arguments),
            ("replace", _) => {
                let (from, to, count): (&str, &str, Option<i64>) = from_args(arguments)?;
                replace(text, from, to, count).map(Value::from)
            }
            _ => unknown_method_callback(state, value, name, arguments),
        };
    }
    match (name, arguments, value.kind()) {
        ("items", [], ValueKind::Map) => {
            let pair = |key: Value| {
                let item = value.get_item(&key)?;
                Ok(Tuple::from(vec![key, item]).into())
            };
            let items: Result<_, Error> = value.try_iter()?.map(pair).collect();
            Ok(View::value("dict_items", items?))
        }
        ("keys", [], ValueKind::Map) => Ok(View::value("dict_keys", value.try_iter()?.collect())),
        ("values", [], ValueKind::Map) => {
            let values: Result<_, Error> =
                value.try_iter()?.map(|key| value.get_item(&key)).collect();
            Ok(View::value("dict_values", values?))
        }
        _ => {
            // to look an item up, or to count it, visits all of these
            for visited in arguments {
                pay_for_visits(visited, 1, state)?;
            }
            if name == "count" {
                pay_for_visits(value, 1, state)?;
            }
            unknown_method_callback(state, value, name, arguments)
        }
    }
}

/// `value.name`, which for an object of JSON is the method of this name before the key.
fn dict_attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if value.downcast_object_ref::<Dict>().is_none() {
        return value.get_attr(name);
    }
    Ok(if READING.contains(&name) {
        Value::from_object(Method)
    } else {
        Value::UNDEFINED
    })
}

/// Whether an attribute of this name may be a method of `dict`.
pub(crate) fn is_dict_method(name: &str) -> bool {
    READING.contains(&name) || WRITING.contains(&name)
}

/// Every letter that follows none is in title case, and all others are lower case.
///
/// # Errors
/// When the text is too long.
pub(crate) fn title(state: &State<'_, '_>, text: &str) -> Result<String, Error> {
    let mut after_letter = false;
    let mut titled = Writer::new(state);
    for character in text.chars() {
        if after_letter {
            for lower in character.to_lowercase() {
                titled.push(lower)?;
            }
        } else if character.is_ascii() {
            titled.push(character.to_ascii_uppercase())?;
        } else {
            let letter: Value = character.into();
            let letter = capitalize(StringInput::new(state, &letter)?);
            titled.push_str(letter.as_str().unwrap_or_default())?;
        }
        after_letter = character.is_alphabetic();
    }
    titled.finish()
}

/// `str.isspace` of one character: Unicode's white space, and the four separators of ASCII.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// `str.splitlines()`.
pub(crate) fn split_lines(text: &str) -> Vec<&str> {
    let ends = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((line, end)) = rest.find(ends).and_then(|at| rest.split_at_checked(at)) {
        lines.push(line);
        let mut after = end.chars();
        after.next();
        rest = end.strip_prefix("\r\n").unwrap_or(after.as_str());
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `text.replace(from, to, count)`.
///
/// # Errors
/// When the result is too long.
pub(crate) fn replace(
    text: &str,
    from: &str,
    to: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok());
    let most = most.unwrap_or(usize::MAX);
    if to.len() > from.len() {
        let found = text.matches(from).take(most).count();
        let more = found.saturating_mul(to.len().saturating_sub(from.len()));
        if text.len().saturating_add(more) > MAX_TEXT {
            return Err(too_much());
        }
    }
    Ok(text.replacen(from, to, most))
}

fn list<'a>(parts: impl Iterator<Item = &'a str>) -> Value {
    Value::from_object(List(parts.map(Value::from).collect()))
}

fn join(state: &State<'_, '_>, separator: &str, items: &Value) -> Result<Value, Error> {
    if items.is_none() {
        return Err(invalid("can only join an iterable"));
    }
    let mut out = Writer::new(state);
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(separator)?;
        }
        let text = item.as_str();
        out.push_str(text.ok_or_else(|| invalid("join takes strings alone"))?)?;
    }
    out.finish().map(Value::from)
}

/// `text.format(..)`: each field is at most as long as the longest argument or width.
fn formatted(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let width = widest(text);
    if width > MAX_WIDTH {
        return Err(too_much());
    }
    let (positional, kwargs): (&[Value], Kwargs) = from_args(arguments)?;
    let mut longest = width;
    let mut measure = |value: &Value| {
        if value.downcast_object_ref::<Generator>().is_some() {
            return Err(invalid("a generator has no text that stays the same"));
        }
        let mut out = Writer::new(state);
        write_str(value, &mut out)?;
        longest = longest.max(out.finish()?.len());
        Ok(())
    };
    for value in positional {
        measure(value)?;
    }
    for name in kwargs.args() {
        measure(&kwargs.peek::<Value>(name)?)?;
    }
    let fields = text.matches('{').count();
    if fields.saturating_mul(longest).saturating_add(text.len()) > MAX_TEXT {
        return Err(too_much());
    }
    format(FormatStyle::StrFormat, text, arguments).map(Value::from)
}

/// The largest number in a format.
fn widest(format: &str) -> usize {
    let numbers = format.split(|character: char| !character.is_ascii_digit());
    let numbers = numbers.filter(|digits| !digits.is_empty());
    numbers
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
        .max()
        .unwrap_or_default()
}
