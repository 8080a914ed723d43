use bytes::Bytes;
use rstest::rstest;
use std::net::SocketAddr;

use scheduling::{Allowed, NoPick};

use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue, header_value_option::HeaderAppendAction},
        service::ext_proc::v3::{
            BodyResponse, HeadersResponse, HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest,
            ProcessingResponse, ProtocolConfiguration, body_mutation::Mutation,
            processing_request::Request, processing_response::Response,
        },
    },
    google::protobuf::ListValue,
};

use super::*;
use crate::edit::Edit;

/// Reads a message in the published definition.
fn inputs(message: ProcessingRequest) -> SmallVec<[Input; 2]> {
    let bytes = Bytes::from(message.encode_to_vec());
    super::inputs(
        crate::proto::ProcessingRequest::decode(bytes).unwrap(),
        Wanted {
            attributes: true,
            content_type: true,
        },
    )
}

/// Writes a message, and reads it by the published definition.
fn message(reply: Reply, clear_route_cache: bool) -> ProcessingResponse {
    let message = super::message(reply, clear_route_cache, None);
    ProcessingResponse::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn mk_header(key: &str, value: &str) -> HeaderValue {
    HeaderValue {
        key: key.into(),
        value: String::new(),
        raw_value: value.into(),
    }
}

fn mk_message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn mk_headers(headers: Vec<HeaderValue>) -> HttpHeaders {
    HttpHeaders {
        headers: Some(HeaderMap { headers }),
        ..HttpHeaders::default()
    }
}

fn mk_metadata(namespace: &str, key: &str, kind: Kind) -> Metadata {
    let fields = HashMap::from([(key.to_owned(), Value { kind: Some(kind) })]);
    Metadata {
        filter_metadata: HashMap::from([(namespace.to_owned(), Struct { fields })]),
        ..Metadata::default()
    }
}

fn string(text: &str) -> Kind {
    Kind::StringValue(text.into())
}

fn mk_list(entries: &[&str]) -> Kind {
    let values = entries
        .iter()
        .map(|entry| Value {
            kind: Some(string(entry)),
        })
        .collect();
    Kind::ListValue(ListValue { values })
}

#[test]
fn request_headers_are_read_from_their_raw_values() {
    let mut message = mk_message(Request::RequestHeaders(mk_headers(vec![
        mk_header(":path", "/v1/completions?a=b"),
        mk_header("content-length", "17"),
        mk_header("x-request-id", "abc"),
        mk_header("x-gateway-inference-fairness-id", "tenant"),
    ])));
    message.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: BodySendMode::FullDuplexStreamed.into(),
        response_body_mode: BodySendMode::None.into(),
        send_body_without_waiting_for_header_response: true,
    });
    let [Input::RequestHeaders(head)] = &inputs(message)[..] else {
        panic!("one input")
    };
    assert_eq!(
        head.field(&["x-none", "x-gateway-inference-fairness-id"]),
        Some("tenant")
    );
    assert_eq!(head.field(&["x-none"]), None);
    let want = RequestHead {
        path: "/v1/completions?a=b".into(),
        content_length: Some(17),
        has_request_id: true,
        fields: head.fields.clone(),
        end: false,
        modes: Some(Modes {
            request: BodyMode::FullDuplexStreamed,
            response: BodyMode::None,
            body_before_headers_reply: true,
        }),
    };
    assert_eq!(*head, want);
}

#[test]
fn a_path_that_is_no_text_is_kept() {
    let path = HeaderValue {
        key: ":path".into(),
        raw_value: b"/\xff".to_vec(),
        ..HeaderValue::default()
    };
    let message = mk_message(Request::RequestHeaders(mk_headers(vec![path])));
    let [Input::RequestHeaders(head)] = &inputs(message)[..] else {
        panic!("one input")
    };
    assert_eq!(head.path, &b"/\xff"[..]);
}

