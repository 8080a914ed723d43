//! An entry as a value in Redis.
//!
//! `ITK1`, the length of the header as u16, the header as JSON, the ids as u32, and the xxh3-64 of all before; numbers
//! little-endian.

use std::borrow::Cow;

use processor_api::TokenKey;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    body::binary_ids,
    entry::{Entry, MAX_IDS},
};

/// Before each key.
pub const REDIS_PREFIX: &str = "isthmus:tokens:";

const MAGIC: &[u8; 4] = b"ITK1";

/// A value that is no entry, or a damaged one: it counts as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// Something else stands under the key, or an entry of a later version.
    #[error("it does not begin as an entry of this version")]
    Magic,
    /// It is not whole, or has changed.
    #[error("it is cut off or damaged")]
    Damaged,
    /// Its sum is right, and its parts are not.
    #[error("its header and its ids do not agree")]
    Header,
}

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    tokenizer: Cow<'a, str>,
    count: usize,
}

/// The key in Redis.
pub fn redis_key(key: &TokenKey) -> String {
    [REDIS_PREFIX, key.as_str()].concat()
}

/// The value of an entry; none where its names are longer than the form holds.
pub fn encode(entry: &Entry) -> Option<Vec<u8>> {
    let header = Header {
        model: Cow::Borrowed(&entry.model),
        tokenizer: Cow::Borrowed(&entry.tokenizer),
        count: entry.ids.len(),
    };
    let header = serde_json::to_vec(&header).ok()?;
    let length = u16::try_from(header.len()).ok()?;
    let mut value = Vec::with_capacity(header.len() + size_of_val(&*entry.ids) + 14);
    value.extend_from_slice(MAGIC);
    value.extend_from_slice(&length.to_le_bytes());
    value.extend_from_slice(&header);
    value.extend(entry.ids.iter().flat_map(|id| id.to_le_bytes()));
    let sum = xxh3_64(&value);
    value.extend_from_slice(&sum.to_le_bytes());
    Some(value)
}

/// The entry of a value.
///
/// # Errors
/// [`BadValue`] when it has none.
pub fn decode(value: &[u8]) -> Result<Entry, BadValue> {
    let body = value.strip_prefix(MAGIC).ok_or(BadValue::Magic)?;
    let (summed, sum) = value.split_last_chunk().ok_or(BadValue::Damaged)?;
    if xxh3_64(summed) != u64::from_le_bytes(*sum) {
        return Err(BadValue::Damaged);
    }
    let body = body.get(..body.len().saturating_sub(sum.len()));
    let (length, body) = body
        .and_then(|body| body.split_first_chunk())
        .ok_or(BadValue::Damaged)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (header, ids) = body.split_at_checked(length).ok_or(BadValue::Header)?;
    let header: Header<'_> = serde_json::from_slice(header).map_err(|_| BadValue::Header)?;
    let ids = binary_ids(ids).ok_or(BadValue::Header)?;
    if ids.len() != header.count || ids.len() > MAX_IDS {
        return Err(BadValue::Header);
    }
    Ok(Entry {
        model: header.model.into(),
        tokenizer: header.tokenizer.into(),
        ids: ids.into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mk_entry(ids: Vec<u32>) -> Entry {
        Entry {
            model: "ll\"ama".into(),
            tokenizer: "00ff".into(),
            ids: ids.into(),
        }
    }

    fn sealed(mut value: Vec<u8>) -> Vec<u8> {
        let sum = xxh3_64(&value);
        value.extend_from_slice(&sum.to_le_bytes());
        value
    }

    proptest! {
        #[test]
        fn a_value_reads_back(ids: Vec<u32>) {
            let entry = mk_entry(ids);
            prop_assert_eq!(decode(&encode(&entry).unwrap()), Ok(entry));
        }

        #[test]
        fn a_value_that_was_changed_or_cut_is_none(at in 0_usize..60, bit in 0..8, cut: bool) {
            let mut value = encode(&mk_entry(vec![1, 2, 3])).unwrap();
            prop_assume!(at < value.len());
            if cut {
                value.truncate(at);
            } else {
                value[at] ^= 1_u8 << bit;
            }
            let error = decode(&value).unwrap_err();
            prop_assert!(matches!(error, BadValue::Magic | BadValue::Damaged), "{error}");
        }

        #[test]
        fn bytes_of_any_kind_are_no_entry(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&bytes), Err(BadValue::Magic));
            let framed = sealed([&MAGIC[..], &bytes].concat());
            let error = decode(&framed).unwrap_err();
            // Less than a header is too little to be read at all.
            prop_assert!(error == BadValue::Header || bytes.len() < 2, "{error}");
        }
    }

    #[test]
    fn the_form_is_as_documented() {
        let entry = Entry {
            model: "m".into(),
            tokenizer: "t".into(),
            ids: [1, 0x0102_0304].into(),
        };
        let header = br#"{"model":"m","tokenizer":"t","count":2}"#;
        let parts = [b"ITK1", &[39, 0][..], header, &[1, 0, 0, 0, 4, 3, 2, 1]];
        assert_eq!(encode(&entry).unwrap(), sealed(parts.concat()));
    }

    #[test]
    fn a_count_that_is_not_the_ids_is_refused() {
        let header = br#"{"model":"m","tokenizer":"t","count":2}"#;
        let value = sealed([b"ITK1", &[39, 0][..], header, &[1, 0, 0, 0]].concat());
        assert_eq!(decode(&value), Err(BadValue::Header));
        assert_eq!(decode(b"GIF89a"), Err(BadValue::Magic));
    }

    #[test]
    fn names_too_long_for_the_form_give_no_value() {
        let entry = Entry {
            model: "m".repeat(70_000).into(),
            ..mk_entry(Vec::new())
        };
        assert_eq!(encode(&entry), None);
    }
}
