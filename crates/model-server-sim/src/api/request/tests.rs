//! Which bodies are taken, which are refused, and why.

use std::sync::LazyLock;

use rstest::rstest;

use super::*;

/// Nothing is kept.
static NONE: LazyLock<Responses> = LazyLock::new(|| Responses::new(ApiServer::default(), 0));

fn parse(endpoint: Endpoint, body: &str) -> Result<Request, ApiError> {
    let models = mk_models();
    Request::parse(endpoint, body.as_bytes(), &mk_limits(&models))
}

fn mk_models() -> Models {
    let adapters = ["sql".parse().expect("valid")];
    Models::new(&["sim".to_owned(), "alias".to_owned()], &adapters)
}

fn mk_limits(models: &Models) -> Limits<'_> {
    Limits {
        models,
        max_model_len: NonZeroU32::new(100).expect("not zero"),
        responses: &NONE,
    }
}

#[test]
fn a_chat_counts_roles_texts_and_tools() {
    let body = r#"{"model":"alias","stream":true,"stream_options":{"include_usage":true},
        "tools":[{"a":1}],"messages":[{"role":"system","content":"ab"},
        {"role":"user","content":[{"type":"text","text":"hello"},{"type":"image_url"}]}]}"#;
    let request = parse(Endpoint::Chat, body).expect("valid");
    // tools 9 + system 6 + 2 + user 4 + 5 = 26 bytes
    assert_eq!(request.input().prompt.tokens(), 7);
    assert_eq!(request.input().prompt.echo_text(), "hello");
    assert_eq!(request.include_usage(), Some(true));
    assert_eq!(
        request.max_tokens().get(),
        93,
        "all that is left of the context"
    );
    assert_eq!(&*request.input().model.name, "alias");
}

#[rstest]
#[case(
    Endpoint::Responses,
    r#"{"model":"sim","input":"abcd","instructions":"ef"}"#,
    "efabcd",
    "abcd"
)]
#[case(
    Endpoint::Responses,
    r#"{"model":"sim","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
        {"type":"function_call_output","call_id":"c","output":"7"}]}"#,
    "userhi\"7\"",
    ""
)]
#[case(
    Endpoint::Messages,
    r#"{"model":"sim","max_tokens":1,"system":[{"type":"text","text":"be"}],
        "messages":[{"role":"user","content":"hi"}]}"#,
    "beuserhi",
    "hi"
)]
#[case(
    Endpoint::Generate,
    r#"{"token_ids":[1684234849]}"#,
    "abcd",
    "1684234849"
)]
fn each_api_has_its_own_fields(
    #[case] endpoint: Endpoint,
    #[case] body: &str,
    #[case] prompt: &str,
    #[case] echo: &str,
) {
    let request = parse(endpoint, body).expect("valid");
    let input = request.input();
    assert_eq!(String::from_utf8_lossy(input.prompt.bytes()), prompt);
    assert_eq!(input.prompt.echo_text(), echo);
}

#[rstest]
#[case(Endpoint::Responses, r#"{"model":"sim"}"#, "missing-field")]
#[case(Endpoint::Responses, r#"{"model":"sim","input":[]}"#, "invalid-field")]
#[case(
    Endpoint::Responses,
    r#"{"model":"sim","input":"a","previous_response_id":"r"}"#,
    "unknown-response"
)]
#[case(
    Endpoint::Responses,
    r#"{"model":"sim","input":"a","background":true}"#,
    "invalid-field"
)]
#[case(
    Endpoint::Messages,
    r#"{"model":"sim","messages":[{"role":"user","content":"hi"}]}"#,
    "missing-field"
)]
#[case(Endpoint::Generate, r#"{"token_ids":[]}"#, "invalid-field")]
#[case(
    Endpoint::Generate,
    r#"{"model":"x","token_ids":[1]}"#,
    "unknown-model"
)]
#[case(
    Endpoint::Generate,
    r#"{"token_ids":[1],"sampling_params":{"max_tokens":100}}"#,
    "context-too-long"
)]
fn bad_requests_of_other_apis_are_refused(
    #[case] endpoint: Endpoint,
    #[case] body: &str,
    #[case] reason: &str,
) {
    let error = parse(endpoint, body).expect_err("refused");
    assert_eq!(error.reason(), reason, "{error}");
}

