use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn api(path: &str) -> Api {
    Api::for_path(path.as_bytes()).unwrap().unwrap()
}

fn chat() -> Api {
    api("/v1/chat/completions")
}

fn parsed(path: &str, body: &str) -> Parsed {
    api(path).parse(body.as_bytes()).unwrap()
}

#[rstest]
#[case("/v1/chat/completions", Some("chat/completions"))]
#[case("/v1/completions?x=/v1/models", Some("completions"))]
#[case(
    "/tenant/a/v1/chat/completions/render",
    Some("chat/completions/render")
)]
#[case("completions", Some("completions"))]
#[case("/v1/embeddings", Some("embeddings"))]
#[case("/v1/responses", Some("responses"))]
#[case("/v1/messages/count_tokens", Some("messages/count_tokens"))]
#[case("/inference/v1/generate", Some("inference/v1/generate"))]
#[case("/v1/chat/c%6fmpletions", Some("chat/completions"))]
#[case("/v1%2Fchat%2fcompletions", Some("chat/completions"))]
#[case("/v1/completions%2frender?a=%ff", Some("completions/render"))]
#[case("/%e4%ba%ba/completions#fragment", Some("completions"))]
#[case("/人/completions", Some("completions"))]
#[case("/%/%zz/%4/completions", Some("completions"))]
#[case("/v1/c%256fmpletions", None)]
#[case("/v1/completions%3fx", None)]
#[case("/v1/completions%", None)]
#[case("/v1/mycompletions", None)]
#[case("/v1/models", None)]
#[case("/", None)]
#[case("", None)]
fn the_path_decides_the_format(#[case] path: &str, #[case] suffix: Option<&str>) {
    let api = Api::for_path(path.as_bytes()).unwrap();
    assert_eq!(api.map(|api| api.suffix), suffix);
}

#[rstest]
#[case(b"/v1/completions/\xff")]
#[case(b"/\xe4/completions")]
#[case(b"/%ff/completions")]
#[case(b"/v1/models%C0%AF")]
fn a_path_that_is_no_text_is_an_error(#[case] path: &[u8]) {
    assert_eq!(Api::for_path(path), Err(BadPath));
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let body = "\u{feff} {\"model\":\"m\",\"messages\":[1],\"token_ids\":[2]}";
    let parsed = chat().parse(body.as_bytes()).unwrap();
    assert_eq!(body.get(parsed.model_at.clone()).unwrap(), "\"m\"");
    assert_eq!(body.get(parsed.spans[0].clone()).unwrap(), "[1]");
    assert_eq!(body.get(parsed.fields.token_ids.unwrap()).unwrap(), "[2]");
}

#[rstest]
#[case::little("\u{feff}{\"model\":\"m\"}", u16::to_le_bytes)]
#[case::big("\u{feff}{\"model\":\"m\"}", u16::to_be_bytes)]
#[case::little_without_a_mark("{\"model\":\"m\"}", u16::to_le_bytes)]
#[case::big_without_a_mark("{\"model\":\"m\"}", u16::to_be_bytes)]
fn utf_16_is_named_as_what_it_is(#[case] text: &str, #[case] bytes: fn(u16) -> [u8; 2]) {
    let body: Vec<u8> = text.encode_utf16().flat_map(bytes).collect();
    let error = chat().parse(&body).unwrap_err().to_string();
    assert_eq!(error, "the request body is UTF-16: send its JSON as UTF-8");
}

#[test]
fn only_encoded_paths_are_copied() {
    assert!(matches!(percent_decoded(b"/v1/models"), Cow::Borrowed(_)));
}

