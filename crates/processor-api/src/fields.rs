//! The members of a client's body that are the external stage's own.

use std::{fmt, ops::Range};

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::{
    object::{MemberEdit, splice_object},
    splice::{Splice, SpliceError, Splices},
};

const ROUTE: &str = "route";
const TOKEN_IDS: &str = "token_ids";
const NVEXT: &str = "nvext";
const TOKEN_DATA: &str = "token_data";

/// Where the values of these members are in a body. From the caller's own parse, or [`Fields::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Of `route`.
    pub route: Option<Range<usize>>,
    /// Of `token_ids`.
    pub token_ids: Option<Range<usize>>,
    /// Of `nvext`.
    pub nvext: Option<Range<usize>>,
}

/// Where a worker looks for ids in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenField {
    /// `token_ids`.
    TokenIds,
    /// `nvext.token_data`, as workers of Dynamo read it.
    NvextTokenData,
}

/// Of `nvext`: the value of its `token_data`, the last one as workers read it.
#[derive(Debug, Default)]
struct TokenData<'a> {
    value: Option<&'a RawValue>,
    /// The key is there twice.
    is_repeated: bool,
}

/// Readers may differ about what an `nvext` says.
struct Unclear;

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    route: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    nvext: Option<&'a RawValue>,
}

// === impl Fields ===

impl Fields {
    /// Finds them in a body, in one pass.
    ///
    /// # Errors
    /// Those of the JSON reader, when it is no object or has one of these keys twice.
    pub fn read(body: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw<'_> = serde_json::from_str(body)?;
        let place = |json: Option<&RawValue>| json.map(|json| place(json.get(), body));
        Ok(Self {
            route: place(raw.route),
            token_ids: place(raw.token_ids),
            nvext: place(raw.nvext),
        })
    }

