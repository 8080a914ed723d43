//! What is believed to be cached is where the request was served.

use futures::FutureExt;

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

/// The first endpoint refused the connection, or the client left: the prompt does not count as cached there. A stream
/// that is closed in order, as on routes that send no responses to the EPP, proves nothing, nor does a reset where the
/// proxy never sends a response.
#[rstest]
#[case::reset(true, true, 0)]
#[case::reset_unseen(false, true, 9)]
#[case::closed(true, false, 9)]
#[case::closed_unseen(false, false, 9)]
#[tokio::test(start_paused = true)]
async fn a_request_that_no_response_came_for_was_cached_nowhere(
    #[case] shows_responses: bool,
    #[case] is_reset: bool,
    #[case] want: usize,
) {
    let shared = mk_shared_of(1 << 16, &["a"], small_config(), &mut Registry::default());
    let known = || shared.director.prefix_stats().entries;
    let prompt = "x".repeat(8 * 256 - 1);
    if shows_responses {
        let (messages, mut replies, picked) = ask(&shared, 1, "").await;
        respond(&messages, &mut replies, &picked[0]).await;
    }
    let before = known();
    let (messages, mut replies, _) = ask(&shared, 1, &prompt).await;
    assert!(replies.next().now_or_never().is_none());
    assert_eq!(known() - before, 9, "learned once the answer was written");
    if is_reset {
        drop(replies);
    } else {
        drop(messages);
        assert!(replies.next().await.is_none());
        drop(replies);
    }
    assert_eq!(known() - before, want);
}

/// The second is picked for the endpoint because the first one was: once both went elsewhere nothing draws others there.
#[rstest]
#[case::both_left(false, 0)]
#[case::the_second_is_served(true, 9)]
#[tokio::test(start_paused = true)]
async fn requests_of_one_prompt_leave_nothing_where_none_was_served(
    #[case] is_served: bool,
    #[case] want: usize,
) {
    let shared = mk_shared_of(1 << 16, &["a"], small_config(), &mut Registry::default());
    let known = || shared.director.prefix_stats().entries;
    let (messages, mut replies, picked) = ask(&shared, 1, "").await;
    respond(&messages, &mut replies, &picked[0]).await;
    let before = known();
    let prompt = "x".repeat(8 * 256 - 1);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let (messages, mut replies, _) = ask(&shared, 1, &prompt).await;
        assert!(replies.next().now_or_never().is_none());
        streams.push((messages, replies));
    }
    let (messages, mut second) = streams.pop().unwrap();
    if is_served {
        respond(&messages, &mut second, &picked[0]).await;
        assert!(second.next().now_or_never().is_none());
    }
    drop(streams);
    drop(second);
    assert_eq!(known() - before, want);
}

/// No endpoint of the pool has cached what an endpoint outside the pool served.
#[tokio::test(start_paused = true)]
async fn what_a_stranger_served_is_cached_by_none_of_the_pool() {
    let shared = mk_shared_of(1 << 16, &["a"], small_config(), &mut Registry::default());
    let (messages, mut replies, _) = ask(&shared, 1, &"x".repeat(300)).await;
    respond(&messages, &mut replies, "10.9.9.9:8000").await;
    assert_eq!(shared.director.prefix_stats().entries, 0);
    let load = shared.director.pool().snapshot();
    assert_eq!(load.members()[0].endpoint.load().in_flight(), 0);
}
