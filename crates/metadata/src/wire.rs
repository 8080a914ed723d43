//! Bodies of the service's calls, as JSON.
//!
//! The calls of [`load`] and [`cache`] are those of existing clients, byte for byte; [`batch`] and [`pick`] are ours.

pub mod batch;
pub mod cache;
pub mod load;
pub mod pick;

use std::{
    fmt::{self, Display},
    marker::PhantomData,
    ops::RangeInclusive,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::fault::Fault;

/// Endpoints that one call names at most: those of a whole cluster.
pub const MAX_CANDIDATES: usize = 4096;

/// Around each answer but those of probes and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<T> {
    /// Whether the call did what it was to do.
    pub status: Status,
    /// Why not.
    pub error: Option<ErrorBody>,
    /// The answer; `null` where there is none.
    pub data: Option<T>,
    /// As the caller sent it, or ours.
    pub trace_id: String,
}

/// Whether a call succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It did.
    Ok,
    /// It did not.
    Error,
}

/// A [`Fault`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// [`Fault::code`].
    pub code: u32,
    /// For people.
    pub message: String,
    /// [`Fault::reason`].
    pub reason: String,
}

/// A list that is read as far as it may be long: a longer one costs no more.
struct List<T, const MAX: usize>(Vec<T>);

fn list<'de, const MAX: usize, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    List::<T, MAX>::deserialize(from).map(|it| it.0)
}

fn some_list<'de, const MAX: usize, D, T>(from: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Option::<List<T, MAX>>::deserialize(from)?;
    Ok(list.map(|it| it.0))
}

// === impl List ===

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Items::<T, MAX>(PhantomData))
    }
}

struct Items<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> de::Visitor<'de> for Items<T, MAX> {
    type Value = List<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<List<T, MAX>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            items.push(item);
        }
        Ok(List(items))
    }
}

// === impl ErrorBody ===

impl From<&Fault> for ErrorBody {
    fn from(fault: &Fault) -> Self {
        Self {
            code: fault.code(),
            message: fault.to_string(),
            reason: fault.reason().to_owned(),
        }
    }
}

/// Refuses a number outside of a range.
fn in_range<T: PartialOrd + Display>(
    field: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Fault> {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = range.into_inner();
    Err(Fault::invalid(
        field,
        format!("expected {from} to {to}, got {value}"),
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{batch, batch::Batch, cache::Query, pick::Pick, *};

    fn read<T: de::DeserializeOwned>(body: &Value) -> Result<(), String> {
        let read = serde_json::from_str::<T>(&body.to_string());
        read.map(|_| ()).map_err(|error| error.to_string())
    }

    fn mk_batch(field: &str, item: Value, count: usize) -> Result<(), String> {
        let mut body = json!({"cluster": "c", "instance": "a", "epoch": 1, "seq": 1, "lease_ms": 1000,
            "live": 0, "prompt_sum": 0});
        body[field] = vec![item; count].into();
        read::<Batch>(&body)
    }

    fn mk_query(candidates: Value) -> Result<(), String> {
        read::<Query>(&json!({"cluster": "c", "prompt_hash": [], "candidates": candidates}))
    }

    #[rstest]
    #[case::puts(batch::MAX_ITEMS, |count| mk_batch("puts", json!({"request_id": "r", "ip": "10.0.0.1"}), count))]
    #[case::deletes(batch::MAX_ITEMS, |count| mk_batch("deletes", "r".into(), count))]
    #[case::candidates(MAX_CANDIDATES, |count| {
        let candidates = vec![json!({"ip": "10.0.0.1"}); count];
        read::<Pick>(&json!({"cluster": "c", "request_id": "r", "reserve_ms": 1000, "candidates": candidates}))
    })]
    #[case::of_a_query(MAX_CANDIDATES, |count| mk_query(vec!["10.0.0.1"; count].into()))]
    fn a_list_is_read_as_far_as_it_may_be_long(
        #[case] most: usize,
        #[case] read: fn(usize) -> Result<(), String>,
    ) {
        assert_eq!(read(most), Ok(()));
        let why = read(most + 1).unwrap_err();
        assert!(why.contains(&format!("a list of at most {most}")), "{why}");
    }

    #[test]
    fn a_query_may_name_no_candidates() {
        assert_eq!(mk_query(Value::Null), Ok(()));
    }
}