#[rstest]
#[case::chat(
    "/v1/chat/completions",
    r#"{"messages":[{"role":"user"}], "prompt":"x","model":"m","tools":[ 1 ]}"#,
    &["[ 1 ]", r#"[{"role":"user"}]"#],
    6
)]
#[case::completion("/v1/completions", r#"{"prompt":"12345678","model":"m"}"#, &[r#""12345678""#], 3)]
#[case::responses(
    "/v1/responses",
    r#"{"input": "bb" ,"model":"m","instructions":"aa","tools":[]}"#,
    &[r#""aa""#, "[]", r#""bb""#],
    3
)]
#[case::anthropic(
    "/v1/messages",
    r#"{"model":"m","messages":[1],"system":"é","tools":null}"#,
    &[r#""é""#, "[1]"],
    2
)]
#[case::tokens("/inference/v1/generate", r#"{"model":"m","token_ids":[1,2]}"#, &["[1,2]"], 2)]
#[case::none("/v1/completions", r#"{"model":"m"}"#, &[], 0)]
fn spans_of_the_format_are_the_prompt(
    #[case] path: &str,
    #[case] body: &str,
    #[case] spans: &[&str],
    #[case] tokens: usize,
) {
    let parsed = parsed(path, body);
    let found: Vec<_> = parsed
        .spans
        .iter()
        .map(|at| body.get(at.clone()).unwrap())
        .collect();
    assert_eq!(found, spans);
    assert_eq!(parsed.prompt_tokens, tokens);
}

#[rstest]
#[case(r#"{"model":"m"}"#, r#""m""#)]
#[case(" {\n\"mod\\u0065l\" :\t\"a\\\"\\u00e9\" , \"x\":1}", r#""a\"\u00e9""#)]
fn the_place_of_the_model_includes_its_quotes(#[case] body: &str, #[case] want: &str) {
    let parsed = parsed("/v1/completions", body);
    assert_eq!(body.get(parsed.model_at), Some(want));
}

