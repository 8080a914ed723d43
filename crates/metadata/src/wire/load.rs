//! Load, as existing clients report it: a call for each charge, each prefill and each end.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::name::{Address, Cluster, RequestId};

/// `POST /v1/load/stats`: a request was sent to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Add {
    /// Where the endpoint is.
    pub cluster: Cluster,
    /// Names the charge in the calls that follow.
    pub request_id: RequestId,
    /// The endpoint.
    pub ip: Address,
    /// Unfinished prefill, in the unit that all gateways of the cluster use. 0 to 2147483647.
    #[serde(default)]
    pub prompt_length: PromptLength,
}

/// `DELETE /v1/load/prompt`: the first token came; `DELETE /v1/load/stats`: the request ended. Other fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drop {
    /// As in the add.
    pub request_id: RequestId,
}

/// One endpoint in the answer to `GET /v1/load/stats?cluster=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// The endpoint.
    pub ip: Address,
    /// Unfinished requests, reservations among them.
    pub queued_req_num: i32,
    /// Their unfinished prefill.
    pub prompt_length: i32,
    /// Last change, in nanoseconds since 1970.
    pub updated_time: i64,
}

/// Unfinished prefill of one request: 0 to 2147483647.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct PromptLength(i32);

// === impl Load ===

impl Load {
    /// Wider sums than the wire has are cut to what it can say.
    pub fn new(ip: Address, requests: i64, prefill: i64, updated_time: i64) -> Self {
        let cut = |sum: i64| i32::try_from(sum.max(0)).unwrap_or(i32::MAX);
        Self {
            ip,
            queued_req_num: cut(requests),
            prompt_length: cut(prefill),
            updated_time,
        }
    }
}

// === impl PromptLength ===

impl TryFrom<i64> for PromptLength {
    type Error = &'static str;

    fn try_from(length: i64) -> Result<Self, Self::Error> {
        match i32::try_from(length) {
            Ok(length) if length >= 0 => Ok(Self(length)),
            _ => Err("expected 0 to 2147483647"),
        }
    }
}

impl From<PromptLength> for i64 {
    fn from(length: PromptLength) -> Self {
        length.0.into()
    }
}

impl JsonSchema for PromptLength {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PromptLength".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0, "maximum": i32::MAX })
    }
}