#[test]
fn an_adapter_and_a_salt_have_prefixes_of_their_own() {
    let prefix = |model: &str, salt: &str| {
        let body = format!(
            r#"{{"model":"{model}","cache_salt":"{salt}","prompt":"{}"}}"#,
            "x".repeat(64)
        );
        let request = parse(Endpoint::Completions, &body).expect("valid");
        let block = NonZeroU32::new(16).expect("not zero");
        request.input().prefix("sim", block)
    };
    assert_eq!(
        prefix("sim", ""),
        prefix("alias", ""),
        "one model, two names"
    );
    assert_ne!(prefix("sim", ""), prefix("sql", ""));
    assert_ne!(prefix("sim", ""), prefix("sim", "s"));
}

#[rstest]
#[case(r#"{"model":"sim","input":"abcd"}"#, &[1])]
#[case(r#"{"model":"sim","input":["abcd","abcde"]}"#, &[1, 2])]
#[case(r#"{"model":"sim","input":[1,2,3]}"#, &[3])]
#[case(r#"{"model":"sim","input":[[1,2],[3]]}"#, &[2, 1])]
fn embeddings_take_one_input_or_several(#[case] body: &str, #[case] tokens: &[u32]) {
    let models = mk_models();
    let request = EmbeddingRequest::parse(body.as_bytes(), &mk_limits(&models)).expect("valid");
    let counts: Vec<_> = request
        .inputs
        .iter()
        .map(|input| input.prompt.tokens())
        .collect();
    assert_eq!(counts, tokens);
}

#[rstest]
#[case(400, true)]
#[case(401, false)]
fn an_embedding_needs_no_room_for_output(#[case] bytes: usize, #[case] fits: bool) {
    let models = mk_models();
    let body = format!(r#"{{"model":"sim","input":"{}"}}"#, "x".repeat(bytes));
    let request = EmbeddingRequest::parse(body.as_bytes(), &mk_limits(&models));
    assert_eq!(request.is_ok(), fits);
}

#[rstest]
#[case(r#"{"model":"sim"}"#, "missing-field")]
#[case(r#"{"model":"sim","input":[]}"#, "invalid-field")]
#[case(r#"{"model":"sim","input":[""]}"#, "invalid-field")]
#[case(r#"{"model":"sim","input":"a","dimensions":0}"#, "invalid-field")]
#[case(
    r#"{"model":"sim","input":"a","encoding_format":"hex"}"#,
    "invalid-field"
)]
fn bad_embeddings_are_refused(#[case] body: &str, #[case] reason: &str) {
    let models = mk_models();
    let error = EmbeddingRequest::parse(body.as_bytes(), &mk_limits(&models)).expect_err("refused");
    assert_eq!(error.reason(), reason, "{error}");
}

#[rstest]
#[case(r#"{"model":"sim","prompt":"12345"}"#, 2, "12345")]
#[case(r#"{"model":"sim","prompt":["12345"]}"#, 2, "12345")]
#[case(r#"{"model":"sim","prompt":[7,8,9]}"#, 3, "7 8 9")]
fn a_prompt_may_be_text_or_token_ids(#[case] body: &str, #[case] tokens: u32, #[case] echo: &str) {
    let request = parse(Endpoint::Completions, body).expect("valid");
    assert_eq!(
        (
            request.input().prompt.tokens(),
            request.input().prompt.echo_text()
        ),
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

#[test]
fn given_ids_take_the_place_of_the_text_in_all_but_what_is_echoed() {
    let models = mk_models();
    let body = br#"{"model":"sim","messages":[{"role":"user","content":"hello"}],"token_ids":"?"}"#;
    let ids: Vec<u32> = (70_000..70_011).collect();
    let request = Request::parse_with(Endpoint::Chat, body, &mk_limits(&models), Some(&ids));
    let request = request.expect("valid");
    let input = request.input();
    let block = NonZeroU32::new(4).expect("not zero");
    assert_eq!(input.prompt.tokens(), 11);
    assert_eq!(request.max_tokens().get(), 89);
    assert_eq!(input.prefix("m", block).len(), 2);
    assert_eq!(input.content(block).ids, ids[..8]);
    assert_eq!(input.prompt.echo_text(), "hello");
}
