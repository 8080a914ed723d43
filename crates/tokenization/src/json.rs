//! A client's JSON as the values that templates see.
//!
//! As in Python, an object keeps the order of its keys, and of a key given twice the last value in the first place.

use std::{cell::Cell, fmt};

use indexmap::IndexMap;
use minijinja::Value;
use serde::{
    Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::error::Category;

use crate::python::{Dict, List};

/// Memory that the values of one request may take, in units of a number's: some 100 MiB. A prompt of four million ids
/// fits, and so does every conversation that is not made to fill memory.
const MAX_UNITS: u32 = 4 << 20;

/// The units that a list costs beside its items.
const UNITS_OF_LIST: u32 = 4;

/// The units that an object costs beside its members: its table has room for three.
const UNITS_OF_OBJECT: u32 = 12;

/// The units that the key of a member costs.
const UNITS_OF_KEY: u32 = 4;

/// An object of a template's values.
pub(crate) type Map = IndexMap<Value, Value>;

/// Why a text is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    /// No JSON, or JSON that no string of Unicode can hold: a lone surrogate.
    #[error("the request body is no valid JSON (line {0}, column {1})")]
    Invalid(usize, usize),
    /// The text is valid in Python only, and an engine may accept it.
    #[error("the request body has {0}, which is left to the engine")]
    LeftToEngine(&'static str),
}

/// The memory that is left for the values of one request: of its body, of JSON within texts of it, and of what is made
/// of them for the template.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Cell<u32>);

/// The error for a request whose values would take too much memory.
const TOO_MANY: JsonError =
    JsonError::LeftToEngine("more values than the Processor keeps in memory");

/// Reads one JSON value, with a budget of its own.
#[cfg(test)]
pub(crate) fn parse(text: &str) -> Result<Value, JsonError> {
    Budget::default().parse(text)
}

/// The error for what Python's reader accepts, and this one does not.
fn known_to_python(text: &str, error: &serde_json::Error) -> Option<JsonError> {
    // the library has no other way to distinguish its own limits from what is not JSON
    let message = error.to_string();
    let what = if message.starts_with("recursion limit") {
        "more than 127 levels of nesting"
    } else if message.starts_with("number out of range") {
        "a number beyond 64 bits"
    } else if text.starts_with('\u{feff}') {
        "a byte order mark"
    } else if text.contains("NaN") || text.contains("Infinity") {
        "a number that is not finite"
    } else {
        return None;
    };
    Some(JsonError::LeftToEngine(what))
}

/// Reads a value that is paid for with the units that are left.
#[derive(Clone, Copy)]
struct Json<'a> {
    budget: &'a Budget,
}

// === impl Budget ===

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(MAX_UNITS))
    }
}

impl Budget {
    /// Reads one JSON value.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, JsonError> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = Json { budget: self }.deserialize(&mut reader);
        let read = read.and_then(|value| reader.end().map(|()| value));
        read.map_err(|error| match error.classify() {
            Category::Data if self.is_spent() => TOO_MANY,
            Category::Data => JsonError::LeftToEngine("a number beyond 64 bits"),
            _ => known_to_python(text, &error)
                .unwrap_or(JsonError::Invalid(error.line(), error.column())),
        })
    }

    /// An object that is made of values of the request.
    pub(crate) fn dict(&self, members: Map) -> Result<Value, JsonError> {
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let units = count.saturating_mul(UNITS_OF_KEY + 1);
        if !self.take(units.saturating_add(UNITS_OF_OBJECT + 1)) {
            return Err(TOO_MANY);
        }
        Ok(Value::from_object(Dict(members)))
    }

    /// A list that is made of values of the request.
    pub(crate) fn list(&self, items: Vec<Value>) -> Result<Value, JsonError> {
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if !self.take(count.saturating_add(UNITS_OF_LIST + 1)) {
            return Err(TOO_MANY);
        }
        Ok(Value::from_object(List(items)))
    }

    /// Whether there was more than this left.
    fn take(&self, units: u32) -> bool {
        self.0.set(self.0.get().saturating_sub(units));
        !self.is_spent()
    }

    fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

// === impl Json ===

impl Json<'_> {
    fn take<E: serde::de::Error>(self, units: u32) -> Result<(), E> {
        if self.budget.take(units) {
            Ok(())
        } else {
            Err(E::custom("more values than are kept"))
        }
    }
}

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.take::<D::Error>(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// Whole numbers beyond 64 bits come as floats, and cannot be told from those any more.
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let maybe_integer = value.abs() >= 9.2e18;
        if maybe_integer {
            return Err(E::custom("a number beyond 64 bits"));
        }
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(().into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.take::<A::Error>(UNITS_OF_LIST)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::from_object(List(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.take::<A::Error>(UNITS_OF_OBJECT)?;
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.take::<A::Error>(UNITS_OF_KEY)?;
            let value = map.next_value_seed(self)?;
            members.insert(key.into(), value);
        }
        Ok(Value::from_object(Dict(members)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_key_given_twice_has_its_last_value_in_its_first_place() {
        let value = parse(r#"{"z":1,"a":2,"z":{"b":3,"a":4,"b":5}}"#).unwrap();
        assert_eq!(value.to_string(), "{'z': {'b': 5, 'a': 4}, 'a': 2}");
    }

    #[rstest]
    #[case::lone_surrogate(r#"["\ud800"]"#)]
    #[case::lone_low_surrogate(r#"["\udc00"]"#)]
    #[case::cut_off("{\"a\":")]
    #[case::something_behind_it("{} x")]
    fn what_no_string_can_hold_is_invalid(#[case] text: &str) {
        assert!(
            matches!(parse(text), Err(JsonError::Invalid(1, _))),
            "{text:.20}"
        );
    }

    #[rstest]
    #[case("18446744073709551615", true)]
    #[case("-9223372036854775808", true)]
    #[case("18446744073709551616", false)]
    #[case("-9223372036854775809", false)]
    #[case("1e300", false)]
    #[case("1e400", false)]
    fn a_number_that_may_be_a_larger_integer_is_refused(#[case] text: &str, #[case] read: bool) {
        let value = parse(text);
        let left = matches!(
            value,
            Err(JsonError::LeftToEngine("a number beyond 64 bits"))
        );
        assert_eq!(left, !read, "{value:?}");
        if let Ok(value) = value {
            assert_eq!(value.to_string(), text);
        }
    }

    #[rstest]
    #[case::deep(&format!("{}1{}", "[".repeat(200), "]".repeat(200)), "levels")]
    #[case::deep_and_cut_off(&"[".repeat(10_000), "levels")]
    #[case::not_a_number(r#"{"temperature": NaN}"#, "finite")]
    #[case::infinite(r#"{"temperature": -Infinity}"#, "finite")]
    #[case::byte_order_mark("\u{feff}{}", "byte order")]
    fn what_python_reads_is_left_to_the_engine(#[case] text: &str, #[case] what: &str) {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, JsonError::LeftToEngine(_)), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
    }

    #[test]
    fn the_memory_that_values_take_is_bounded() {
        let numbers = |count: usize| format!("[{}1]", "1,".repeat(count));
        assert!(parse(&numbers(3_000_000)).is_ok());
        let lists = format!("[{}[]]", "[],".repeat(1_000_000));
        for text in [numbers(5_000_000), lists] {
            let error = parse(&text).unwrap_err();
            assert!(error.to_string().contains("more values"), "{error}");
        }
    }
}
