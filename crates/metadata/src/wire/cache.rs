//! Which endpoints have seen the beginning of a prompt.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use xxhash_rust::xxh64::xxh64;

use super::{MAX_CANDIDATES, in_range};
use crate::{
    fault::Fault,
    name::{Address, Cluster},
};

/// Most chunks of one prompt.
pub const MAX_CHUNKS: usize = 8192;
/// What `ttl_s` is at most: 7 days.
pub const MAX_TTL_S: u32 = 604_800;
/// What `top_k` is at most.
pub const MAX_TOP_K: u32 = 1000;

/// A prompt as the hashes of its beginnings: the n-th is of its first n chunks. At most 8192.
///
/// A number is such a hash. A string holds independent hashes of chunks joined by commas, as some clients send; it is
/// folded into one number, and only a service that is told to takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct PromptHash {
    hashes: Vec<u64>,
    #[serde(skip)]
    joined: bool,
}

/// `POST /v1/cache/query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Query {
    /// Where the endpoints are.
    pub cluster: Cluster,
    /// The prompt.
    pub prompt_hash: PromptHash,
    /// How many endpoints to name: 0 and absent are the service's default (5), at most 1000. Wins over `topk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// As `top_k`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topk: Option<u32>,
    /// Ours: only these, and all of these that match. At most 4096.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::some_list::<MAX_CANDIDATES, _, _>"
    )]
    pub candidates: Option<Vec<Address>>,
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Locations {
    /// Longest match first, then by address.
    pub locations: Vec<Location>,
}

/// An endpoint that has seen a beginning of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Location {
    /// The endpoint.
    pub ip: Address,
    /// How many chunks of it.
    pub length: u32,
}

/// `POST /v1/cache/save`: an endpoint has seen a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Save {
    /// Where the endpoint is.
    pub cluster: Cluster,
    /// The prompt.
    pub prompt_hash: PromptHash,
    /// The endpoint.
    pub ip: Address,
    /// Ours: for how long, in seconds: 1 to 604800; absent: the service's default (3600).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u32>,
    /// Ours: how many chunks the endpoint's cache holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

// === impl Query ===

impl Query {
    /// Checks what the types do not hold.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`] names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), Fault> {
        in_range("top_k", self.top_k.unwrap_or(0), 0..=MAX_TOP_K)?;
        in_range("topk", self.topk.unwrap_or(0), 0..=MAX_TOP_K)?;
        let candidates = self.candidates.as_ref().map_or(0, Vec::len);
        if candidates > MAX_CANDIDATES {
            let why = format!("expected at most {MAX_CANDIDATES} endpoints");
            return Err(Fault::invalid("candidates", why));
        }
        Ok(())
    }

    /// How many endpoints to name; none: as the service is told.
    pub fn limit(&self) -> Option<u32> {
        self.top_k.or(self.topk).filter(|it| *it > 0)
    }
}

// === impl Save ===

impl Save {
    /// Checks what the types do not hold.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`] names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), Fault> {
        in_range("ttl_s", self.ttl_s.unwrap_or(1), 1..=MAX_TTL_S)?;
        in_range("capacity", self.capacity.unwrap_or(1), 1..=u32::MAX)
    }
}

// === impl PromptHash ===

impl PromptHash {
    /// The hashes, first chunk first.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Some came as strings.
    pub fn is_joined(&self) -> bool {
        self.joined
    }
}

/// Cut after 8192.
impl From<Vec<u64>> for PromptHash {
    fn from(mut hashes: Vec<u64>) -> Self {
        hashes.truncate(MAX_CHUNKS);
        Self {
            hashes,
            joined: false,
        }
    }
}

impl<'de> Deserialize<'de> for PromptHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Hashes)
    }
}

struct Hashes;

impl<'de> de::Visitor<'de> for Hashes {
    type Value = PromptHash;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at most {MAX_CHUNKS} unsigned 64-bit numbers")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<PromptHash, A::Error> {
        let mut prompt = PromptHash::default();
        while let Some(Hash { hash, joined }) = seq.next_element()? {
            if prompt.hashes.len() == MAX_CHUNKS {
                return Err(de::Error::invalid_length(MAX_CHUNKS + 1, &self));
            }
            prompt.hashes.push(hash);
            prompt.joined |= joined;
        }
        Ok(prompt)
    }
}

struct Hash {
    hash: u64,
    joined: bool,
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self {
            hash: 0,
            joined: false,
        })
    }
}

impl de::Visitor<'_> for Hash {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an unsigned 64-bit number")
    }

    fn visit_u64<E: de::Error>(self, hash: u64) -> Result<Self, E> {
        Ok(Self { hash, ..self })
    }

    fn visit_str<E: de::Error>(self, joined: &str) -> Result<Self, E> {
        Ok(Self {
            hash: xxh64(joined.as_bytes(), 0),
            joined: true,
        })
    }
}
