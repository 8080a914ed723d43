//! `POST /process`: an endpoint picker asks for a prompt's ids, and for the worker that has most of them cached.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    fields::place,
    ids::{IdsError, scan_ids},
    name::{ReservationId, TokenKey},
    route::WireError,
};

/// Where a Processor takes these calls.
pub const PROCESS_PATH: &str = "/process";

/// Endpoints that one call names at most: more are taken as all.
pub const MAX_CANDIDATES: usize = 1024;

/// Bytes of a reply: 16 MiB, over two million ids.
pub const MAX_REPLY: usize = 16 << 20;

/// What goes along with the client's body. All of it is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRequest<'a> {
    /// Names in lower case.
    #[serde(borrow, default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// The client's path. Absent: a body with `messages` is chat, one with `prompt` completions.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Cow<'a, str>>,
    /// Endpoints to choose from; absent: all.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<Vec<Cow<'a, str>>>,
    /// The request's priority; below 0 it is shed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// How many endpoints the reply may name, the chosen one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_endpoints: Option<u32>,
    /// The booking's name, made by the caller, so that it can end it while this call is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// A call as the Processor reads it.
#[derive(Clone, Debug)]
pub struct ProcessCall<'a> {
    /// The client's body, as JSON.
    pub body: &'a str,
    /// What came along.
    pub request: ProcessRequest<'a>,
}

/// The answer to a call. All of it is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessReply {
    /// `ip:port` of the chosen worker, or its pod's name and port.
    pub worker_address: Option<String>,
    /// Where the ids are.
    pub token_key: Option<TokenKey>,
    /// The ids themselves, as a JSON array. On the wire it is a string.
    pub token_value: Option<Bytes>,
    /// How many there are.
    pub token_count: Option<usize>,
    /// How many of them the chosen worker has cached.
    pub overlap_tokens: Option<usize>,
    /// Workers to try after the chosen one, best first.
    pub fallbacks: Vec<String>,
    /// The chosen worker's name.
    pub worker_id: Option<String>,
    /// The data parallel rank behind the chosen worker's address that has the prompt cached; absent where there is one
    /// rank, or none is chosen.
    pub dp_rank: Option<u32>,
    /// What the reply lacks, and why.
    pub degraded: Vec<Degraded>,
}

/// Why a stage of the Processor did without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Degraded {
    /// Routing was asked for, and no Router is configured.
    NoRouter,
    /// The Router took too long.
    RouteTimeout,
    /// The Router could not be reached, or failed.
    RouteError,
    /// The Router has no room.
    RouteSaturated,
    /// The ids could not be put into the token cache.
    CacheWrite,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

/// Why a reply cannot be used. No variant repeats what was sent.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// No such JSON.
    #[error("the reply is no JSON object of the expected fields")]
    Json,
    /// Its `token_value` is no list of ids.
    #[error("token_value: {0}")]
    Ids(#[from] IdsError),
    /// It contradicts itself.
    #[error("token_count is {said}, and token_value has {found} ids")]
    Count {
        /// Its `token_count`.
        said: usize,
        /// What its `token_value` has.
        found: usize,
    },
}

#[derive(Deserialize)]
struct RawCall<'a> {
    #[serde(borrow)]
    request_body: &'a RawValue,
    #[serde(borrow, default)]
    headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow)]
    path: Option<Cow<'a, str>>,
    #[serde(borrow)]
    candidates: Option<Vec<Cow<'a, str>>>,
    priority: Option<i64>,
    max_endpoints: Option<u32>,
    reservation_id: Option<ReservationId>,
}

#[derive(Serialize, Deserialize)]
struct RawReply<'a, V> {
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_address: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_key: Option<TokenKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_value: Option<V>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallbacks: Option<Cow<'a, [String]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<Cow<'a, [Degraded]>>,
}

// === impl ProcessRequest ===

