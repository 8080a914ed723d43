use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{restore::MAX_HELD, scanner::MAX_VALUE, *};

const CHAT: &str = concat!(
    r#"{"id":"x","model":"engine/m","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":99} \\"}}],"#,
    r#""usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#,
);

const CHAT_EVENTS: &str = concat!(
    "data: {\"model\":\"m\",\"x\":[{\"y\":\"usage\"}]}\n\n",
    ": usage\n\ndata: {\"model\":\"m\",\"usage\":null}\n\n",
    "data: {\"model\":\"m\",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n",
    "data: [DONE]\n\n"
);

const ANTHROPIC_EVENTS: &str = concat!(
    "event: message_start\r\ndata: {\"message\":{\"content\":[],\"model\":\"m\",",
    "\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\r\n\r\n",
    "event: ping\r\ndata: {}\r\n\r\n",
    "event: message_delta\r\ndata: {\"delta\":{},\"usage\":{\"output_tokens\":3}}\r\n\r\n",
);

const RESPONSES_EVENTS: &str = concat!(
    "event: response.completed\ndata: {\"response\":{\"model\":\"m\",\"usage\":{\"input_tokens\":7,",
    "\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":3}}}\n\n",
);

const fn mk_usage(input: u64, output: Option<u64>, cached: Option<u64>) -> Usage {
    Usage {
        input_tokens: Some(input),
        output_tokens: output,
        cached_tokens: cached,
    }
}

/// What goes on of `body`, and what is read of it, when it comes in pieces cut at `cuts`.
fn run(mut tap: ResponseTap, body: &[u8], cuts: &[usize]) -> (Vec<u8>, Option<Usage>) {
    let body = Bytes::copy_from_slice(body);
    let mut sent = Vec::new();
    let mut from = 0;
    for &cut in cuts {
        sent.extend(tap.on_chunk(body.slice(from..cut), false));
        from = cut;
    }
    sent.extend(tap.on_chunk(body.slice(from..), true));
    (sent.concat(), tap.finish())
}

fn usage_of(body: &str) -> Option<Usage> {
    run(ResponseTap::default(), body.as_bytes(), &[]).1
}

fn restored(body: &str) -> String {
    let (sent, _) = run(ResponseTap::restoring("client"), body.as_bytes(), &[]);
    String::from_utf8(sent).unwrap()
}

#[rstest]
#[case::chat(CHAT, mk_usage(7, Some(3), Some(4)))]
#[case::embeddings(
    r#" {"data":[{"embedding":[0.1,-2e-3]},[[]]],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7}} "#,
    mk_usage(7, None, None)
)]
#[case::anthropic(
    r#"{"content":[],"usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":3}}"#,
    mk_usage(7, Some(3), Some(4))
)]
#[case::chat_events(CHAT_EVENTS, mk_usage(7, Some(3), None))]
#[case::anthropic_events(ANTHROPIC_EVENTS, mk_usage(7, Some(3), Some(4)))]
#[case::responses_events(RESPONSES_EVENTS, mk_usage(7, Some(3), Some(4)))]
#[case::continuous(
    "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\ndata:{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n",
    mk_usage(7, Some(2), None)
)]
#[case::several_data_lines(
    "data: {\"usage\":\ndata: {\"prompt_tokens\"\n: comment\nid: 1\r\ndata::7\ndata\ndata:}}\n\n",
    mk_usage(7, None, None)
)]
#[case::no_last_blank_line("\n\ndata: {\"usage\":{\"prompt_tokens\":7}}", mk_usage(7, None, None))]
#[case::pretty(
    "{\n  \"usage\" : {\n    \"prompt_tokens\" : 7,\n    \"prompt_tokens_details\": null\n  }\n}\n",
    mk_usage(7, None, None)
)]
#[case::after_words(
    r#"{"a":null,"b":-1.5e3,"c":{},"d":[],"usage":{"prompt_tokens":7}}"#,
    mk_usage(7, None, None)
)]
fn usage_and_bytes_are_the_same_at_every_pair_of_cuts(#[case] body: &str, #[case] want: Usage) {
    let body = body.as_bytes();
    for first in 0..=body.len() {
        for second in first..=body.len() {
            let (sent, usage) = run(ResponseTap::default(), body, &[first, second]);
            assert_eq!(usage, Some(want), "{first}, {second}");
            assert_eq!(sent, body);
        }
    }
}

