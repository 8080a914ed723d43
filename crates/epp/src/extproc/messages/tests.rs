//! Messages in frames of every cut, and what they take.

use futures::{FutureExt, StreamExt, stream};
use http_body_util::StreamBody;
use proptest::prelude::*;
use prost::Message;
use rstest::rstest;
use tonic::codegen::http::HeaderMap;

use super::*;
use crate::proto::{self, Request};

const MIB: usize = 1 << 20;

type Frame = hyper::body::Frame<Bytes>;

fn mk_message(bytes: usize) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(Request::RequestBody(proto::HttpBody {
            body: Bytes::from(vec![b'x'; bytes]),
            ..proto::HttpBody::default()
        })),
        ..ProcessingRequest::default()
    }
}

/// As gRPC frames a message.
fn framed(message: &ProcessingRequest) -> Vec<u8> {
    let message = message.encode_to_vec();
    [&announced(message.len())[..], &message].concat()
}

fn announced(length: usize) -> [u8; PREFIX] {
    let [a, b, c, d] = u32::try_from(length).unwrap().to_be_bytes();
    [0, a, b, c, d]
}

fn mk_messages(
    frames: Vec<Result<Frame, Status>>,
    budget: &Budget,
) -> Messages<impl HttpBody<Data = Bytes, Error = Status> + use<>> {
    Messages::new(StreamBody::new(stream::iter(frames)), 8 * MIB, budget)
}

fn data(bytes: &[u8]) -> Frame {
    Frame::data(Bytes::copy_from_slice(bytes))
}

/// All that is there at once.
fn all<B>(messages: Messages<B>) -> Vec<Result<ProcessingRequest, Status>>
where
    B: HttpBody,
    B::Error: Into<StdError>,
{
    messages
        .collect()
        .now_or_never()
        .expect("nothing to wait for")
}

proptest! {
    #[test]
    fn messages_are_those_that_were_sent_however_they_are_cut(
        sizes in prop::collection::vec(0_usize..60_000, 0..5),
        cut in 1_usize..70_000,
    ) {
        let sent: Vec<_> = sizes.iter().map(|size| mk_message(*size)).collect();
        let wire: Vec<u8> = sent.iter().flat_map(framed).collect();
        let frames = wire.chunks(cut).map(|part| Ok(data(part))).collect();
        let budget = Budget::new(u64::MAX);
        let received: Vec<_> = all(mk_messages(frames, &budget));
        let received: Vec<_> = received.into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(received, sent);
        prop_assert_eq!(budget.used(), 0);
    }
}

#[test]
fn a_message_has_memory_as_it_comes_and_nobody_else_holds_it() {
    // What is there counts, also where there is no more room.
    let budget = Budget::new(10_000);
    let wire = framed(&mk_message(4 * MIB));
    let mut frames: Vec<Result<Frame, Status>> =
        wire.chunks(64 * 1024).map(|part| Ok(data(part))).collect();
    let rest = frames.split_off(2);
    let rest = stream::iter(rest).chain(stream::pending());
    let begin = stream::iter(frames).chain(stream::once(async {
        tokio::task::yield_now().await;
        Ok(Frame::trailers(HeaderMap::new()))
    }));
    let mut messages = Messages::new(StreamBody::new(begin.chain(rest)), 8 * MIB, &budget);
    assert!(messages.next().now_or_never().is_none(), "a part");
    let used = budget.used();
    // less than the two frames by the prefix, and at most twice that
    assert!((100 * 1024..=256 * 1024).contains(&used), "{used}");
    let message = messages.next().now_or_never().expect("the rest is there");
    let Some(Request::RequestBody(body)) = message.unwrap().unwrap().request else {
        panic!("another message");
    };
    assert_eq!(budget.used(), 0, "who reads it counts it");
    assert_eq!(body.body.len(), 4 * MIB);
    assert!(body.body.is_unique(), "its memory ends with it");
}

#[rstest]
#[case::too_long(announced(9 * MIB).to_vec(), Code::OutOfRange, "the limit is 8388608")]
#[case::compressed(vec![1, 0, 0, 0, 0], Code::Internal, "compressed")]
#[case::no_message([&announced(3)[..], b"\xff\xff\xff"].concat(), Code::Internal, "cannot be read")]
#[case::cut_in_the_prefix(vec![0, 0], Code::Internal, "within a message")]
#[case::cut_in_the_message([&announced(3)[..], b"ab"].concat(), Code::Internal, "within a message")]
fn what_is_no_message_ends_the_stream(
    #[case] wire: Vec<u8>,
    #[case] code: Code,
    #[case] text: &str,
) {
    let budget = Budget::new(10_000);
    let mut received = all(mk_messages(vec![Ok(data(&wire))], &budget));
    assert_eq!(received.len(), 1);
    let status = received.remove(0).expect_err("refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(text), "{status}");
    assert_eq!(budget.used(), 0);
}

#[rstest]
#[case::reset(Code::Cancelled, 0)]
#[case::broken(Code::Unavailable, 1)]
fn a_reset_of_the_peer_is_an_end(#[case] code: Code, #[case] errors: usize) {
    let frames = vec![
        Ok(data(&framed(&mk_message(1)))),
        Err(Status::new(code, "gone")),
    ];
    let received = all(mk_messages(frames, &Budget::new(0)));
    assert!(received[0].is_ok());
    assert_eq!(received.len(), 1 + errors);
}
