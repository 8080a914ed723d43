//! Messages of Envoy's external processing service, as far as this EPP reads and writes them.
//!
//! They are a part of the published definitions, with the same numbers. Two things are other: bytes are slices of the
//! message that came, so a body is not copied and its memory goes with it; and attributes stay unread until somebody
//! asks for them, for they come with each message and matter in two.

use bytes::Bytes;

pub(crate) use envoy_types::pb::{
    envoy::{
        config::core::v3::Metadata,
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
    },
    google::protobuf::{Duration, Struct, Value, value::Kind},
};
pub(crate) use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

/// `OVERWRITE_IF_EXISTS_OR_ADD` of `HeaderAppendAction`.
pub(crate) const OVERWRITE_OR_ADD: i32 = 2;

/// What the proxy sends.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessingRequest {
    #[prost(oneof = "Request", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) request: Option<Request>,
    /// An encoded [`Metadata`].
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(crate) metadata_context: Option<Bytes>,
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol_config: Option<ProtocolConfiguration>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::enum_variant_names, reason = "the protocol's names")]
pub(crate) enum Request {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub(crate) response_body_mode: i32,
    #[prost(bool, tag = "3")]
    pub(crate) send_body_without_waiting_for_header_response: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

/// Nothing of them is read.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct HttpTrailers {}

/// What we answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessingResponse {
    #[prost(oneof = "Response", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) response: Option<Response>,
    #[prost(message, optional, tag = "8")]
    pub(crate) dynamic_metadata: Option<Struct>,
    /// The proxy may wait longer than configured for the answer to its last message.
    #[prost(message, optional, tag = "10")]
    pub(crate) override_message_timeout: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::enum_variant_names, reason = "the protocol's names")]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    #[prost(message, tag = "5")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "6")]
    ResponseTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ImmediateResponse(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which are alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PartResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body_mutation: Option<BodyMutation>,
    #[prost(bool, tag = "5")]
    pub(crate) clear_route_cache: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderValueOption>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) remove_headers: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub(crate) append_action: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BodyMutation {
    #[prost(oneof = "Mutation", tags = "1, 2, 3")]
    pub(crate) mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Mutation {
    /// The body as it is to be, where it came whole.
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    /// There is to be none.
    #[prost(bool, tag = "2")]
    ClearBody(bool),
    #[prost(message, tag = "3")]
    StreamedResponse(StreamedBodyResponse),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamedBodyResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    #[prost(string, tag = "5")]
    pub(crate) details: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}