#[test]
fn the_status_is_the_pseudo_header() {
    let headers = mk_headers(vec![
        mk_header("status", "200"),
        mk_header(":status", "503"),
    ]);
    let [Input::ResponseHeaders(head)] = &inputs(mk_message(Request::ResponseHeaders(headers)))[..]
    else {
        panic!("one input")
    };
    assert_eq!(head.status, 503);
}

#[rstest]
#[case(BodySendMode::Grpc.into())]
#[case(77)]
fn a_mode_we_do_not_speak_is_told(#[case] mode: i32) {
    let mut message = mk_message(Request::RequestBody(HttpBody::default()));
    message.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: mode,
        ..ProtocolConfiguration::default()
    });
    assert!(matches!(inputs(message)[..], [Input::UnknownMode(number)] if number == mode));
}

#[rstest]
#[case::list(mk_list(&["10.0.0.1:8000", "10.0.0.2"]), Some(("10.0.0.2:1", true)))]
#[case::comma_string(string("10.0.0.1:8000,10.0.0.2:8000"), Some(("10.0.0.2:8000", true)))]
#[case::empty_list(mk_list(&[]), None)]
#[case::number(Kind::NumberValue(1.0), None)]
fn the_subset_is_a_list_or_a_string(#[case] kind: Kind, #[case] allows: Option<(&str, bool)>) {
    let mut message = mk_message(Request::RequestHeaders(mk_headers(vec![])));
    message.metadata_context = Some(mk_metadata(
        "envoy.lb.subset_hint",
        "x-gateway-destination-endpoint-subset",
        kind,
    ));
    let inputs = inputs(message);
    let [
        Input::Context(Context {
            subset: Some(subset),
            ..
        }),
        Input::RequestHeaders(_),
    ] = &inputs[..]
    else {
        panic!("the context comes first: {inputs:?}")
    };
    assert_eq!(
        subset.is_empty(),
        allows.is_none(),
        "present without a valid entry allows nothing"
    );
    if let Some((address, allowed)) = allows {
        let address: SocketAddr = address.parse().unwrap();
        let all = subset.entries().iter().any(|entry| match entry {
            Allowed::Ip(ip) => *ip == address.ip(),
            Allowed::Address(one) => *one == address,
        });
        assert_eq!(all, allowed);
    }
}

#[test]
fn the_served_endpoint_comes_with_the_response() {
    let mut message = mk_message(Request::ResponseHeaders(mk_headers(vec![])));
    message.metadata_context = Some(mk_metadata(
        "envoy.lb",
        "x-gateway-destination-endpoint-served",
        string("10.0.0.1:8000"),
    ));
    let inputs = inputs(message);
    assert!(
        matches!(&inputs[0], Input::Context(Context { served: Some(address), .. }) if address.port() == 8000)
    );
}

#[test]
fn metadata_of_others_is_no_input() {
    let mut message = mk_message(Request::RequestTrailers(HttpTrailers::default()));
    message.metadata_context = Some(mk_metadata("envoy.filters.x", "y", string("z")));
    assert!(matches!(inputs(message)[..], [Input::RequestTrailers]));
}

fn destination_in(metadata: Option<Struct>) -> Option<Kind> {
    let Some(Kind::StructValue(mut inner)) = metadata?.fields.remove("envoy.lb")?.kind else {
        return None;
    };
    inner.fields.remove("x-gateway-destination-endpoint")?.kind
}

#[test]
fn scores_stand_beside_the_pick_in_the_metadata() {
    let route = Route {
        destination: Some("10.0.0.1:8000".into()),
        scores: vec![
            ("10.0.0.1:8000".to_owned(), 4.5),
            ("10.0.0.2:8000".to_owned(), 1.0),
        ],
        ..Route::default()
    };
    let message = message(Reply::Headers(Phase::Request, Some(Box::new(route))), true);
    let mut outer = message.dynamic_metadata.unwrap().fields;
    let Some(Kind::StructValue(mut lb)) = outer.remove("envoy.lb").unwrap().kind else {
        panic!("no struct")
    };
    assert_eq!(lb.fields.len(), 2, "the pick and its scores");
    let scores = lb.fields.remove("x-gateway-destination-endpoint-scores");
    let Some(Kind::StructValue(scores)) = scores.unwrap().kind else {
        panic!("no struct")
    };
    for (address, score) in [("10.0.0.1:8000", 4.5), ("10.0.0.2:8000", 1.0)] {
        assert_eq!(scores.fields[address].kind, Some(Kind::NumberValue(score)));
    }
}

