use std::sync::LazyLock;

use futures::FutureExt;
use http_body_util::BodyExt;
use metadata::{Limits, wire::Envelope};
use moment::Clock;
use proptest::{option, prelude::*, sample::Index};
use serde_json::Value;

use super::*;
use crate::{
    memory::Memory,
    openapi, reply,
    route::{self, PATHS},
    trace_id::TraceId,
};

/// What a client may send in the place of any value.
const NASTY: [&str; 20] = [
    "null",
    "true",
    "-1",
    "0",
    "3e9",
    "1e999",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "-0.0",
    r#""""#,
    r#""junk""#,
    r#""\u0000\ud800""#,
    r#""ffff::1.2.3.4""#,
    "[]",
    "{}",
    "[[1],[2]]",
    r#"["1,2"]"#,
    r#"{"request_id":"r","request_id":"r"}"#,
    "[1.5,18446744073709551615]",
];

static EXAMPLES: LazyLock<Vec<(http::Method, &str, Value)>> = LazyLock::new(examples);

/// Calls with the example of the body, `null` where there is none.
fn examples() -> Vec<(http::Method, &'static str, Value)> {
    let document = openapi::make::document();
    let mut examples = Vec::new();
    for path in &PATHS {
        for (method, _) in path
            .calls
            .iter()
            .filter(|_| path.template.starts_with("/v1/"))
        {
            let name = method.as_str().to_ascii_lowercase();
            let body = &document["paths"][path.template][name]["requestBody"];
            let example = &body["content"]["application/json"]["example"];
            examples.push((method.clone(), path.template, example.clone()));
        }
    }
    examples
}

/// Pointers to all values of a body, itself first.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                places(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(value, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// The body with other values, and then with another byte and without its end.
fn spoil(
    mut body: Value,
    values: &[(Index, Index)],
    byte: Option<(Index, u8)>,
    end: Option<Index>,
) -> Vec<u8> {
    for (place, value) in values {
        let mut found = Vec::new();
        places(&body, "", &mut found);
        if let Some(place) = body.pointer_mut(&found[place.index(found.len())]) {
            *place = Value::String(format!("@{}@", value.index(NASTY.len())));
        }
    }
    let mut text = body.to_string();
    for (at, nasty) in NASTY.iter().enumerate() {
        text = text.replace(&format!("\"@{at}@\""), nasty);
    }
    let mut bytes = text.into_bytes();
    if let Some((at, byte)) = byte {
        let at = at.index(bytes.len());
        bytes[at] = byte;
    }
    if let Some(end) = end {
        bytes.truncate(end.index(bytes.len()));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_request_is_a_fault_of_the_service(
        call in any::<Index>(),
        values in prop::collection::vec(any::<(Index, Index)>(), 0..4),
        byte in option::weighted(0.2, any::<(Index, u8)>()),
        end in option::weighted(0.1, any::<Index>()),
        segment in "[!-~]{1,140}",
        query in "(strict=(true|false|1)&)?((cluster|ip|epoch|request_id)=[ -~]{0,30}&){0,3}",
        joined_hashes in any::<bool>(),
    ) {
        thread_local! {
            static SERVICE: (Memory, Metrics) =
                (Memory::new(Limits::default(), Clock::start()), Metrics::default());
        }
        let (method, template, example) = &EXAMPLES[call.index(EXAMPLES.len())];
        let segment = segment.replace(['/', '?', '#'], "_");
        let path = match template.split_once('{') {
            Some((parent, _)) => format!("{parent}{segment}"),
            None => (*template).to_owned(),
        };
        let body = Bytes::from(spoil(example.clone(), &values, byte, end));
        let found = route::find(method, &path).unwrap();
        let request = Request { found: &found, query: Query::of(Some(&query)), body: &body };
        let result = SERVICE.with(|(memory, metrics)| {
            let running = request.run(memory, Accepts { joined_hashes }, metrics);
            running.now_or_never().expect("memory does not wait")
        });
        let trace_id = TraceId::of(&http::HeaderMap::new());
        let reply = match &result {
            Ok(data) => reply::success(data, &trace_id),
            Err(fault) => reply::refusal(fault, &trace_id),
        };
        prop_assert!(reply.status().as_u16() < 500, "{method} {path} {body:?}: {result:?}");
        let sent = reply.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        let envelope = serde_json::from_slice::<Envelope<Value>>(&sent);
        prop_assert!(envelope.is_ok(), "{sent:?}");
    }
}
