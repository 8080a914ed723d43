//! The calls, byte for byte as existing clients know them.

use std::time::SystemTime;

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metadata_center::Settings;
use tokio::{net::TcpStream, task::JoinSet};

use crate::client::{Served, memory};

const NULL: &str = r#"{"status":"OK","error":null,"data":null,"trace_id":"t"}"#;

/// The envelope around `data`.
fn ok(data: &str) -> String {
    format!(r#"{{"status":"OK","error":null,"data":{data},"trace_id":"t"}}"#)
}

/// Times as `N`, after a look at whether they are of now.
fn without_times(body: &str) -> String {
    let name = "\"updated_time\":";
    let mut parts = body.split(name);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (time, rest) = part.split_once('}').unwrap();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let age = since_1970.unwrap().as_nanos() - time.parse::<u128>().unwrap();
        assert!(age < 60_000_000_000, "{body}");
        text.push_str(name);
        text.push('N');
        text.push('}');
        text.push_str(rest);
    }
    text
}

#[tokio::test]
async fn loads_are_listed_by_address_and_clamped_and_an_unknown_cluster_is_null() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    assert_eq!(
        client.ok("GET /v1/load/stats?cluster=ns%2Fpool", "").await,
        NULL
    );
    for body in [
        r#"{"cluster":"ns/pool","request_id":"r1","ip":"10.0.0.2:8000","prompt_length":2147483647,"timestamp":5}"#,
        r#"{"cluster":"ns/pool","request_id":"r2","ip":"10.0.0.2:8000","prompt_length":1}"#,
        r#"{"cluster":"ns/pool","request_id":"r3","ip":"10.0.0.1"}"#,
        // Known: not charged again, here or elsewhere.
        r#"{"cluster":"ns/pool","request_id":"r3","ip":"10.0.0.3","prompt_length":9}"#,
    ] {
        assert_eq!(client.ok("POST /v1/load/stats", body).await, NULL);
    }
    let loads = client.ok("GET /v1/load/stats?cluster=ns/pool", "").await;
    let expected = ok(concat!(
        r#"[{"ip":"10.0.0.1","queued_req_num":1,"prompt_length":0,"updated_time":N},"#,
        r#"{"ip":"10.0.0.2:8000","queued_req_num":2,"prompt_length":2147483647,"updated_time":N}]"#,
    ));
    assert_eq!(without_times(&loads), expected);
}

