//! JSON objects that are objects.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A `T` that was written as a JSON object. A derived reader would also take an array of its fields, and
/// name the Rust type when it gets anything else.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

struct Reader<T>(PhantomData<T>);

// === impl Object ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

// === impl Reader ===

impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}
