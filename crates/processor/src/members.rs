//! The members of a client's body that say where it goes. Pure.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// What a body says beside its prompt. As in Python, of a key given twice the last value counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members<'a> {
    /// Empty: it names none.
    pub(crate) model: Cow<'a, str>,
    /// Whether the Router is to be called. A value of another type is the client's own.
    pub(crate) route: bool,
    /// Requests of different salts share no cache.
    pub(crate) cache_salt: Option<Cow<'a, str>>,
}

struct MembersVisitor;

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

// === impl Members ===

impl<'a> Members<'a> {
    /// None: it is no JSON object.
    pub(crate) fn read(body: &'a str) -> Option<Self> {
        serde_json::from_str(body).ok()
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "model" => members.model = text(map.next_value()?).unwrap_or_default(),
                "route" => members.route = map.next_value::<&RawValue>()?.get() == "true",
                "cache_salt" => members.cache_salt = text(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(members)
    }
}

/// A value of another type is left to the engine to refuse.
fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let Text(text) = serde_json::from_str(value.get()).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("{}", "", false, None)]
    #[case(r#"{"model":"m","route":true,"cache_salt":"s"}"#, "m", true, Some("s"))]
    #[case(
        r#"{"model":"m\"","route":"true","messages":[{"route":true}]}"#,
        "m\"",
        false,
        None
    )]
    #[case(
        r#"{"model":"a","route":true,"model":"b","route":false}"#,
        "b",
        false,
        None
    )]
    #[case(r#"{"model":null,"route":null,"cache_salt":7}"#, "", false, None)]
    fn the_last_value_of_the_right_type_counts(
        #[case] body: &str,
        #[case] model: &str,
        #[case] route: bool,
        #[case] salt: Option<&str>,
    ) {
        let members = Members::read(body).unwrap();
        assert_eq!(members.model, model);
        assert_eq!(members.route, route);
        assert_eq!(members.cache_salt.as_deref(), salt);
    }

    #[rstest]
    #[case("[]")]
    #[case("{\"model\"")]
    #[case("")]
    fn what_is_no_object_has_no_members(#[case] body: &str) {
        assert_eq!(Members::read(body), None);
    }
}
