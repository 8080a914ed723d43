//! Python's `json.dumps`.

use minijinja::{
    Error, Value,
    value::{Kwargs, ValueKind},
};

use super::{
    invalid, is_list, number,
    writer::{MAX_DEPTH, Payer, Writer, too_deep},
};

/// The arguments of `json.dumps`.
#[derive(Debug)]
pub(crate) struct Dumps {
    ensure_ascii: bool,
    /// The indentation of each level.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

// === impl Dumps ===

impl Dumps {
    /// Reads the arguments of the filter that templates call.
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
    pub(crate) fn dump(&self, value: &Value, payer: &dyn Payer) -> Result<String, Error> {
        let mut out = Writer::new(payer);
        self.write(value, &mut out, 0)?;
        out.finish()
    }

    fn write(&self, value: &Value, out: &mut Writer<'_>, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => self.write_list(value, out, depth),
            ValueKind::Iterable if is_list(value) => self.write_list(value, out, depth),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_all('{', keys.into_iter(), '}', out, depth, |key, out| {
                    self.write_string(&json_key(key)?, out)?;
                    out.push_str(&self.key_separator)?;
                    self.write(&value.get_item(key)?, out, depth + 1)
                })
            }
            kind => Err(invalid(&format!(
                "a value of kind {kind} is not JSON serializable"
            ))),
        }
    }

    fn write_list(&self, list: &Value, out: &mut Writer<'_>, depth: usize) -> Result<(), Error> {
        // not collected: a list that a template repeats is longer than it is large
        let items = list.try_iter()?;
        self.write_all('[', items, ']', out, depth, |item, out| {
            self.write(item, out, depth + 1)
        })
    }

    fn write_all(
        &self,
        open: char,
        items: impl Iterator<Item = Value>,
        close: char,
        out: &mut Writer<'_>,
        depth: usize,
        mut write: impl FnMut(&Value, &mut Writer<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open)?;
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                out.push_str(&self.item_separator)?;
            }
            is_empty = false;
            self.break_line(out, depth + 1)?;
            write(&item, out)?;
        }
        if !is_empty {
            self.break_line(out, depth)?;
        }
        out.push(close)
    }

    fn break_line(&self, out: &mut Writer<'_>, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            out.push('\n')?;
            for _ in 0..depth {
                out.push_str(indent)?;
            }
        }
        Ok(())
    }

    fn write_string(&self, value: &str, out: &mut Writer<'_>) -> Result<(), Error> {
        out.push('"')?;
        for character in value.chars() {
            match character {
                '"' => out.push_str("\\\"")?,
                '\\' => out.push_str("\\\\")?,
                '\n' => out.push_str("\\n")?,
                '\r' => out.push_str("\\r")?,
                '\t' => out.push_str("\\t")?,
                '\u{8}' => out.push_str("\\b")?,
                '\u{c}' => out.push_str("\\f")?,
                '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(character)))?,
                _ if self.ensure_ascii && !(' '..='~').contains(&character) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"))?;
                    }
                }
                _ => out.push(character)?,
            }
        }
        out.push('"')
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
