//! A client's JSON as the values that templates see.
//!
//! As in Python, an object keeps the order of its keys, and of a key given twice the last value in the first place.

use std::fmt;

use indexmap::IndexMap;
use minijinja::Value;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::error::Category;

use crate::python::{Dict, List};

/// An object of a template's values.
pub(crate) type Map = IndexMap<Value, Value>;

/// Why a text is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    /// No JSON, or JSON that no string of Unicode can hold: a lone surrogate.
    #[error("the request body is no valid JSON (line {0}, column {1})")]
    Invalid(usize, usize),
    /// It has a whole number that only Python keeps exactly.
    #[error("the request body has a number beyond 64 bits")]
    Number,
}

/// Reads one JSON value.
pub(crate) fn parse(text: &str) -> Result<Value, JsonError> {
    match serde_json::from_str::<Json>(text) {
        Ok(Json(value)) => Ok(value),
        Err(error) if error.classify() == Category::Data => Err(JsonError::Number),
        Err(error) => Err(JsonError::Invalid(error.line(), error.column())),
    }
}

struct Json(Value);

struct JsonVisitor;

// === impl Json ===

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for JsonVisitor {
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
        let mut values = Vec::new();
        while let Some(Json(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::from_object(List(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((key, Json(value))) = map.next_entry::<String, Json>()? {
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
    #[case::too_deep(&"[".repeat(10_000))]
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
    fn a_number_that_may_be_a_larger_integer_is_refused(#[case] text: &str, #[case] read: bool) {
        let value = parse(text);
        assert_eq!(value.is_ok(), read, "{value:?}");
        if let Ok(value) = value {
            assert_eq!(value.to_string(), text);
        }
    }
}
