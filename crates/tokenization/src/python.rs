//! Values as Python has and writes them: `str`, `repr`, `json.dumps`, and the methods of its types.
//!
//! Each text is written into a [`Writer`], which has a limit and is paid for by the fuel of the rendering: a value that
//! a client or a template makes large costs no more than that.

mod compare;
mod json;
mod methods;
mod objects;
mod writer;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Tuple, ValueKind},
};

pub(crate) use compare::{compare, pay_for_visits};
pub(crate) use json::Dumps;
pub(crate) use methods::{ATTRIBUTE, is_dict_method, is_space, method, replace, split_lines};
pub(crate) use objects::{Dict, Generator, List};
pub(crate) use writer::{MAX_TEXT, Payer, Unpaid, Writer, check_built, too_much};

use objects::View;
use writer::{MAX_DEPTH, too_deep};

/// `str(value)`.
///
/// # Errors
/// When the text is too long or cannot be paid for, or Python's text of the value differs from run to run.
pub(crate) fn str(value: &Value, payer: &dyn Payer) -> Result<String, Error> {
    let mut out = Writer::new(payer);
    write_str(value, &mut out)?;
    out.finish()
}

/// The beginning of `str(value)`, for a message.
///
/// # Errors
/// As [`str()`], but a text that is too long is cut.
pub(crate) fn str_cut(value: &Value, payer: &dyn Payer, limit: usize) -> Result<String, Error> {
    let mut out = Writer::with_limit(payer, limit);
    let written = write_str(value, &mut out);
    out.finish_cut(written)
}

/// Writes `str(value)`.
///
/// # Errors
/// The same errors as those of [`str()`].
pub(crate) fn write_str(value: &Value, out: &mut Writer<'_>) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => Ok(()),
        _ => write_repr(value, out, 0),
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

fn write_repr(value: &Value, out: &mut Writer<'_>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Seq => write_items(value, out, depth),
        ValueKind::Iterable => {
            if value.downcast_object_ref::<Generator>().is_some() {
                return Err(invalid("a generator has no text that stays the same"));
            }
            match value.downcast_object_ref::<View>() {
                Some(view) => {
                    out.push_str(view.name)?;
                    out.push('(')?;
                    write_items(value, out, depth)?;
                    out.push(')')
                }
                None => write_items(value, out, depth),
            }
        }
        ValueKind::Map => {
            out.push('{')?;
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ")?;
                }
                write_repr(&key, out, depth + 1)?;
                out.push_str(": ")?;
                write_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}')
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        kind => Err(invalid(&format!(
            "a value of kind {kind} has no text that stays the same"
        ))),
    }
}

fn write_items(value: &Value, out: &mut Writer<'_>, depth: usize) -> Result<(), Error> {
    let tuple = value.downcast_object_ref::<Tuple>().is_some();
    out.push(if tuple { '(' } else { '[' })?;
    let mut count = 0;
    for item in value.try_iter()? {
        if count > 0 {
            out.push_str(", ")?;
        }
        write_repr(&item, out, depth + 1)?;
        count += 1;
    }
    if tuple && count == 1 {
        out.push(',')?;
    }
    out.push(if tuple { ')' } else { ']' })
}

/// Whether it has items in an order: a list, a tuple, or what can be gone through.
fn is_sequence_kind(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Whether what can be gone through is a list in Python, such as a slice or a repetition: neither a generator nor a view
/// of an object.
pub(crate) fn is_list(value: &Value) -> bool {
    value.downcast_object_ref::<Generator>().is_none()
        && value.downcast_object_ref::<View>().is_none()
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

fn write_quoted(value: &str, out: &mut Writer<'_>) -> Result<(), Error> {
    let quote = if value.contains('\'') && !value.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote)?;
    for character in value.chars() {
        match character {
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            '\\' => out.push_str("\\\\")?,
            _ if character == quote => {
                out.push('\\')?;
                out.push(quote)?;
            }
            _ if is_printable(character) => out.push(character)?,
            _ => {
                let code = u32::from(character);
                out.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                })?;
            }
        }
    }
    out.push(quote)
}

/// What Rust does not escape after another character is what Python calls printable.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    let mut buffer = ['a', character].iter().collect::<String>();
    let len = buffer.len();
    buffer = buffer.escape_debug().to_string();
    buffer.len() == len
}

pub(crate) fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}

#[cfg(test)]
mod tests;
