//! Which bodies are taken, which are refused, and why.

use rstest::rstest;

use super::*;

fn parse(endpoint: Endpoint, body: &str) -> Result<Request, ApiError> {
    let served = ["sim".to_owned(), "alias".to_owned()];
    let max_model_len = NonZeroU32::new(100).expect("not zero");
    Request::parse(
        endpoint,
        body.as_bytes(),
        &Limits {
            served_models: &served,
            max_model_len,
        },
    )
}

#[test]
fn a_chat_counts_roles_texts_and_tools() {
    let body = r#"{"model":"alias","stream":true,"stream_options":{"include_usage":true},
        "tools":[{"a":1}],"messages":[{"role":"system","content":"ab"},
        {"role":"user","content":[{"type":"text","text":"hello"},{"type":"image_url"}]}]}"#;
    let request = parse(Endpoint::Chat, body).expect("valid");
    // tools 9 + system 6 + 2 + user 4 + 5 = 26 bytes
    assert_eq!(request.prompt_tokens(), 7);
    assert_eq!(request.echo_text(), "hello");
    assert_eq!(request.include_usage(), Some(true));
    assert_eq!(
        request.max_tokens().get(),
        93,
        "all that is left of the context"
    );
    assert_eq!(request.into_model(), "alias");
}

#[rstest]
#[case(r#"{"model":"sim","prompt":"12345"}"#, 2, "12345")]
#[case(r#"{"model":"sim","prompt":["12345"]}"#, 2, "12345")]
#[case(r#"{"model":"sim","prompt":[7,8,9]}"#, 3, "7 8 9")]
fn a_prompt_may_be_text_or_token_ids(#[case] body: &str, #[case] tokens: u32, #[case] echo: &str) {
    let request = parse(Endpoint::Completions, body).expect("valid");
    assert_eq!(
        (request.prompt_tokens(), request.echo_text()),
        (tokens, echo)
    );
    assert_eq!(
        (request.max_tokens().get(), request.include_usage()),
        (16, None)
    );
}

#[rstest]
#[case("", "invalid-json")]
#[case("[1]", "invalid-json")]
#[case(r#"["sim",[{"role":"user"}]]"#, "invalid-json")]
#[case(r#"{"model":"sim","messages":[["user"]]}"#, "invalid-json")]
#[case(
    r#"{"model":"sim","messages":[{"role":"user","content":[["hi"]]}]}"#,
    "invalid-json"
)]
#[case(
    r#"{"model":"sim","stream":true,"stream_options":[true],"messages":[{"role":"user"}]}"#,
    "invalid-json"
)]
#[case(r#"{"model":"sim""#, "invalid-json")]
#[case(r#"{"model":"sim","model":"alias","messages":[]}"#, "invalid-json")]
#[case(
    r#"{"model":"sim","messages":[{"content":"no role"}]}"#,
    "invalid-json"
)]
#[case(
    r#"{"model":"sim","messages":[{"role":"user","content":7}]}"#,
    "invalid-json"
)]
#[case(r#"{"messages":[{"role":"user","content":"hi"}]}"#, "missing-field")]
#[case(r#"{"model":null,"messages":[]}"#, "missing-field")]
#[case(r#"{"model":"sim"}"#, "missing-field")]
#[case(r#"{"model":"sim","prompt":"hi"}"#, "missing-field")]
#[case(r#"{"model":"sim","messages":[]}"#, "invalid-field")]
#[case(
    r#"{"model":"other","messages":[{"role":"user","content":"hi"}]}"#,
    "unknown-model"
)]
#[case(
    r#"{"model":"sim","n":2,"messages":[{"role":"user","content":"hi"}]}"#,
    "invalid-field"
)]
#[case(
    r#"{"model":"sim","max_tokens":0,"messages":[{"role":"user"}]}"#,
    "invalid-field"
)]
#[case(
    r#"{"model":"sim","max_tokens":-1,"messages":[{"role":"user"}]}"#,
    "invalid-field"
)]
#[case(
    r#"{"model":"sim","stream_options":{},"messages":[{"role":"user"}]}"#,
    "invalid-field"
)]
#[case(
    r#"{"model":"sim","max_tokens":100,"messages":[{"role":"user"}]}"#,
    "context-too-long"
)]
#[case(
    r#"{"model":"sim","max_tokens":99999999999,"messages":[{"role":"user"}]}"#,
    "context-too-long"
)]
fn bad_chats_are_refused(#[case] body: &str, #[case] reason: &str) {
    let error = parse(Endpoint::Chat, body).expect_err("refused");
    assert_eq!(error.reason(), reason, "{error}");
}

#[test]
fn no_value_is_repeated_whole_and_no_type_of_ours_named() {
    let long = "é".repeat(1 << 20);
    for body in [
        format!("\"{long}\""),
        format!(r#"{{"model":"sim","messages":["{long}"]}}"#),
        format!(r#"{{"model":"sim","stream":"{long}"}}"#),
        format!(r#"{{"model":"{long}"}}"#),
        format!(r#"{{"model":"sim","stream_options":"{long}"}}"#),
    ] {
        let error = parse(Endpoint::Chat, &body)
            .expect_err("refused")
            .to_string();
        assert!(error.len() < 300, "{} bytes", error.len());
        assert!(!error.contains("Raw"), "{error}");
    }
    let error = parse(Endpoint::Chat, r#"{"messages":["x"]}"#).expect_err("refused");
    assert!(error.to_string().contains("expected an object"), "{error}");
}

#[rstest]
#[case(r#"{"model":"sim"}"#, "missing-field")]
#[case(r#"{"model":"sim","prompt":""}"#, "invalid-field")]
#[case(r#"{"model":"sim","prompt":[]}"#, "invalid-field")]
#[case(r#"{"model":"sim","prompt":["a","b"]}"#, "invalid-field")]
#[case(r#"{"model":"sim","prompt":{}}"#, "invalid-json")]
fn bad_completions_are_refused(#[case] body: &str, #[case] reason: &str) {
    let error = parse(Endpoint::Completions, body).expect_err("refused");
    assert_eq!(error.reason(), reason, "{error}");
}

#[rstest]
#[case(396, true)]
#[case(397, false)]
fn a_prompt_must_leave_room_for_one_token(#[case] bytes: usize, #[case] fits: bool) {
    let body = format!(r#"{{"model":"sim","prompt":"{}"}}"#, "x".repeat(bytes));
    assert_eq!(parse(Endpoint::Completions, &body).is_ok(), fits);
}

#[test]
fn output_is_as_long_as_asked_else_drawn_up_to_the_usual() {
    let usual = NonZeroU32::new(10).expect("not zero");
    let asked = r#"{"model":"sim","max_tokens":50,"messages":[{"role":"user"}]}"#;
    let asked = parse(Endpoint::Chat, asked).expect("valid");
    assert_eq!(
        asked.output_length(1, usual),
        (asked.max_tokens(), Finish::Length)
    );

    let free = r#"{"model":"sim","messages":[{"role":"user"}]}"#;
    let free = parse(Endpoint::Chat, free).expect("valid");
    let mut lengths: Vec<_> = (0..200)
        .map(|seed| free.output_length(seed, usual).0.get())
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    assert_eq!(lengths, (1..=10).collect::<Vec<_>>());
}
