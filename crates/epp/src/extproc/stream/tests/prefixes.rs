//! What is believed to be cached is where the request was served.

use super::*;
use crate::extproc::stream::tests::sessions::{header_value, respond};

/// Sends a prompt through a proxy that can try `list` endpoints; the endpoints it was given.
async fn ask(shared: &Arc<Shared>, list: u8, prompt: &str) -> (Messages, Stream, Vec<String>) {
    let (messages, mut replies) = open(shared, list);
    let head = mk_headers(":path", "/v1/completions", false);
    send(&messages, Request::RequestHeaders(head)).await;
    let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
    let body = HttpBody {
        body: body.into(),
        end_of_stream: true,
    };
    send(&messages, Request::RequestBody(body)).await;
    let reply = replies.next().await.unwrap().unwrap();
    let Some(Response::RequestHeaders(part)) = reply.response else {
        panic!("not to the headers")
    };
    let picked = header_value(&part, "x-gateway-destination-endpoint").unwrap();
    let picked = picked.split(',').map(str::to_owned).collect();
    replies.next().await.unwrap().unwrap(); // the body
    (messages, replies, picked)
}

/// The first endpoint has the beginning of the prompt from before; another one serves it, with a response that ends at its
/// headers.
#[rstest]
#[case::of_the_list(2)]
#[case::a_member_that_was_not_listed(1)]
#[tokio::test(start_paused = true)]
async fn what_was_learned_of_the_first_endpoint_moves_to_the_one_that_served(#[case] list: u8) {
    let config = small_config();
    let shared = mk_shared_of(1 << 16, &["a", "b"], config, &mut Registry::default());
    let known = || shared.director.prefix_stats().entries;
    // Blocks are of 256 bytes, and the quotation marks are part of a prompt.
    let beginning = "x".repeat(8 * 256 - 1);
    let (messages, mut replies, picked) = ask(&shared, 1, &beginning).await;
    respond(&messages, &mut replies, &picked[0]).await;
    assert_eq!(known(), 9);

    let prompt = format!("{beginning}{}", "y".repeat(8 * 256));
    let (messages, mut replies, first) = ask(&shared, list, &prompt).await;
    assert_eq!(first[0], picked[0], "it has the beginning");
    let members = ["10.0.0.1:8000", "10.0.0.2:8000"];
    let other = members.into_iter().find(|member| *member != first[0]);
    respond(&messages, &mut replies, other.unwrap()).await;
    assert_eq!(known(), 9 + 17, "the first has what it had");
    let (_messages, _replies, next) = ask(&shared, 1, &prompt).await;
    assert_eq!(next, other.as_slice());
}
