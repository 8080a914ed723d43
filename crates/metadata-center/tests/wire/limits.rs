//! What one client can make the service do.

use crate::client::{Served, memory};

const TOO_LARGE: &str = concat!(
    r#"{"status":"ERROR","error":{"code":41301000,"message":"the body is larger than 4194304 bytes","#,
    r#""reason":"too-large"},"data":null,"trace_id":"t"}"#
);

#[tokio::test]
async fn a_body_that_says_that_it_is_too_large_is_refused_unread() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let head =
        "POST /v1/load/batch HTTP/1.1\r\nhost: x\r\nTraceId: t\r\ncontent-length: 4194305\r\n\r\n";
    client.send(head).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, &*reply.body), (413, TOO_LARGE));
    assert_eq!(reply.headers["connection"], "close");
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_body_that_becomes_too_large_is_refused() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let head = "POST /v1/load/batch HTTP/1.1\r\nhost: x\r\nTraceId: t\r\ntransfer-encoding: chunked\r\n\r\n";
    client.send(head).await;
    let chunk = format!("{:x}\r\n{}\r\n", 4 << 20, " ".repeat(4 << 20));
    client.send(&chunk).await;
    client.send("1\r\n \r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, &*reply.body), (413, TOO_LARGE));
}

#[tokio::test]
async fn the_largest_body_is_read() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let mut body = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#.to_owned();
    body.push_str(&" ".repeat((4 << 20) - body.len()));
    client.ok("POST /v1/load/stats", &body).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_refused() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let head = "POST /v1/load/batch HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
    client.send(head).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.body.contains("body: it was not there within 2s"),
        "{reply:?}"
    );
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn after_the_stop_new_calls_are_refused_those_in_progress_end_and_so_does_the_server() {
    let mut served = Served::start(memory()).await;
    let (mut idle, mut busy) = (served.client().await, served.client().await);
    idle.ok("GET /v1/clusters", "").await;
    let head = "POST /v1/load/stats HTTP/1.1\r\nhost: x\r\ncontent-length: 48\r\nexpect: 100-continue\r\n\r\n";
    busy.send(head).await;
    busy.continued().await;
    served.stop.cancel();
    let reply = loop {
        let reply = idle.ask("GET /v1/clusters", "").await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!(reply.status, 503);
    assert!(reply.body.contains(r#""code":50301001"#), "{reply:?}");
    assert!(idle.is_closed().await);
    busy.send(r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#)
        .await;
    assert_eq!(busy.reply().await.status, 200);
    assert!(busy.is_closed().await);
    served.tasks.join_next().await.unwrap().unwrap();
}
