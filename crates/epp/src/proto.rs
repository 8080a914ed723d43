//! The only place that names foreign protobuf types.

pub(crate) use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap, HeaderValue, HeaderValueOption, Metadata,
            header_value_option::HeaderAppendAction,
        },
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
            HttpHeaders, ImmediateResponse, ProcessingRequest, ProcessingResponse,
            ProtocolConfiguration, StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
            external_processor_server::ExternalProcessor,
            external_processor_server::ExternalProcessorServer, processing_request::Request,
            processing_response::Response,
        },
        r#type::v3::HttpStatus,
    },
    google::protobuf::{Struct, Value, value::Kind},
};
pub(crate) use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};