#[rstest]
#[case::json(CHAT)]
#[case::chat_events(CHAT_EVENTS)]
#[case::anthropic_events(ANTHROPIC_EVENTS)]
#[case::responses_events(RESPONSES_EVENTS)]
fn the_model_is_restored_at_every_pair_of_cuts(#[case] body: &str) {
    let name = "client \"é\"";
    let want = body
        .replace(r#""model":"m""#, r#""model":"client \"é\"""#)
        .replace(r#""model":"engine/m""#, r#""model":"client \"é\"""#);
    let usage = usage_of(body);
    assert!(want.contains("client") && usage.is_some());
    for first in 0..=body.len() {
        for second in first..=body.len() {
            let got = run(
                ResponseTap::restoring(name),
                body.as_bytes(),
                &[first, second],
            );
            assert_eq!(String::from_utf8_lossy(&got.0), want, "{first}, {second}");
            assert_eq!(got.1, usage, "{first}, {second}");
        }
    }
}

#[rstest]
#[case::number(r#"{"model":7}"#)]
#[case::null(r#"{"model":null}"#)]
#[case::object(r#"{"model":{"model":"m"}}"#)]
#[case::deeper(r#"{"choices":[{"model":"m"}],"x":{"model":"m"}}"#)]
#[case::in_a_string(r#"{"x":"\"model\":\"m\""}"#)]
#[case::a_value(r#"{"x":"model","model2":"m","modelmodel":"m","Model":"m"}"#)]
#[case::array(r#"[{"model":"m"}]"#)]
#[case::other_field("event: {\"model\":\"m\"}\ndat: {\"model\":\"m\"}\n {\"model\":\"m\"}\n\n")]
#[case::unfinished(r#"{"model":"m"#)]
#[case::cut_by_a_line("data: {\"model\":\"m\ndata: m\"}\n\n")]
fn what_is_no_model_stays(#[case] body: &str) {
    assert_eq!(restored(body), body);
}

#[test]
fn a_model_is_restored_up_to_512_bytes() {
    for (len, restores) in [(0, true), (MAX_HELD, true), (MAX_HELD + 1, false)] {
        let model = "m".repeat(len);
        let body = format!(r#"{{"model":"{model}","x":1}}"#);
        let want = if restores {
            r#"{"model":"client","x":1}"#.to_owned()
        } else {
            body.clone()
        };
        for cut in 0..=body.len() {
            let (sent, _) = run(ResponseTap::restoring("client"), body.as_bytes(), &[cut]);
            assert_eq!(String::from_utf8(sent).unwrap(), want, "{len}, {cut}");
        }
    }
}

#[test]
fn never_more_than_a_model_is_held() {
    let body = Bytes::from(format!(r#"{{"model":"{}","x":1}}"#, "m".repeat(2000)));
    let mut tap = ResponseTap::restoring("client");
    let mut sent = 0;
    for at in 0..body.len() {
        sent += tap.on_chunk(body.slice(at..=at), false).concat().len();
        assert!(at + 1 - sent <= MAX_HELD, "{at}");
    }
}

#[test]
fn without_restoring_the_chunk_itself_goes_on() {
    for body in [CHAT, CHAT_EVENTS, "", "garbage"] {
        let chunk = Bytes::copy_from_slice(body.as_bytes());
        let output = ResponseTap::default().on_chunk(chunk.clone(), true);
        assert_eq!(output[..], *std::slice::from_ref(&chunk));
        assert_eq!(output[0].as_ptr(), chunk.as_ptr(), "not copied");
        assert!(!output.spilled());
    }
}

/// Each number counts by itself, whatever the others are.
#[rstest]
#[case::details_no_object(
    r#""prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":0"#,
    mk_usage(7, Some(3), None)
)]
#[case::details_a_list(
    r#""prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":[1]"#,
    mk_usage(7, Some(3), None)
)]
#[case::a_float(
    r#""prompt_tokens":7,"completion_tokens":3.0"#,
    mk_usage(7, Some(3), None)
)]
#[case::a_fraction(
    r#""prompt_tokens":7,"completion_tokens":3.5"#,
    mk_usage(7, None, None)
)]
#[case::a_text(
    r#""prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":"4"}"#,
    mk_usage(7, None, None)
)]
#[case::a_float_in_details(
    r#""prompt_tokens":7,"input_tokens_details":{"x":[],"cached_tokens":4.0}"#,
    mk_usage(7, None, Some(4))
)]
#[case::negative(
    r#""prompt_tokens":7,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":-1}"#,
    mk_usage(7, None, None)
)]
#[case::twice(
    r#""prompt_tokens":6,"prompt_tokens":7,"completion_tokens":3"#,
    mk_usage(7, Some(3), None)
)]
#[case::an_exponent(
    r#""prompt_tokens":7e0,"completion_tokens":1e999"#,
    mk_usage(7, None, None)
)]
#[case::other_name_after_an_odd_one(
    r#""prompt_tokens":null,"input_tokens":7"#,
    mk_usage(7, None, None)
)]
#[case::greatest(
    r#""prompt_tokens":7,"completion_tokens":18446744073709551615"#,
    mk_usage(7, Some(u64::MAX), None)
)]
fn one_odd_number_hides_no_other(#[case] members: &str, #[case] want: Usage) {
    let body = format!(r#"{{"usage":{{{members}}}}}"#);
    assert_eq!(usage_of(&body), Some(want));
}

#[rstest]
#[case::in_a_string(r#"{"x":"\"usage\":{\"prompt_tokens\":9}"}"#)]
#[case::deeper(r#"{"choices":[{"usage":{"prompt_tokens":9}}],"x":{"usage":{"prompt_tokens":9}}}"#)]
#[case::a_value(r#"{"x":"usage","y":{"prompt_tokens":9}}"#)]
#[case::null(r#"{"usage":null}"#)]
#[case::array(r#"{"usage":[{"prompt_tokens":9}]}"#)]
#[case::words(r#"{"usage":{"prompt_tokens":"9"}}"#)]
#[case::empty(r#"{"usage":{}}"#)]
#[case::unfinished(r#"{"usage":{"prompt_tokens":9}"#)]
#[case::trailing(r#"{"usage":{"prompt_tokens":9}} x"#)]
#[case::wrong_bracket(r#"{"a":[},"usage":{"prompt_tokens":9}}"#)]
#[case::no_colon(r#"{"usage" {"prompt_tokens":9}}"#)]
#[case::no_comma(r#"{"a":1 "usage":{"prompt_tokens":9}}"#)]
#[case::no_object(r#"["usage",{"usage":{"prompt_tokens":9}}]"#)]
#[case::other_field(
    "data2: {\"usage\":{\"prompt_tokens\":9}}\n\nevent: {\"usage\":{\"prompt_tokens\":9}}\n\n"
)]
#[case::comment(":data: {\"usage\":{\"prompt_tokens\":9}}\n\n")]
#[case::string_over_two_lines("data: {\"usage\":{\"prompt_tokens\":9},\"a\":\"\ndata: \"}\n\n")]
#[case::two_objects("data: {\"usage\":{\"prompt_tokens\":9}}\ndata: {}\n\n")]
fn what_is_no_usage_is_not_read(#[case] body: &str) {
    assert_eq!(usage_of(body), None);
}

