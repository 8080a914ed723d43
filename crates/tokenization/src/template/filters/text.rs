//! Filters that write text.

use std::borrow::Cow;

use minijinja::{
    Environment, Error, State, Value, filters,
    value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args},
};

use crate::{
    python::{self, Writer, invalid, is_space, split_lines, too_much, write_str},
    template::rewrite::CONCAT,
};

/// The widest indentation that is accepted; published templates use far less.
const MAX_INDENT: usize = 1000;

/// Registers the filters that write text.
pub(super) fn register(env: &mut Environment<'_>) {
    env.add_function(CONCAT, concat);
    env.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        soft_str(state, value)
    });
    env.add_filter("join", join);
    env.add_filter("upper", |state: &State<'_, '_>, value: &Value| {
        on_text(state, value, str::to_uppercase)
    });
    env.add_filter("lower", |state: &State<'_, '_>, value: &Value| {
        on_text(state, value, str::to_lowercase)
    });
    env.add_filter("capitalize", |state: &State<'_, '_>, value: &Value| {
        let text = soft_str(state, value)?;
        Ok::<_, Error>(filters::capitalize(StringInput::new(state, &text)?))
    });
    env.add_filter("title", |state: &State<'_, '_>, value: &Value| {
        let text = soft_str(state, value)?;
        title(state, text.as_str().unwrap_or_default())
    });
    env.add_filter("trim", trim);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("format", format);
    env.add_filter("safe", |state: &State<'_, '_>, value: &Value| {
        python::str(value, state).map(Value::from_safe_string)
    });
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
}

/// The value itself if it is a string, else its text.
fn soft_str(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    python::str(value, state).map(Value::from)
}

fn on_text(
    state: &State<'_, '_>,
    value: &Value,
    change: impl FnOnce(&str) -> String,
) -> Result<Value, Error> {
    let text = soft_str(state, value)?;
    Ok(change(text.as_str().unwrap_or_default()).into())
}

/// The first letter of each word in upper case, and all others in lower case.
fn title(state: &State<'_, '_>, text: &str) -> Result<String, Error> {
    let mut out = Writer::new(state);
    let mut begins = true;
    for character in text.chars() {
        if is_space(character) || matches!(character, '-' | '(' | '{' | '[' | '<') {
            begins = true;
            out.push(character)?;
        } else if std::mem::replace(&mut begins, false) {
            for upper in character.to_uppercase() {
                out.push(upper)?;
            }
        } else {
            for lower in character.to_lowercase() {
                out.push(lower)?;
            }
        }
    }
    out.finish()
}

/// The result of `~` for these operands.
fn concat(state: &State<'_, '_>, values: Rest<Value>) -> Result<String, Error> {
    let mut out = Writer::new(state);
    for value in values.iter() {
        write_str(value, &mut out)?;
    }
    out.finish()
}

fn join(
    state: &State<'_, '_>,
    value: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let named = |positional: Option<Value>, name: &str| match positional {
        Some(value) => Ok(Some(value)),
        None => kwargs.get::<Option<Value>>(name),
    };
    let separator = named(separator, "d")?;
    let attribute = named(attribute, "attribute")?;
    kwargs.assert_all_used()?;
    if value.is_none() {
        return Err(invalid("none cannot be joined"));
    }
    let mut out = Writer::new(state);
    for (index, item) in value.try_iter()?.enumerate() {
        if let Some(separator) = separator.as_ref().filter(|_| index > 0) {
            write_str(separator, &mut out)?;
        }
        match attribute.as_ref().filter(|attribute| !attribute.is_none()) {
            None => write_str(&item, &mut out)?,
            Some(attribute) => {
                write_str(&at_path(item, attribute)?, &mut out)?;
            }
        }
    }
    out.finish()
}

/// The item under a key, or under the keys that a text names between dots.
fn at_path(item: Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else {
        return item.get_item(attribute);
    };
    path.split('.').try_fold(item, |item, part| {
        let key = match part.parse::<usize>() {
            Ok(index) => index.into(),
            Err(_) => part.into(),
        };
        item.get_item(&key)
    })
}

fn trim(
    state: &State<'_, '_>,
    value: &Value,
    characters: Option<Cow<'_, str>>,
) -> Result<Value, Error> {
    on_text(state, value, |text| {
        let trimmed = match &characters {
            Some(characters) => text.trim_matches(|found| characters.contains(found)),
            None => text.trim_matches(is_space),
        };
        trimmed.to_owned()
    })
}

fn replace(
    state: &State<'_, '_>,
    value: &Value,
    from: &Value,
    to: &Value,
    count: Option<i64>,
) -> Result<String, Error> {
    let text = python::str(value, state)?;
    let (from, to) = (python::str(from, state)?, python::str(to, state)?);
    python::replace(&text, &from, &to, count)
}

/// Indents all lines except the first one and the empty ones.
fn indent(
    state: &State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (width, first, blank, kwargs): (Option<Value>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&arguments)?;
    let width = match width {
        Some(width) => Some(width),
        None => kwargs.get("width")?,
    };
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match width {
        None => " ".repeat(4),
        Some(width) if width.as_str().is_some() => width.to_string(),
        Some(width) => {
            let width = usize::try_from(width).unwrap_or_default();
            if width > MAX_INDENT {
                return Err(too_much());
            }
            " ".repeat(width)
        }
    };
    let text = value.as_str();
    let text = text
        .ok_or_else(|| invalid("only text is indented"))?
        .to_owned()
        + "\n";
    let mut out = Writer::new(state);
    for (index, line) in split_lines(&text).into_iter().enumerate() {
        if index > 0 {
            out.push('\n')?;
        }
        let indents = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indents {
            out.push_str(&indention)?;
        }
        out.push_str(line)?;
    }
    out.finish()
}

/// `"%s"|format(..)`.
fn format(
    state: &mut State<'_, '_>,
    format: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let quotes = format.as_str().is_some_and(|format| {
        let mut conversions = format.split('%').skip(1);
        conversions.any(|conversion| {
            conversion
                .trim_start_matches(|flag: char| !flag.is_ascii_alphabetic())
                .starts_with(['r', 'a'])
        })
    });
    let mut texts = Vec::with_capacity(arguments.len());
    for value in arguments.into_values() {
        let is_list = matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
        );
        if is_list && !value.is_kwargs() {
            if quotes {
                return Err(invalid("a list in %r"));
            }
            texts.push(python::str(&value, state)?.into());
        } else {
            texts.push(value);
        }
    }
    filters::format(
        state,
        format,
        Rest(texts.into_iter().map(Into::into).collect()),
    )
}

/// The text with HTML's special characters escaped; it is not escaped again.
fn escape(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = soft_str(state, value)?;
    let mut out = Writer::new(state);
    for character in text.as_str().unwrap_or_default().chars() {
        match character {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '\'' => out.push_str("&#39;")?,
            '"' => out.push_str("&#34;")?,
            _ => out.push(character)?,
        }
    }
    out.finish().map(Value::from_safe_string)
}
