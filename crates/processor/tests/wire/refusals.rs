//! Calls that are refused, and the end.

use rstest::rstest;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::served::{LIMIT, Options, Served, ask, chat, text};

fn deep() -> String {
    let deep = "[".repeat(200) + &"]".repeat(200);
    format!(r#"{{"request_body":{{"model":"tiny","messages":[],"metadata":{deep}}}}}"#)
}

#[rstest]
#[case::template(
    "/process",
    chat("strict", false, ""),
    400,
    "template-error",
    "roles must alternate"
)]
#[case::no_json("/process", "{".to_owned(), 400, "bad-request", "line 1, column 1")]
#[case::too_long(
    "/process",
    chat("short", false, ""),
    422,
    "unsupported",
    "a limit of 4"
)]
#[case::too_deep("/process", deep(), 422, "unsupported", "levels of nesting")]
#[case::large_number("/process", r#"{"request_body":{"model":"tiny","messages":[],"x":1e400}}"#.to_owned(), 422, "unsupported", "beyond 64 bits")]
#[case::unknown_model("/process", chat("other", false, ""), 404, "unknown-model", "other")]
#[case::too_large("/process", chat("tiny", false, &"x".repeat(100_000)), 413, "too-large", "--max-prompt-bytes")]
#[case::no_template(
    "/process",
    chat("chatless", false, ""),
    422,
    "unsupported",
    "no chat template"
)]
#[case::rendered("/v1/completions/render", r#"{"model":"tiny","prompt":7}"#.to_owned(), 400, "bad-request", "neither a string")]
#[case::other_path("/v1/chat/completions", "{}".to_owned(), 404, "not-found", "no such path")]
#[tokio::test]
async fn a_refusal_has_its_status_reason_and_message(
    #[case] path: &str,
    #[case] body: String,
    #[case] status: u16,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let served = Served::start(Options {
        max_prompt_bytes: 50_000,
        ..Options::default()
    })
    .await;
    let reply = served.post(path, body).await;
    let error: Value = serde_json::from_slice(&reply.body).unwrap();
    let error = &error["error"];
    assert_eq!(
        (reply.status.as_u16(), &error["code"], &error["type"]),
        (status, &status.into(), &reason.into()),
        "{error}"
    );
    assert!(
        error["message"].as_str().unwrap().contains(message),
        "{error}"
    );
    assert_eq!(reply.headers["x-isthmus-api"], "1");
}

#[tokio::test]
async fn another_method_is_refused_with_the_right_one() {
    let served = Served::start(Options::default()).await;
    let reply = ask(&served.calls, "GET", "/process", &[], "").await;
    assert_eq!(reply.status, 405);
    assert_eq!(reply.headers["allow"], "POST");
}

/// Sends a head, and returns all that comes until the connection ends.
async fn send_alone(served: &Served, head: &str) -> String {
    let mut tcp = TcpStream::connect(served.address).await.unwrap();
    tcp.write_all(head.as_bytes()).await.unwrap();
    let mut reply = String::new();
    let reading = timeout(LIMIT, tcp.read_to_string(&mut reply));
    reading.await.expect("an end").unwrap();
    reply
}

#[tokio::test]
async fn a_body_that_says_that_it_is_too_large_is_refused_unread() {
    let served = Served::start(Options::default()).await;
    let head = format!(
        "POST /process HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        18 << 20
    );
    let reply = send_alone(&served, &head).await;
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_refused_when_the_callers_time_is_over() {
    let served = Served::start(Options::default()).await;
    let head = "POST /process HTTP/1.1\r\nhost: x\r\nx-isthmus-deadline-ms: 100\r\ncontent-length: 9\r\n\r\n{";
    let reply = send_alone(&served, head).await;
    assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    assert!(reply.contains("connection: close\r\n"), "{reply}");
}

#[tokio::test]
async fn after_the_stop_new_calls_are_refused_and_the_server_ends() {
    let mut served = Served::start(Options::default()).await;
    served.process(&chat("tiny", false, "")).await;
    served.stop.cancel();
    let body = chat("tiny", false, "");
    let refused = loop {
        let reply = served.post("/process", body.clone()).await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!(refused.status, 503);
    assert!(text(&refused).contains("not-ready"), "{}", text(&refused));
    let ended = async {
        while let Some(ended) = served.tasks.join_next().await {
            ended.unwrap();
        }
    };
    timeout(LIMIT, ended).await.expect("the end");
}

#[tokio::test]
async fn a_caller_without_time_is_refused() {
    let served = Served::start(Options::default()).await;
    let none = [("x-isthmus-deadline-ms", "10")];
    let call = chat("tiny", false, "");
    let reply = ask(&served.calls, "POST", "/process", &none, call).await;
    // the body may be there at once, or not
    let refused = [408, 503].contains(&reply.status.as_u16());
    assert!(refused, "{} {}", reply.status, text(&reply));
}
