//! Ids by key.

use processor::TokenTransfer;
use serde_json::json;

use crate::served::{Options, Served, ask, chat, text};

#[tokio::test]
async fn a_worker_fetches_the_ids_of_a_key_as_often_as_it_likes() {
    let served = Served::start(Options {
        mode: TokenTransfer::Cache,
        ..Options::default()
    })
    .await;
    let reply = served.process(&chat("tiny", false, "")).await;
    let key = reply["token_key"].as_str().unwrap();
    assert_eq!(reply, json!({"token_key": key, "token_count": 19}));
    for _ in 0..2 {
        let path = format!("/v1/tokens/{key}");
        let binary = [("accept", "application/octet-stream")];
        let fetched = ask(&served.tokens, "GET", &path, &binary, "").await;
        assert_eq!(fetched.status, 200, "{}", text(&fetched));
        assert_eq!(fetched.headers["x-tokens-model"], "tiny");
        assert_eq!(fetched.headers["x-tokens-count"], "19");
        let (ids, rest) = fetched.body.as_chunks();
        let ids: Vec<u32> = ids.iter().map(|id| u32::from_le_bytes(*id)).collect();
        assert!(rest.is_empty());
        assert_eq!(
            (ids.len(), ids[..6].to_vec()),
            (19, vec![256, 117, 115, 101, 114, 10])
        );
    }
}

#[tokio::test]
async fn each_prompt_has_a_key_of_its_own() {
    let served = Served::start(Options {
        mode: TokenTransfer::Cache,
        ..Options::default()
    })
    .await;
    let call = chat("tiny", false, "the same");
    let (first, second) = (served.process(&call).await, served.process(&call).await);
    assert_ne!(first["token_key"], second["token_key"]);
}

#[tokio::test]
async fn both_ports_need_a_token_where_there_is_one() {
    let served = Served::start(Options {
        token: Some("secret"),
        ..Options::default()
    })
    .await;
    let key = "tk_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let cases = [
        (&served.calls, "POST", "/process".to_owned()),
        (&served.tokens, "GET", format!("/v1/tokens/{key}")),
    ];
    for (hop, method, path) in cases {
        let reply = ask(hop, method, &path, &[], "{}").await;
        assert_eq!(
            (reply.status.as_u16(), &reply.headers["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
        let token = [("authorization", "Bearer secret")];
        let reply = ask(hop, method, &path, &token, "{}").await;
        assert_ne!(reply.status, 401);
    }
}
