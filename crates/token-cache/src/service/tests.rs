use http::Request;
use rstest::rstest;

use super::*;
use crate::{Endpoint, Settings};

const KEY: &str = "/v1/tokens/tk_abcdefghijklmnopqrstuvwxyz";

fn mk_service() -> TokenService {
    let (store, _) = Store::open(Endpoint::Memory, Settings::default()).unwrap();
    TokenService::new(store, Duration::from_secs(1))
}

async fn ask(
    service: &TokenService,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response<Bytes> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    match service.begin(&head) {
        Ok(operation) => service.run(operation, body).await,
        Err(refused) => refused.response(),
    }
}

const TAGS: [(&str, &str); 2] = [("x-tokens-model", "m"), ("x-tokens-tokenizer", "00ff")];

fn put_headers<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&TAGS[..], more].concat()
}

#[tokio::test]
async fn ids_are_put_and_read_in_either_form() {
    let service = mk_service();
    let headers = put_headers(&[
        ("content-type", "application/json"),
        ("x-tokens-count", "2"),
    ]);
    for status in [204, 204] {
        let put = ask(&service, Method::PUT, KEY, &headers, b"[1, 258]").await;
        assert_eq!((put.status().as_u16(), put.body().len()), (status, 0));
    }
    let put = ask(&service, Method::PUT, KEY, &headers, b"[1, 259]").await;
    assert_eq!(put.status(), 409);
    let get = ask(&service, Method::GET, KEY, &[], b"").await;
    assert_eq!(
        (get.status().as_u16(), &get.body()[..]),
        (200, &b"[1,258]"[..])
    );
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-tokens-model", "m"),
        ("x-tokens-tokenizer", "00ff"),
        ("x-tokens-count", "2"),
        ("cache-control", "no-store"),
        ("x-isthmus-api", "1"),
    ] {
        assert_eq!(get.headers()[name], value, "{name}");
    }
    let accept = [("accept", "application/octet-stream")];
    let get = ask(&service, Method::GET, KEY, &accept, b"").await;
    assert_eq!(&get.body()[..], [1, 0, 0, 0, 2, 1, 0, 0]);
    for status in [204, 204] {
        let deleted = ask(&service, Method::DELETE, KEY, &[], b"").await;
        assert_eq!(deleted.status(), status);
    }
    let get = ask(&service, Method::GET, KEY, &[], b"").await;
    assert_eq!(get.status(), 404);
}

#[rstest]
#[case::other_path(Method::GET, "/v1/token/x", &[], "", 404, "not-found")]
#[case::longer_path(Method::GET, "/v1/tokens/a/b", &[], "", 404, "not-found")]
#[case::other_method(Method::POST, KEY, &[], "", 405, "method-not-allowed")]
#[case::no_key(Method::GET, "/v1/tokens/tk_ABC", &[], "", 400, "bad-request")]
#[case::unknown(Method::GET, KEY, &[], "", 404, "unknown-key")]
#[case::no_type(Method::PUT, KEY, &[], "[1]", 415, "unsupported-type")]
#[case::other_type(Method::PUT, KEY, &[("content-type", "text/plain")], "[1]", 415, "unsupported-type")]
#[case::too_large(Method::PUT, KEY, &[("content-type", "application/json"), ("content-length", "16777217")], "", 413, "too-large")]
#[case::no_model(Method::PUT, KEY, &[("content-type", "application/json"), TAGS[1]], "[1]", 400, "bad-request")]
#[case::no_tokenizer(Method::PUT, KEY, &[("content-type", "application/json"), TAGS[0]], "[1]", 400, "bad-request")]
#[case::no_count(Method::PUT, KEY, &[("content-type", "application/json"), TAGS[0], TAGS[1], ("x-tokens-count", "two")], "[1]", 400, "bad-request")]
#[case::other_count(Method::PUT, KEY, &[("content-type", "application/json"), TAGS[0], TAGS[1], ("x-tokens-count", "2")], "[1]", 400, "bad-request")]
#[case::no_ids(Method::PUT, KEY, &[("content-type", "application/json"), TAGS[0], TAGS[1]], "[-1]", 400, "bad-request")]
#[tokio::test]
async fn what_cannot_be_done_is_said_with_its_code(
    #[case] method: Method,
    #[case] path: &str,
    #[case] headers: &[(&str, &str)],
    #[case] body: &str,
    #[case] status: u16,
    #[case] kind: &str,
) {
    let response = ask(&mk_service(), method, path, headers, body.as_bytes()).await;
    assert_eq!(response.status(), status);
    assert_eq!(response.headers().contains_key("allow"), status == 405);
    let body: ErrorBody = serde_json::from_slice(response.body()).unwrap();
    assert_eq!((body.error.code, &*body.error.kind), (status, kind));
}
