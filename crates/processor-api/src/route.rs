//! `POST /route` and what ends a booking: the Processor asks the Router for the worker with the most of a prompt cached.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    ids::{IdsError, parse_ids},
    name::ReservationId,
    process::MAX_CANDIDATES,
};

/// Where a Router takes these calls.
pub const ROUTE_PATH: &str = "/route";

/// The binary form of a request: the length of its JSON as u32, that JSON without the ids, the ids as u32; all
/// little-endian.
pub const TOKENS_TYPE: &str = "application/x-isthmus-tokens";

/// Bookings that one message keeps: ten thousand of them have 290 KB of JSON.
pub const MAX_KEEPALIVES: usize = 10_000;

/// Bytes of the JSON in the binary form: 1024 candidates of 32 bytes, and the rest.
const MAX_JSON: usize = 256 << 10;

const ID_BYTES: usize = size_of::<u32>();

/// A prompt to be routed. Only the ids are required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest<'a> {
    /// The prompt.
    pub token_ids: Vec<u32>,
    /// As in the client's header.
    pub request_id: Option<Cow<'a, str>>,
    /// The booking's name; absent: the Router makes one.
    pub reservation_id: Option<ReservationId>,
    /// The model, without its adapter.
    pub model: Option<Cow<'a, str>>,
    /// The LoRA adapter, whose caches are apart.
    pub lora_name: Option<Cow<'a, str>>,
    /// Requests with different salts share no cache.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Endpoints to choose from; absent: all.
    pub candidates: Option<Vec<Cow<'a, str>>>,
    /// Below 0 it is shed first.
    pub priority: Option<i64>,
    /// How many endpoints the reply may name, the chosen one included.
    pub max_endpoints: Option<u32>,
}

/// The Router's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReply {
    /// `ip:port`, or a pod's name and port.
    pub worker_address: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Which of the data parallel ranks behind the worker's address, as its engine's server counts them; absent where there
    /// is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dp_rank: Option<u32>,
    /// Blocks of the prompt that the worker has cached.
    #[serde(default)]
    pub overlap_blocks: usize,
    /// Full blocks of the prompt.
    #[serde(default)]
    pub prompt_blocks: usize,
    /// Ids of a block; 0: not known.
    #[serde(default)]
    pub block_size: usize,
    /// Workers to try after the chosen one, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
    /// Names the booking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
    /// Where the overlap is known from.
    #[serde(default)]
    pub source: RouteSource,
}

/// Where the Router knows an overlap from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteSource {
    /// Events of the engine.
    Exact,
    /// What was sent to it before.
    Predicted,
    /// There is none; or a source that this version does not know.
    #[default]
    #[serde(other)]
    None,
}

/// `POST /route/{id}/prefill_complete`: the first byte of the response came, from this worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillComplete {
    /// Who served it.
    pub worker_address: String,
}

/// `POST /route/keepalive`: these requests still run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keepalive {
    /// At most [`MAX_KEEPALIVES`].
    pub reservation_ids: Vec<ReservationId>,
}

/// Why a message cannot be used. No variant repeats what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No JSON of the expected fields.
    #[error("the message is no JSON object of the expected fields (line {line}, column {column})")]
    Json {
        /// Of the fault, from 1.
        line: usize,
        /// Of the fault, from 1.
        column: usize,
    },
    /// The ids are none.
    #[error("token_ids: {0}")]
    Ids(#[from] IdsError),
    /// Too many endpoints are named.
    #[error("more than {MAX_CANDIDATES} candidates: leave them out to choose from all")]
    Candidates,
    /// Too many bookings are named.
    #[error("more than {MAX_KEEPALIVES} reservations: send them in several messages")]
    Keepalives,
    /// The binary form is cut off, or its JSON longer than it may be.
    #[error("the message has no length, JSON and whole token ids: see {TOKENS_TYPE}")]
    Frame,
}

#[derive(Serialize, Deserialize)]
struct RawRequest<'a> {
    #[serde(borrow, default, skip_serializing)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation_id: Option<ReservationId>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    lora_name: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    cache_salt: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    candidates: Option<Cow<'a, [Cow<'a, str>]>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_endpoints: Option<u32>,
}