#[test]
fn a_broken_event_does_not_hide_the_next_one() {
    let body = format!("data: {{\"usage\":\"\n\ndata: }}{{\n\n{CHAT_EVENTS}");
    assert_eq!(usage_of(&body), Some(mk_usage(7, Some(3), None)));
}

#[test]
fn a_usage_object_is_read_up_to_4_kib() {
    for (padding, read) in [(0, true), (1, false)] {
        let head = r#"{"prompt_tokens":7,"x":""#;
        let fill = "x".repeat(MAX_VALUE - head.len() - 2 + padding);
        let body = format!(r#"{{"usage":{head}{fill}"}}}}"#);
        assert_eq!(usage_of(&body).is_some(), read);
        let halves = run(ResponseTap::default(), body.as_bytes(), &[body.len() / 2]);
        assert_eq!(halves.1.is_some(), read);
    }
}

/// The events of the Responses API repeat a request's instructions and tools before model and usage.
#[test]
fn an_event_is_read_whatever_its_size() {
    for kib in [10, 63, 65, 300] {
        let fill = "x".repeat(kib << 10);
        let event = |model: &str| {
            format!(
                "event: response.completed\ndata: {{\"response\":{{\"instructions\":\"{fill}\",\"model\":\"{model}\",\
                 \"usage\":{{\"input_tokens\":7,\"output_tokens\":3}}}}}}\n\n"
            )
        };
        let body = event("m");
        for cut in [0, 60, body.len() / 2, body.len() - 30] {
            let (sent, usage) = run(ResponseTap::restoring("client"), body.as_bytes(), &[cut]);
            assert_eq!(usage, Some(mk_usage(7, Some(3), None)), "{kib} KiB, {cut}");
            assert!(sent == event("client").as_bytes(), "{kib} KiB, {cut}");
            let (_, usage) = run(ResponseTap::default(), body.as_bytes(), &[cut]);
            assert_eq!(usage, Some(mk_usage(7, Some(3), None)), "{kib} KiB, {cut}");
        }
    }
}

#[test]
fn ten_thousand_levels_are_passed_by() {
    let deep = format!(
        r#"{{"x":{}{},"usage":{{"prompt_tokens":7}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    assert_eq!(usage_of(&deep), None);
    assert_eq!(restored(&deep), deep);
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("usage".to_owned()),
        Just("model".to_owned()),
        Just("message".to_owned()),
        any::<String>(),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from(r#"\"usage":{"prompt_tokens":9},"model":"m""#)),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(key.clone(), inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

/// Bytes in which brackets, quotes and the words that matter are frequent.
fn any_noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            "\"",
            "\\",
            ":",
            ",",
            "\n",
            "\r\n",
            "\n\n",
            "data:",
            "data: {",
            "\"usage\":{",
            "\"model\":\"",
            "\"prompt_tokens\":1",
            "\"message\":{",
            "\"model\":\"m\",",
            "\"usage\":{\"prompt_tokens\":1}",
            "{\"usage\":{\"prompt_tokens\":2}}",
            "data: {\"a\":1}\n\n",
            "data: {\"model\":\"m\",\"usage\":{\"output_tokens\":3}}\r\n\r\n",
            "}}\n\n",
            "event: x\n",
        ])
        .prop_map(|text: &str| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn sorted(cuts: Vec<prop::sample::Index>, len: usize) -> Vec<usize> {
    let places = len.saturating_add(1);
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(places)).collect();
    cuts.sort_unstable();
    cuts
}

proptest! {
    #[test]
    fn the_model_of_any_object_is_restored(
        mut tree in prop::collection::hash_map("[a-f]{1,3}|usages|modela", any_json(), 0..5)
            .prop_map(|map| json!(map)),
        pretty: bool,
        events: bool,
        old: String,
        new: String,
        cuts: Vec<prop::sample::Index>,
    ) {
        prop_assume!(old.len() < 64);
        let text = |tree: &Value| {
            let json = if pretty {
                serde_json::to_string_pretty(tree).unwrap()
            } else {
                tree.to_string()
            };
            if events {
                let lines = json.lines().map(|line| format!("data: {line}\r\n"));
                format!("event: x\n{}\n: {{\ndata: [DONE]\n\n", lines.collect::<String>())
            } else {
                json
            }
        };
        tree["usage"] = json!({"prompt_tokens": 7, "completion_tokens": 3});
        tree["model"] = old.into();
        let body = text(&tree);
        tree["model"] = new.clone().into();
        let cuts = sorted(cuts, body.len());
        let want = (text(&tree).into_bytes(), Some(mk_usage(7, Some(3), None)));
        prop_assert_eq!(run(ResponseTap::restoring(&new), body.as_bytes(), &cuts), want);
        let want = (body.clone().into_bytes(), Some(mk_usage(7, Some(3), None)));
        prop_assert_eq!(run(ResponseTap::default(), body.as_bytes(), &cuts), want);
    }

    #[test]
    fn noise_means_the_same_however_it_is_cut(
        body in any_noise(),
        cuts: Vec<prop::sample::Index>,
    ) {
        let cuts = sorted(cuts, body.len());
        let whole = run(ResponseTap::default(), &body, &[]);
        prop_assert_eq!(&whole.0, &body);
        prop_assert_eq!(&run(ResponseTap::default(), &body, &cuts), &whole);
        let restored = run(ResponseTap::restoring("c"), &body, &[]);
        prop_assert_eq!(restored.1, whole.1, "the search that skips events changes nothing");
        prop_assert_eq!(run(ResponseTap::restoring("c"), &body, &cuts), restored);
    }

    #[test]
    fn any_bytes_without_a_model_go_on_unchanged(
        body: Vec<u8>,
        cuts: Vec<prop::sample::Index>,
    ) {
        let cuts = sorted(cuts, body.len());
        prop_assert_eq!(run(ResponseTap::restoring("c"), &body, &cuts).0, body);
    }
}