#[rstest]
#[case("true", true)]
#[case("1", true)]
#[case(r#""yes""#, true)]
#[case(r#""True""#, true)]
#[case("false", false)]
#[case("0", false)]
#[case("null", false)]
#[case(r#"["true"]"#, false)]
#[case("{}", false)]
fn stream_is_read_as_engines_do(#[case] json: &str, #[case] want: bool) {
    let body = format!(r#"{{"model":"m","stream":{json}}}"#);
    assert_eq!(parsed("/v1/completions", &body).stream, want);
}

#[rstest]
#[case("100", Some(100))]
#[case("100.0", Some(100))]
#[case(r#"" 100 ""#, Some(100))]
#[case("0", Some(0))]
#[case("1.5", None)]
#[case("-1", None)]
#[case("null", None)]
#[case(r#""many""#, None)]
#[case("99999999999999999999", None)]
#[case("[7]", None)]
fn an_odd_limit_of_tokens_is_none(#[case] json: &str, #[case] want: Option<u64>) {
    let body = format!(r#"{{"model":"m","max_tokens":{json}}}"#);
    assert_eq!(parsed("/v1/completions", &body).max_tokens, want);
}

#[rstest]
#[case(r#""salt""#, Some("salt"))]
#[case(r#""\u00e9""#, Some("é"))]
#[case(r#""""#, None)]
#[case(r#""\ud800""#, None)]
#[case("null", None)]
#[case("5", None)]
#[case(r#"{"a":"b"}"#, None)]
fn a_salt_that_is_no_string_is_none(#[case] json: &str, #[case] want: Option<&str>) {
    let body = format!(r#"{{"model":"m","cache_salt":{json}}}"#);
    let salt = parsed("/v1/completions", &body).cache_salt;
    assert_eq!(salt.as_deref(), want);
}

#[rstest]
#[case::two_models(r#"{"model":"a","model":"b"}"#, "duplicate field")]
#[case::hidden_by_an_escape(r#"{"model":"a","mod\u0065l":"b"}"#, "duplicate field")]
#[case::two_prompts(r#"{"model":"a","messages":[],"messages":[]}"#, "duplicate field")]
#[case::truncated(r#"{"model":"a","messages":[{"#, "EOF")]
#[case::trailing(r#"{"model":"a"} x"#, "trailing characters")]
#[case::empty("", "EOF")]
#[case::array(r#"["m"]"#, "no JSON object")]
#[case::string(" \n\"m\"", "no JSON object")]
#[case::blank(" \t\r\n", "EOF")]
#[case::no_model(r#"{"messages":[]}"#, "names no model")]
#[case::empty_model(r#"{"model":""}"#, "names no model")]
#[case::null_model(r#"{"model":null}"#, "names no model")]
#[case::number_model(r#"{"model":7}"#, "names no model")]
#[case::half_a_character_model(r#"{"model":"\ud800"}"#, "hex escape")]
#[case::two_salts(
    r#"{"model":"a","cache_salt":null,"cache_salt":"b"}"#,
    "duplicate field"
)]
#[case::two_streams(r#"{"model":"a","stream":true,"stream":false}"#, "duplicate field")]
fn what_cannot_be_read_says_why(#[case] body: &str, #[case] why: &str) {
    let error = chat().parse(body.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn escapes_in_the_model_are_decoded() {
    assert_eq!(
        chat().parse(br#"{"model":"a\"\u00e9"}"#).unwrap().model,
        "a\"é"
    );
}

#[test]
fn ten_thousand_levels_neither_overflow_nor_fail() {
    let deep = format!(
        r#"{{"x":{}{},"model":"m"}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    assert_eq!(chat().parse(deep.as_bytes()).unwrap().model, "m");
}

#[test]
fn no_body_is_repeated_in_its_error() {
    let long = "é".repeat(1 << 20);
    for body in [
        format!("\"{long}\""),
        format!(r#"{{"model":["{long}"]}}"#),
        format!(r#"{{"model":"m","model":"{long}"}}"#),
        format!(r#"{{"{long}":1,"model":7}}"#),
    ] {
        let error = chat().parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 300, "{} bytes", error.len());
        assert!(!error.contains("Raw"), "{error}");
    }
}

#[rstest]
#[case("short", "short".into())]
#[case(&"é".repeat(100), "é".repeat(100))]
#[case(&format!("x{}", "é".repeat(100)), format!("x{}...", "é".repeat(99)))]
fn messages_are_cut_between_characters(#[case] message: &str, #[case] want: String) {
    assert_eq!(brief(message), want);
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    for body in [
        &b"{\"model\":\"\xff\"}"[..],
        b"{\"model\":\"m\",\"user\":\"\xff\"}",
    ] {
        assert!(matches!(chat().parse(body), Err(BodyError::NoText)));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body: Vec<u8>) {
        let _ = chat().parse(&body);
        let _ = Api::for_path(&body);
    }

    #[test]
    fn a_path_means_the_same_however_it_is_encoded(
        index in 0..APIS.len(),
        encoded: [bool; 32],
        upper: bool,
    ) {
        let suffix = APIS[index].suffix;
        let mut path = b"/v1/".to_vec();
        for (byte, encoded) in suffix.bytes().zip(encoded) {
            path.extend(match (encoded, upper) {
                (true, true) => format!("%{byte:02X}").into_bytes(),
                (true, false) => format!("%{byte:02x}").into_bytes(),
                (false, _) => vec![byte],
            });
        }
        prop_assert_eq!(Api::for_path(&path).unwrap().map(|api| api.suffix), Some(suffix));
    }
}

#[test]
fn a_model_whose_name_is_too_long_to_keep_is_refused() {
    let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
    let body = |length: usize| format!(r#"{{"model":"{}"}}"#, "m".repeat(length));
    assert!(api.parse(body(MAX_MODEL).as_bytes()).is_ok());
    let error = api.parse(body(MAX_MODEL + 1).as_bytes()).unwrap_err();
    assert!(matches!(error, BodyError::LongModel), "{error}");
}
