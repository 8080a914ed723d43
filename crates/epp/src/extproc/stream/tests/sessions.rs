//! Sessions stay with the endpoint that served them, which need not be the one that was picked.

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use prost::Message;
use scheduling::{Scorer, SessionStrategy, WeightedScorer};

use super::*;
use crate::{
    config::Session,
    proto::{Kind, Metadata, PartResponse, Struct, Value},
};

const HEADER: &str = "x-session";

fn mk_config(strategy: SessionStrategy) -> Config {
    let mut config = small_config();
    config.session = Some(Session {
        strategy,
        headers: vec![HEADER.to_owned()],
    });
    config.profile.scorers = vec![WeightedScorer {
        scorer: Scorer::SessionAffinity(strategy),
        weight: 1.0,
    }];
    config
}

pub(super) fn header_value<'a>(part: &'a PartResponse, name: &str) -> Option<&'a str> {
    let mutation = part.response.as_ref()?.header_mutation.as_ref()?;
    let mut headers = mutation.set_headers.iter().flat_map(|set| &set.header);
    let header = headers.find(|header| header.key == name.as_bytes())?;
    Some(std::str::from_utf8(&header.raw_value).unwrap())
}

pub(super) fn mk_served(address: &str) -> Bytes {
    let value = |kind| Value { kind: Some(kind) };
    let served = value(Kind::StringValue(address.to_owned()));
    let key = "x-gateway-destination-endpoint-served".to_owned();
    let fields = HashMap::from([(key, served)]);
    let metadata = Metadata {
        filter_metadata: HashMap::from([("envoy.lb".to_owned(), Struct { fields })]),
        ..Metadata::default()
    };
    metadata.encode_to_vec().into()
}

/// Sends a request of the session through a proxy that can try two endpoints; the endpoints it was given.
async fn request(messages: &Messages, replies: &mut Stream, session: &str) -> Vec<String> {
    send(
        messages,
        Request::RequestHeaders(mk_headers(HEADER, session, true)),
    )
    .await;
    let reply = replies.next().await.unwrap().unwrap();
    let Some(Response::RequestHeaders(part)) = reply.response else {
        panic!("not to the headers")
    };
    let list = header_value(&part, "x-gateway-destination-endpoint").unwrap();
    list.split(',').map(str::to_owned).collect()
}

/// The response by `served` comes; the token that it is given.
pub(super) async fn respond(
    messages: &Messages,
    replies: &mut Stream,
    served: &str,
) -> Option<String> {
    respond_with(messages, replies, served, "200").await
}

async fn respond_with(
    messages: &Messages,
    replies: &mut Stream,
    served: &str,
    status: &str,
) -> Option<String> {
    let headers = mk_headers(":status", status, true);
    let message = ProcessingRequest {
        request: Some(Request::ResponseHeaders(headers)),
        metadata_context: Some(mk_served(served)),
        ..ProcessingRequest::default()
    };
    messages.send(Ok(message)).await.unwrap();
    let reply = replies.next().await.unwrap().unwrap();
    let Some(Response::ResponseHeaders(part)) = reply.response else {
        panic!("not to the headers")
    };
    header_value(&part, HEADER).map(str::to_owned)
}

#[rstest]
#[case::as_picked("10.0.0.1:8000", Some("ns/a"))]
#[case::fallback("10.0.0.2:8000", Some("ns/b"))]
#[case::a_member_that_was_not_listed("10.0.0.3:8000", Some("ns/c"))]
#[case::no_member("10.9.9.9:8000", None)]
#[tokio::test(start_paused = true)]
async fn the_token_of_a_response_names_the_pod_that_served_it(
    #[case] served: &str,
    #[case] named: Option<&str>,
) {
    let config = mk_config(SessionStrategy::EncodedEndpointHeader);
    let shared = mk_shared(&["a", "b", "c"], config, &mut Registry::default());
    let (messages, mut replies) = open(&shared, 2);
    let picked = request(&messages, &mut replies, &STANDARD.encode("ns/a")).await;
    assert_eq!(picked[0], "10.0.0.1:8000");
    let token = respond(&messages, &mut replies, served).await;
    assert_eq!(token, named.map(|pod| STANDARD.encode(pod)));
}

/// A token would bind the client to the pod that failed.
#[rstest]
#[case("201", true)]
#[case("404", false)]
#[case("500", false)]
#[case("503", false)]
#[tokio::test(start_paused = true)]
async fn an_error_comes_without_a_token(#[case] status: &str, #[case] has_token: bool) {
    let config = mk_config(SessionStrategy::EncodedEndpointHeader);
    let shared = mk_shared(&["a"], config, &mut Registry::default());
    let (messages, mut replies) = open(&shared, 1);
    let picked = request(&messages, &mut replies, "").await;
    let token = respond_with(&messages, &mut replies, &picked[0], status).await;
    assert_eq!(token.is_some(), has_token);
}

#[rstest]
#[case::fallback("10.0.0.2:8000")]
#[case::a_member_that_was_not_listed("10.0.0.3:8000")]
#[tokio::test(start_paused = true)]
async fn the_next_request_of_a_session_goes_where_the_last_was_served(#[case] served: &str) {
    let config = mk_config(SessionStrategy::SessionId {
        ttl: Duration::from_mins(5),
    });
    let shared = mk_shared(&["a", "b", "c"], config, &mut Registry::default());
    for last in ["10.0.0.1:8000", served] {
        let (messages, mut replies) = open(&shared, 2);
        request(&messages, &mut replies, "s").await;
        respond(&messages, &mut replies, last).await;
    }
    let (messages, mut replies) = open(&shared, 1);
    assert_eq!(request(&messages, &mut replies, "s").await, [served]);
}