#[tokio::test]
async fn deletes_take_prefill_and_then_the_rest_wherever_the_id_stands() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let load = async |client: &mut crate::client::Client| {
        let body = client.ok("GET /v1/load/stats?cluster=c", "").await;
        let numbers =
            without_times(&body).replace(r#"{"ip":"10.0.0.1:8000","queued_req_num":"#, "");
        numbers.replace(r#"{"status":"OK","error":null,"data":["#, "")
    };
    let ways: [(&str, &str); 3] = [
        ("", r#"{"request_id":"r","cluster":5}"#),
        ("?request_id=r", ""),
        ("/r", ""),
    ];
    let left = |requests: u32, prefill: u32| {
        format!(r#"{requests},"prompt_length":{prefill},"updated_time":N}}],"trace_id":"t"}}"#)
    };
    for (target, body) in ways {
        let add = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1:8000","prompt_length":30}"#;
        client.ok("POST /v1/load/stats", add).await;
        assert_eq!(load(&mut client).await, left(1, 30));
        for _ in 0..2 {
            let line = format!("DELETE /v1/load/prompt{target}");
            assert_eq!(client.ok(&line, body).await, NULL);
            assert_eq!(load(&mut client).await, left(1, 0));
        }
        let line = format!("DELETE /v1/load/stats{target}");
        assert_eq!(client.ok(&line, body).await, NULL);
        assert_eq!(load(&mut client).await, left(0, 0), "zeros, not nothing");
    }
}

#[tokio::test]
async fn an_add_after_its_delete_charges_nothing() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    assert_eq!(
        client
            .ok("DELETE /v1/load/stats", r#"{"request_id":"r"}"#)
            .await,
        NULL
    );
    let add = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1:8000","prompt_length":30}"#;
    assert_eq!(client.ok("POST /v1/load/stats", add).await, NULL);
    assert_eq!(client.ok("GET /v1/load/stats?cluster=c", "").await, NULL);
}

#[tokio::test]
async fn cached_prompts_are_found_longest_first_with_either_name_of_the_limit() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    for (ip, hashes) in [
        ("10.0.0.1", "1,2"),
        ("10.0.0.2", "1,2,18446744073709551615"),
        ("10.0.0.3", "1"),
    ] {
        let body = format!(r#"{{"cluster":"c","prompt_hash":[{hashes}],"ip":"{ip}","ttl_s":60}}"#);
        assert_eq!(client.ok("POST /v1/cache/save", &body).await, NULL);
    }
    let hashes = r#""cluster":"c","prompt_hash":[1,2,18446744073709551615]"#;
    let location = |n: u32, length: u32| format!(r#"{{"ip":"10.0.0.{n}","length":{length}}}"#);
    let all = [location(2, 3), location(1, 2), location(3, 1)].join(",");
    for (more, found) in [
        ("", all.clone()),
        (r#","topk":1"#, location(2, 3)),
        (r#","topk":1,"top_k":0"#, all.clone()),
        (r#","topk":3,"top_k":1"#, location(2, 3)),
        (
            r#","top_k":1,"candidates":["10.0.0.3","10.0.0.1","10.0.0.9"]"#,
            [location(1, 2), location(3, 1)].join(","),
        ),
    ] {
        let body = format!("{{{hashes}{more}}}");
        let expected = ok(&format!(r#"{{"locations":[{found}]}}"#));
        assert_eq!(
            client.ok("POST /v1/cache/query", &body).await,
            expected,
            "{more}"
        );
    }
    let nowhere = client
        .ok(
            "POST /v1/cache/query",
            r#"{"cluster":"d","prompt_hash":[]}"#,
        )
        .await;
    assert_eq!(nowhere, ok(r#"{"locations":[]}"#));
    client
        .ok("DELETE /v1/cache/endpoint?cluster=c&ip=10.0.0.2", "")
        .await;
    let body = format!("{{{hashes},\"top_k\":1}}");
    let expected = ok(&format!(r#"{{"locations":[{}]}}"#, location(1, 2)));
    assert_eq!(client.ok("POST /v1/cache/query", &body).await, expected);
}

#[tokio::test]
async fn joined_hashes_are_taken_where_the_service_is_told_to() {
    let save = r#"{"cluster":"c","prompt_hash":["1,2"],"ip":"10.0.0.1"}"#;
    let refused = Served::start(memory()).await;
    let reply = refused
        .client()
        .await
        .ask("POST /v1/cache/save", save)
        .await;
    assert_eq!(reply.status, 400);
    assert!(
        reply.body.contains("prompt_hash: expected numbers"),
        "{reply:?}"
    );
    let settings = Settings {
        accept_joined_hashes: true,
        ..Settings::default()
    };
    let served = Served::with(memory(), settings).await;
    assert_eq!(
        served.client().await.ok("POST /v1/cache/save", save).await,
        NULL
    );
}

#[tokio::test]
async fn a_pick_is_confirmed_by_a_batch_and_ends_with_the_lease() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let pick = r#"{"cluster":"c","request_id":"r","prompt_hash":[1],"prompt_length":512,"reserve_ms":10000,
        "candidates":[{"ip":"10.0.0.1:8000","bias":0.5}]}"#;
    let picked = ok(
        r#"{"picks":[{"ip":"10.0.0.1:8000","score":1.1666666666666665,"raw":0.0,"matched":0,"queued_req_num":0,"prompt_length":0}],"charge":512,"candidates":1}"#,
    );
    let answer = client.ok("POST /v1/pick", pick).await;
    let without_score = |text: &str| {
        let (before, after) = text.split_once("\"score\":").unwrap();
        format!("{before}{}", after.split_once(',').unwrap().1)
    };
    assert_eq!(without_score(&answer), without_score(&picked));
    let batch = r#"{"cluster":"c","instance":"epp-0","epoch":5,"seq":1,"full":true,"lease_ms":15000,
        "puts":[{"request_id":"r","ip":"10.0.0.1:8000","prompt_length":512}],"deletes":[],"live":1,"prompt_sum":512}"#;
    let applied = ok(r#"{"resync":false,"lease_ms":15000}"#);
    assert_eq!(client.ok("POST /v1/load/batch", batch).await, applied);
    let clusters = client.ok("GET /v1/clusters", "").await;
    let (before, _) = clusters.split_once("\"remaining_ms\":").unwrap();
    assert_eq!(
        before,
        concat!(
            r#"{"status":"OK","error":null,"data":[{"cluster":"c","endpoints":1,"requests":1,"chunks":1,"#,
            r#""leases":[{"instance":"epp-0","epoch":5,"live":1,"prompt_sum":512,"#,
        )
    );
    assert_eq!(client.ok("DELETE /v1/leases/epp-0?epoch=5", "").await, NULL);
    let loads = client.ok("GET /v1/load/stats?cluster=c", "").await;
    assert!(
        loads.contains(r#""queued_req_num":0,"prompt_length":0"#),
        "{loads}"
    );
}

#[tokio::test]
async fn the_content_type_is_ignored_and_the_trace_id_is_echoed_or_made() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let body = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#;
    let headers = "content-type: text/xml\r\nX-Request-Id: \"quoted\\\"\r\n";
    let reply = client.ask_with("POST /v1/load/stats", headers, body).await;
    assert_eq!(reply.headers["x-trace-id"], r#""quoted\""#);
    assert_eq!(
        reply.body,
        r#"{"status":"OK","error":null,"data":null,"trace_id":"\"quoted\\\""}"#
    );
    let other = client.ask_with("GET /v1/clusters", "", "").await;
    let made = &other.headers["x-trace-id"];
    assert!(
        other.body.ends_with(&format!(r#""trace_id":"{made}"}}"#)),
        "{other:?}"
    );
    assert_eq!(
        other.headers["x-metadata-boot"],
        reply.headers["x-metadata-boot"]
    );
    assert_eq!(reply.headers["x-metadata-boot"].len(), 16);
}

#[tokio::test]
async fn the_same_port_speaks_http_2() {
    let served = Served::start(memory()).await;
    let tcp = TcpStream::connect(served.address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp))
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async { connection.await.unwrap() });
    let body = Full::new(bytes::Bytes::from_static(
        br#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#,
    ));
    let request = Request::post("http://x/v1/load/stats").header("traceid", "t");
    let reply = sender
        .send_request(request.body(body).unwrap())
        .await
        .unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["x-trace-id"], "t");
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), NULL);
}
