//! A document's size once aliases are expanded, without keeping any of it.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::budget::{Budget, twice};

/// Spends a budget on each value. Keys are kept while their map is read, to find one that is there twice.
#[derive(Clone, Copy)]
pub(crate) struct Measure<'a>(pub(crate) &'a Budget);

/// A key's text, borrowed from the document where that is possible.
struct Key;

// === impl Measure ===

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map, a list, a text, a number or true or false, without a tag")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.0.spend_value(0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.spend_value(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.spend_value(0)?;
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.spend_value(0)?;
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key_seed(Key)? {
            self.0.spend_bytes(key.len())?;
            if keys.contains(&key) {
                return Err(twice(&key));
            }
            keys.insert(key);
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

// === impl Key ===

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text as the key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }
}