#[rstest]
#[case(true)]
#[case(false)]
fn a_pick_is_the_same_in_header_and_metadata(#[case] clear: bool) {
    let mut edit = Edit::default();
    edit.set_header(REQUEST_ID, "id");
    edit.remove_header("content-length");
    let route = Route {
        destination: Some("10.0.0.1:8000,10.0.0.2:8000".into()),
        edit,
        ..Route::default()
    };
    let message = message(Reply::Headers(Phase::Request, Some(Box::new(route))), clear);
    assert_eq!(
        destination_in(message.dynamic_metadata),
        Some(string("10.0.0.1:8000,10.0.0.2:8000"))
    );
    let Some(Response::RequestHeaders(HeadersResponse {
        response: Some(common),
    })) = message.response
    else {
        panic!("a headers response")
    };
    assert_eq!(common.clear_route_cache, clear);
    let mutation = common.header_mutation.unwrap();
    let set: Vec<_> = mutation
        .set_headers
        .into_iter()
        .map(|set| (set.header.unwrap(), set.append_action))
        .collect();
    let overwrite = i32::from(HeaderAppendAction::OverwriteIfExistsOrAdd);
    let want = [
        (
            mk_header(
                "x-gateway-destination-endpoint",
                "10.0.0.1:8000,10.0.0.2:8000",
            ),
            overwrite,
        ),
        (mk_header("x-request-id", "id"), overwrite),
    ];
    assert_eq!(set, want);
    assert!(
        mutation
            .remove_headers
            .contains(&"x-gateway-destination-endpoint-subset".to_owned())
    );
    assert!(
        !mutation
            .remove_headers
            .contains(&"x-gateway-destination-endpoint".to_owned()),
        "never set and removed"
    );
}

#[test]
fn a_plain_answer_changes_nothing() {
    let plain = message(Reply::Headers(Phase::Response, None), true);
    assert_eq!(
        plain.response,
        Some(Response::ResponseHeaders(HeadersResponse {
            response: None
        }))
    );
    assert_eq!(plain.dynamic_metadata, None);
}

#[test]
fn streamed_bytes_and_their_end_are_carried() {
    let part = Part::Streamed(Streamed {
        bytes: Bytes::from_static(b"abc"),
        end: true,
    });
    let message = message(
        Reply::Body {
            phase: Phase::Response,
            route: None,
            part,
        },
        true,
    );
    let Some(Response::ResponseBody(BodyResponse {
        response: Some(common),
    })) = message.response
    else {
        panic!("a body response")
    };
    let Some(Mutation::StreamedResponse(body)) = common.body_mutation.unwrap().mutation else {
        panic!("streamed")
    };
    assert_eq!(
        (body.body.as_slice(), body.end_of_stream),
        (&b"abc"[..], true)
    );
    assert!(!common.clear_route_cache);
}

#[test]
fn a_refusal_is_an_immediate_json_response() {
    let message = message(Reply::Immediate(NoPick::EmptyPool.into()), true);
    let Some(Response::ImmediateResponse(response)) = message.response else {
        panic!("immediate")
    };
    assert_eq!(response.status.unwrap().code, 503);
    let headers: Vec<_> = response
        .headers
        .unwrap()
        .set_headers
        .into_iter()
        .filter_map(|set| set.header)
        .collect();
    assert!(headers.contains(&mk_header("content-type", "application/json")));
    assert!(headers.contains(&mk_header(
        "x-llm-d-request-dropped-reason",
        "rejected-no-endpoints"
    )));
    assert!(serde_json::from_slice::<serde_json::Value>(&response.body).is_ok());
}
