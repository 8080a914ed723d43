//! Requests and limits of a container, and whether two amounts are the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::text::quoted;

/// What a container asks for and what it gets at most, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, Quantity>,
}

/// An amount as it is written, such as `500m` or `1.5Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "RawQuantity")]
struct Quantity(String);

/// A number needs no quotes.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawQuantity {
    Whole(u64),
    Fraction(f64),
    Text(String),
}

// === impl Resources ===

impl Resources {
    /// So that a node under pressure does not end Envoys first, and a namespace with a quota takes them. No limit of CPU: that
    /// would throttle every request.
    pub(crate) fn of_an_envoy() -> Self {
        let amount = |name: &str, text: &str| (name.to_owned(), Quantity(text.to_owned()));
        Self {
            requests: BTreeMap::from([amount("cpu", "100m"), amount("memory", "256Mi")]),
            limits: BTreeMap::new(),
        }
    }
}

/// What an amount may end with, and how much that is.
const SUFFIXES: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("", 1.0),
];

/// Whether two texts are the same amount: the API server writes `1024Mi` as `1Gi`.
pub(crate) fn is_same_amount(one: &str, other: &str) -> bool {
    match (amount(one), amount(other)) {
        // of numbers that were written by people, equal ones differ by rounding at most
        (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * one.abs().max(other.abs()),
        _ => one == other,
    }
}

/// `None`: it is none, or below zero.
fn amount(text: &str) -> Option<f64> {
    let (number, unit) = SUFFIXES
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * unit)
}

// === impl Quantity ===

impl TryFrom<RawQuantity> for Quantity {
    type Error = String;

    fn try_from(raw: RawQuantity) -> Result<Self, Self::Error> {
        let text = match raw {
            RawQuantity::Whole(number) => number.to_string(),
            RawQuantity::Fraction(number) => number.to_string(),
            RawQuantity::Text(text) => text,
        };
        match amount(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(format!(
                "{} is no amount: expected a number, such as 2, 500m or 1Gi",
                quoted(&text)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_the_same_however_they_are_written() {
        for (one, other) in [
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1e3", "1k"),
            ("0", "0m"),
        ] {
            assert!(is_same_amount(one, other), "{one} {other}");
        }
        for (one, other) in [("1Gi", "1G"), ("500m", "501m"), ("", "0")] {
            assert!(!is_same_amount(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_number_needs_no_quotes_and_what_is_no_amount_is_named() {
        let read =
            |text: &str| foreign_text::read::<Resources>(text, foreign_text::Limits::of_text(1024));
        let found = read("requests: {cpu: 2, memory: 64Mi}\nlimits: {cpu: 2.5}").unwrap();
        let json = serde_json::to_value(found).unwrap();
        let wanted = serde_json::json!({
            "requests": {"cpu": "2", "memory": "64Mi"}, "limits": {"cpu": "2.5"},
        });
        assert_eq!(json, wanted);
        for (text, part) in [
            ("requests: {cpu: two}", "\"two\" is no amount"),
            ("requests: {cpu: -1}", "\"-1\" is no amount"),
            ("claims: []", "claims"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