impl ProcessRequest<'_> {
    /// The bytes of a call: those of the client's body are passed on as they are, in the parts that they come in.
    pub fn encode(&self, body: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
        let mut parts = vec![Bytes::from_static(b"{\"request_body\":")];
        parts.extend(body);
        // strings and numbers only: it cannot fail
        let rest = serde_json::to_vec(self).unwrap_or_default();
        parts.push(match rest.get(1..) {
            Some(members @ [b'"', ..]) => [b",", members].concat().into(),
            _ => Bytes::from_static(b"}"),
        });
        parts
    }
}

// === impl ProcessCall ===

impl<'a> ProcessCall<'a> {
    /// Reads a call. Fields that it does not know are passed over.
    ///
    /// # Errors
    /// [`WireError`] when it is no such call, or names too many candidates.
    pub fn parse(json: &'a str) -> Result<Self, WireError> {
        let raw: RawCall<'a> = serde_json::from_str(json).map_err(WireError::json)?;
        if raw.candidates.as_ref().map_or(0, Vec::len) > MAX_CANDIDATES {
            return Err(WireError::Candidates);
        }
        Ok(Self {
            body: raw.request_body.get(),
            request: ProcessRequest {
                headers: raw.headers,
                path: raw.path,
                candidates: raw.candidates,
                priority: raw.priority,
                max_endpoints: raw.max_endpoints,
                reservation_id: raw.reservation_id,
            },
        })
    }
}

// === impl ProcessReply ===

impl ProcessReply {
    /// As JSON.
    pub fn encode(&self) -> Bytes {
        let ids = self.token_value.as_deref().map(str::from_utf8);
        let raw = RawReply {
            worker_address: self.worker_address.as_deref().map(Cow::Borrowed),
            token_key: self.token_key,
            token_value: ids.and_then(Result::ok),
            token_count: self.token_count,
            overlap_tokens: self.overlap_tokens,
            fallbacks: filled(&self.fallbacks),
            worker_id: self.worker_id.as_deref().map(Cow::Borrowed),
            dp_rank: self.dp_rank,
            degraded: filled(&self.degraded),
        };
        // strings and numbers only: it cannot fail
        serde_json::to_vec(&raw).unwrap_or_default().into()
    }

    /// Reads a reply; its ids, at most `max_ids`, stay a part of `json`.
    ///
    /// # Errors
    /// [`ReplyError`] when it is no such reply.
    pub fn parse(json: &Bytes, max_ids: usize) -> Result<Self, ReplyError> {
        let text = str::from_utf8(json).map_err(|_| ReplyError::Json)?;
        let raw: RawReply<'_, &RawValue> =
            serde_json::from_str(text).map_err(|_| ReplyError::Json)?;
        let mut token_count = raw.token_count;
        let mut token_value = None;
        if let Some(value) = raw.token_value {
            let list = scan_ids(value.get().as_bytes(), max_ids)?;
            let found = list.count;
            if let Some(said) = token_count.replace(found).filter(|said| *said != found) {
                return Err(ReplyError::Count { said, found });
            }
            let start = place(value.get(), text).start;
            let from = |inner: usize| start.saturating_add(inner);
            token_value = Some(json.slice(from(list.text_at.start)..from(list.text_at.end)));
        }
        Ok(Self {
            worker_address: raw.worker_address.map(Cow::into_owned),
            token_key: raw.token_key,
            token_value,
            token_count,
            overlap_tokens: raw.overlap_tokens,
            fallbacks: raw.fallbacks.map(Cow::into_owned).unwrap_or_default(),
            worker_id: raw.worker_id.map(Cow::into_owned),
            dp_rank: raw.dp_rank,
            degraded: raw.degraded.map(Cow::into_owned).unwrap_or_default(),
        })
    }
}

fn filled<T: Clone>(list: &[T]) -> Option<Cow<'_, [T]>> {
    (!list.is_empty()).then_some(Cow::Borrowed(list))
}

// === impl Degraded ===

impl Degraded {
    /// Stable: on the wire and as a metric label alike.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoRouter => "no-router",
            Self::RouteTimeout => "route-timeout",
            Self::RouteError => "route-error",
            Self::RouteSaturated => "route-saturated",
            Self::CacheWrite => "cache-write",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests;
