use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn chat() -> Api {
    Api::for_path("/v1/chat/completions").unwrap()
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
#[case("/v1/mycompletions", None)]
#[case("/v1/models", None)]
#[case("/", None)]
#[case("", None)]
fn the_path_decides_the_format(#[case] path: &str, #[case] suffix: Option<&str>) {
    assert_eq!(Api::for_path(path).map(|api| api.suffix), suffix);
}

#[rstest]
#[case(
    "/v1/chat/completions",
    r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    8
)]
#[case(
    "/v1/completions",
    r#"{"prompt":"12345678","model":"m","max_tokens":5}"#,
    3
)]
#[case(
    "/v1/responses",
    r#"{"model":"m","instructions":"aa","input":"bb","tools":[]}"#,
    3
)]
#[case("/v1/completions", r#"{"model":"m"}"#, 0)]
fn spans_of_the_format_are_the_prompt(
    #[case] path: &str,
    #[case] body: &str,
    #[case] tokens: usize,
) {
    let parsed = Api::for_path(path).unwrap().parse(body.as_bytes()).unwrap();
    assert_eq!(
        parsed,
        Parsed {
            model: "m".into(),
            prompt_tokens: tokens
        }
    );
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
#[case::number_model(r#"{"model":7}"#, "invalid type")]
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
    assert!(chat().parse(b"{\"model\":\"\xff\"}").is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body: Vec<u8>) {
        let _ = chat().parse(&body);
    }
}