    /// What the client itself says of routing; `None`: nothing, or something that is no boolean and so not meant for us.
    pub fn client_route(&self, body: &[u8]) -> Option<bool> {
        match body.get(self.route.clone()?)? {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// Changes `body` for the Processor: it is to call the Router or not, and sees no ids of the client, unless
    /// `keep_ids`.
    ///
    /// # Errors
    /// [`SpliceError`] when the places are not of this body.
    pub fn for_processor(
        &self,
        body: &[u8],
        route: bool,
        keep_ids: bool,
    ) -> Result<Splices, SpliceError> {
        let mut edits: SmallVec<[MemberEdit<'_>; 2]> = SmallVec::new();
        // a value of another type is the client's own
        let ours = self.route.is_none() || self.client_route(body).is_some();
        let differs = self.client_route(body).unwrap_or(false) != route;
        if ours && differs {
            let value = if route { "true" } else { "false" };
            let value = Some(Bytes::from_static(value.as_bytes()));
            edits.push(member(ROUTE, self.route.clone(), value));
        }
        self.splices(body, edits, keep_ids, None)
    }

    /// Changes `body` for a worker: no boolean `route`, no ids of the client unless `keep_ids`, and `ids`, a JSON array,
    /// in their place.
    ///
    /// # Errors
    /// [`SpliceError`] when the places are not of this body.
    pub fn for_worker(
        &self,
        body: &[u8],
        keep_ids: bool,
        ids: Option<(TokenField, Bytes)>,
    ) -> Result<Splices, SpliceError> {
        let mut edits: SmallVec<[MemberEdit<'_>; 2]> = SmallVec::new();
        if self.client_route(body).is_some() {
            edits.push(member(ROUTE, self.route.clone(), None));
        }
        self.splices(body, edits, keep_ids, ids)
    }

    fn splices(
        &self,
        body: &[u8],
        mut edits: SmallVec<[MemberEdit<'_>; 2]>,
        keep_ids: bool,
        ids: Option<(TokenField, Bytes)>,
    ) -> Result<Splices, SpliceError> {
        let (token_ids, token_data) = match ids {
            Some((TokenField::TokenIds, ids)) => (Some(ids), None),
            Some((TokenField::NvextTokenData, ids)) => (None, Some(ids)),
            None => (None, None),
        };
        if token_ids.is_some() || (!keep_ids && self.token_ids.is_some()) {
            edits.push(member(TOKEN_IDS, self.token_ids.clone(), token_ids));
        }
        let mut inner = Vec::new();
        let is_object = |at: &Range<usize>| body.get(at.start) == Some(&b'{');
        let changes = !keep_ids || token_data.is_some();
        match self.nvext.as_ref().filter(|at| changes && is_object(at)) {
            Some(nvext) if let Ok(known) = known_data(body, nvext) => {
                inner = nvext_splices(body, nvext, known, token_data)?;
            }
            // Nobody can say what a worker makes of it, so none gets it.
            Some(nvext) => {
                let value = token_data.map(|ids| with_token_data(&ids));
                edits.push(member(NVEXT, Some(nvext.clone()), value));
            }
            None => {
                if let Some(ids) = token_data {
                    let value = Some(with_token_data(&ids));
                    edits.push(member(NVEXT, self.nvext.clone(), value));
                }
            }
        }
        let mut splices = Splices::default();
        for splice in splice_object(body, object(body), &edits)? {
            splices.add(splice)?;
        }
        for splice in inner {
            splices.add(splice)?;
        }
        Ok(splices)
    }
}

/// For `deserialize_with`: a member that is `null` has a place too, as an insertion beside it would give its key twice.
///
/// # Errors
/// Those of the JSON reader.
pub fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Where the value is in a body, if there is one, in an `nvext` that can be read and has the key once.
fn known_data(body: &[u8], nvext: &Range<usize>) -> Result<Option<Range<usize>>, Unclear> {
    let text = body.get(nvext.clone()).ok_or(Unclear)?;
    let text = str::from_utf8(text).map_err(|_| Unclear)?;
    let data: TokenData<'_> = serde_json::from_str(text).map_err(|_| Unclear)?;
    if data.is_repeated {
        return Err(Unclear);
    }
    Ok(data.value.map(|json| {
        let Range { start, end } = place(json.get(), text);
        let from = |inner: usize| nvext.start.saturating_add(inner);
        from(start)..from(end)
    }))
}

/// Sets its `token_data`, which is there if `known`, or takes it out.
fn nvext_splices(
    body: &[u8],
    nvext: &Range<usize>,
    known: Option<Range<usize>>,
    ids: Option<Bytes>,
) -> Result<Vec<Splice>, SpliceError> {
    if known.is_none() && ids.is_none() {
        return Ok(Vec::new());
    }
    splice_object(body, nvext.clone(), &[member(TOKEN_DATA, known, ids)])
}

fn with_token_data(ids: &[u8]) -> Bytes {
    [b"{\"token_data\":", ids, b"}"].concat().into()
}

fn member(name: &str, at: Option<Range<usize>>, value: Option<Bytes>) -> MemberEdit<'_> {
    MemberEdit {
        name,
        value_at: at,
        value,
    }
}

/// The value of `token_data` in the text of an `nvext`, if there is one; the last, as workers read it.
pub(crate) fn token_data(nvext: &str) -> Option<&str> {
    let data: TokenData<'_> = serde_json::from_str(nvext).ok()?;
    let last = data.value?.get();
    Some(last).filter(|json| *json != "null")
}

/// The body's own object, without the whitespace around it and without a byte order mark.
fn object(body: &[u8]) -> Range<usize> {
    let end = body.trim_ascii_end().len();
    let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let start = body.len().saturating_sub(json.trim_ascii_start().len());
    start..end
}

/// Where `json`, a part of `text`, is in it.
pub(crate) fn place(json: &str, text: &str) -> Range<usize> {
    let start = json.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start.saturating_add(json.len())
}

// === impl TokenData ===

impl<'de> Deserialize<'de> for TokenData<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = TokenData<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = TokenData::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == TOKEN_DATA {
                        found.is_repeated |= found.value.is_some();
                        found.value = Some(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests;
