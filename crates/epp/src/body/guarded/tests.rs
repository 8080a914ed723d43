use rstest::rstest;

use super::{super::Parsed, *};

/// Members of requests in the protocol classes of engines, as `CLASS MEMBER`: see `README.md` beside them.
const VLLM: &str = include_str!("fixtures/vllm-0.33.0.txt");
const SGLANG: &str = include_str!("fixtures/sglang-0.5.23.txt");

/// The members of the fixtures that clients may set; each was reviewed once.
const OF_CLIENTS: &str = include_str!("fixtures/of-clients.txt");

fn parse(path: &str, body: &str) -> Parsed {
    let api = Api::for_path(path.as_bytes()).unwrap().unwrap();
    api.parse(body.as_bytes()).unwrap()
}

/// The guarded members of a body, as text.
fn guarded<'a>(path: &str, body: &'a str) -> Vec<(Guarded, &'a str)> {
    let places = parse(path, body).guarded.into_iter();
    places
        .map(|(what, at)| (what, body.get(at).unwrap()))
        .collect()
}

/// Fails when a newer fixture has a member that was not reviewed: add it to the table or to the list.
#[rstest]
#[case::vllm(VLLM)]
#[case::sglang(SGLANG)]
fn each_member_that_an_engine_reads_is_guarded_or_known_as_the_clients(#[case] fixture: &str) {
    let of_clients: Vec<&str> = OF_CLIENTS.lines().collect();
    let mut unknown = Vec::new();
    for line in fixture.lines() {
        let (class, member) = line.split_once(' ').expect(line);
        let body = format!(r#"{{"model":"m","{member}":[7]}}"#);
        let is_guarded = member != "model" && !guarded("/v1/completions", &body).is_empty();
        if is_guarded == of_clients.contains(&member) {
            unknown.push(format!("{class}.{member}: guarded {is_guarded}"));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[rstest]
#[case("kv_transfer_params", Guarded::Transfer)]
#[case("ec_transfer_params", Guarded::Transfer)]
#[case("bootstrap_host", Guarded::Transfer)]
#[case("bootstrap_port", Guarded::Transfer)]
#[case("bootstrap_room", Guarded::Transfer)]
#[case("disagg_prefill_dp_rank", Guarded::Transfer)]
#[case("disaggregated_params", Guarded::Transfer)]
#[case("prompt_token_ids", Guarded::Prompt)]
#[case("prompt_embeds", Guarded::Prompt)]
#[case("input_ids", Guarded::Prompt)]
#[case("input_embeds", Guarded::Prompt)]
#[case("embed_overrides", Guarded::Prompt)]
fn each_is_found_on_every_path_under_any_spelling(#[case] member: &str, #[case] what: Guarded) {
    let (last, rest) = member.as_bytes().split_last().unwrap();
    let escaped = format!("{}\\u{last:04x}", str::from_utf8(rest).unwrap());
    for path in [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/inference/v1/generate",
    ] {
        for key in [member, &escaped] {
            let body = format!(r#"{{"model":"m", "{key}" : {{"a":[1]}} ,"n":1}}"#);
            assert_eq!(
                guarded(path, &body),
                [(what, r#"{"a":[1]}"#)],
                "{path} {key}"
            );
        }
        let null = format!(r#"{{"model":"m","{member}":null}}"#);
        assert_eq!(guarded(path, &null), []);
    }
    let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
    let twice = format!(r#"{{"model":"m","{member}":null,"{member}":1}}"#);
    let error = api.parse(twice.as_bytes()).expect_err("given twice");
    assert!(error.to_string().contains("duplicate field"), "{error}");
}

#[rstest]
#[case::none(r#"{"n":1,"extra_args":{"a":1}}"#, None)]
#[case::null(r#"{"extra_args":{"kv_transfer_params":null}}"#, None)]
#[case::kv(
    r#"{"extra_args":{"kv_transfer_params":{"x":1}},"n":1}"#,
    Some(r#"{"kv_transfer_params":{"x":1}}"#)
)]
#[case::ec(
    r#"{"extra_args":{"ec_transfer_params":{}}}"#,
    Some(r#"{"ec_transfer_params":{}}"#)
)]
#[case::inner_twice(
    r#"{"extra_args":{"kv_transfer_params":null,"kv_transfer_params":{}}}"#,
    Some(r#"{"kv_transfer_params":null,"kv_transfer_params":{}}"#)
)]
#[case::outer_twice(
    r#"{"extra_args":{},"extra_args":{"kv_transfer_params":{}}}"#,
    Some(r#"{"extra_args":{},"extra_args":{"kv_transfer_params":{}}}"#)
)]
fn arguments_of_the_engine_hold_no_transfer_parameters(
    #[case] sampling: &str,
    #[case] want: Option<&str>,
) {
    let body = format!(r#"{{"model":"m","token_ids":[1],"sampling_params":{sampling}}}"#);
    let want: Vec<_> = want
        .map(|json| (Guarded::Transfer, json))
        .into_iter()
        .collect();
    assert_eq!(guarded("/inference/v1/generate", &body), want);
    assert_eq!(guarded("/v1/completions", &body), [], "no member there");
}

/// On each of its own paths, vLLM passes these members to the engine as arguments.
#[rstest]
#[case::kv(r#"{"kv_transfer_params":"x"}"#, true)]
#[case::ec(r#"{"a":1,"ec_transfer_params":{}}"#, true)]
#[case::unreadable("[1]", true)]
#[case::others(r#"{"a":"kv_transfer_params","kv_transfer_params":null}"#, false)]
fn extra_arguments_of_a_request_hold_no_transfer_parameters(
    #[case] arguments: &str,
    #[case] is_guarded: bool,
) {
    let body = format!(r#"{{"model":"m","vllm_xargs":{arguments}}}"#);
    let want = is_guarded.then_some((Guarded::Transfer, arguments));
    let want: Vec<_> = want.into_iter().collect();
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    ] {
        assert_eq!(guarded(path, &body), want, "{path}");
    }
}

#[rstest]
#[case::ids(r#"{"a":1,"prompt_token_ids":[7]}"#, Some("[7]"))]
#[case::null(r#"{"prompt_token_ids":null}"#, None)]
#[case::twice(
    r#"{"prompt_token_ids":null,"prompt_token_ids":[7]}"#,
    Some(r#"{"prompt_token_ids":null,"prompt_token_ids":[7]}"#)
)]
fn transfer_parameters_hold_no_prompt(#[case] transfer: &str, #[case] prompt: Option<&str>) {
    let body = format!(r#"{{"model":"m","kv_transfer_params":{transfer}}}"#);
    let prompt = prompt.map(|json| (Guarded::Prompt, json));
    let mut want = vec![(Guarded::Transfer, transfer)];
    want.extend(prompt);
    assert_eq!(guarded("/v1/chat/completions", &body), want);
}