// === impl RouteRequest ===

impl<'a> RouteRequest<'a> {
    /// Reads the JSON form, of at most `max_ids` ids. Fields that it does not know are passed over.
    ///
    /// # Errors
    /// [`WireError`] when it is no such request.
    pub fn parse_json(json: &'a str, max_ids: usize) -> Result<Self, WireError> {
        let raw: RawRequest<'a> = serde_json::from_str(json).map_err(WireError::json)?;
        let ids = raw.token_ids.ok_or(IdsError::NoList)?;
        let ids = parse_ids(ids.get().as_bytes(), max_ids)?;
        Self::of(raw, ids)
    }

    /// Reads the binary form, of at most `max_ids` ids.
    ///
    /// # Errors
    /// [`WireError`] when it is no such request.
    pub fn parse_binary(frame: &'a [u8], max_ids: usize) -> Result<Self, WireError> {
        let (length, rest) = frame.split_first_chunk().ok_or(WireError::Frame)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_JSON {
            return Err(WireError::Frame);
        }
        let (json, ids) = rest.split_at_checked(length).ok_or(WireError::Frame)?;
        let (ids, cut_off) = ids.as_chunks::<ID_BYTES>();
        if !cut_off.is_empty() {
            return Err(WireError::Frame);
        }
        if ids.len() > max_ids {
            return Err(IdsError::TooMany(max_ids).into());
        }
        let raw = serde_json::from_slice(json).map_err(WireError::json)?;
        Self::of(raw, ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
    }

    /// The binary form.
    pub fn encode_binary(&self) -> Vec<u8> {
        let raw = RawRequest {
            token_ids: None,
            request_id: self.request_id.as_deref().map(Cow::Borrowed),
            reservation_id: self.reservation_id,
            model: self.model.as_deref().map(Cow::Borrowed),
            lora_name: self.lora_name.as_deref().map(Cow::Borrowed),
            cache_salt: self.cache_salt.as_deref().map(Cow::Borrowed),
            candidates: self.candidates.as_deref().map(Cow::Borrowed),
            priority: self.priority,
            max_endpoints: self.max_endpoints,
        };
        // strings and numbers only: it cannot fail, and no JSON of ours has 4 GiB
        let json = serde_json::to_vec(&raw).unwrap_or_default();
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        let ids = self.token_ids.len().saturating_mul(ID_BYTES);
        let head = json.len().saturating_add(ID_BYTES);
        let mut frame = Vec::with_capacity(head.saturating_add(ids));
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&json);
        frame.extend(self.token_ids.iter().flat_map(|id| id.to_le_bytes()));
        frame
    }

    fn of(raw: RawRequest<'a>, token_ids: Vec<u32>) -> Result<Self, WireError> {
        let candidates = raw.candidates.map(Cow::into_owned);
        if candidates.as_ref().map_or(0, Vec::len) > MAX_CANDIDATES {
            return Err(WireError::Candidates);
        }
        Ok(Self {
            token_ids,
            request_id: raw.request_id,
            reservation_id: raw.reservation_id,
            model: raw.model,
            lora_name: raw.lora_name,
            cache_salt: raw.cache_salt,
            candidates,
            priority: raw.priority,
            max_endpoints: raw.max_endpoints,
        })
    }
}

// === impl Keepalive ===

impl Keepalive {
    /// Reads one.
    ///
    /// # Errors
    /// [`WireError`] when it is none, or names too many.
    pub fn parse(json: &[u8]) -> Result<Self, WireError> {
        let message: Self = serde_json::from_slice(json).map_err(WireError::json)?;
        if message.reservation_ids.len() > MAX_KEEPALIVES {
            return Err(WireError::Keepalives);
        }
        Ok(message)
    }
}

// === impl WireError ===

impl WireError {
    /// Its own text may repeat a whole string of the message, so only the place is kept.
    pub(crate) fn json(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        Self::Json { line, column }
    }
}

#[cfg(test)]
mod tests;
