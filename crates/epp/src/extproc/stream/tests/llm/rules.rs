//! Rules: where a request goes, and as what.

use std::collections::BTreeSet;

use super::*;
use crate::director::ModelMatch;

/// Where requests with these headers go.
async fn destinations(
    shared: &Arc<Shared>,
    fields: &[(&str, &str)],
    model: &str,
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for index in 0..20 {
        let prompt = format!("prompt {index}"); // a repeated one would stay where it is
        let asked = ask(shared, fields, &mk_chat(model, &prompt)).await;
        assert_eq!(asked.status, 0, "{}", asked.body);
        seen.insert(asked.first().to_owned());
    }
    seen
}

const ABC: &str = "
model_mapping_rule:
  qwen:
    rules:
      - {cluster: a, headers: [{key: x-env, value: prod}, {key: x-region, value: us}]}
      - {cluster: b, headers: [{key: x-env, value: prod}]}
      - {cluster: c}
clusters: {a: {zone: a}, b: {zone: b}, c: {zone: c}}";

#[rstest]
#[case(&[("x-env", "prod"), ("x-region", "us")], A)]
#[case(&[("x-env", "prod"), ("x-region", "eu")], B)]
#[case(&[("x-env", "test")], C)]
#[tokio::test(start_paused = true)]
async fn headers_lead_to_the_endpoints_of_their_rule(
    #[case] fields: &[(&str, &str)],
    #[case] want: &str,
) {
    let shared = mk_llm(ABC, &[&[("zone", "a")], &[("zone", "b")], &[("zone", "c")]]);
    let seen = destinations(&shared, fields, "qwen").await;
    assert_eq!(seen, [want.to_owned()].into());
}

#[rstest]
#[case::no_headers("qwen", &[], 404, "no rule of the model")]
#[case::other_cluster("qwen", &[("x-env", "far")], 404, "is not served here")]
#[case::no_pod("qwen", &[("x-env", "b200")], 404, "gpu=b200")]
#[case::no_model("gpt", &[], 404, "the model \\\"gpt\\\" is not served here")]
#[tokio::test(start_paused = true)]
async fn a_request_without_a_place_is_refused(
    #[case] model: &str,
    #[case] fields: &[(&str, &str)],
    #[case] status: i32,
    #[case] message: &str,
) {
    let filter = "
model_mapping_rule:
  qwen:
    rules:
      - {cluster: far, headers: [{key: x-env, value: far}]}
      - {cluster: here, headers: [{key: x-env, value: b200}], subset: [{labels: {gpu: b200}}]}
clusters: {here: {}}";
    let shared = mk_llm(filter, &[&[("gpu", "h100")]]);
    let asked = ask(&shared, fields, &mk_chat(model, "hi")).await;
    assert_eq!(asked.status, status, "{}", asked.body);
    assert!(asked.body.contains(message), "{}", asked.body);
    assert!(asked.body.contains("NotFoundError"), "{}", asked.body);
}

#[tokio::test(start_paused = true)]
async fn without_a_ready_endpoint_labels_do_not_matter() {
    let filter = "model_mapping_rule: {m: {rules: [{cluster: c, subset: [{labels: {a: b}}]}]}}";
    let asked = ask(&mk_llm(filter, &[]), &[], &mk_chat("m", "hi")).await;
    assert_eq!(asked.status, 503, "{}", asked.body);
}

#[rstest]
#[case::no_messages(r#"{"model":"m","messages":[]}"#, "messages")]
#[case::no_model(r#"{"model":"","messages":[{"role":"user","content":"hi"}]}"#, "model")]
#[case::no_body("", "no body")]
#[tokio::test(start_paused = true)]
async fn a_request_without_a_prompt_is_refused(#[case] body: &str, #[case] message: &str) {
    let shared = mk_llm("model_mapping_rule: {m: {rules: [{cluster: c}]}}", &[&[]]);
    let asked = ask(&shared, &[(":method", "POST")], body).await;
    assert_eq!(asked.status, 400, "{}", asked.body);
    assert!(asked.body.contains(message), "{}", asked.body);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_no_body_passes_without_one() {
    let shared = mk_llm("model_mapping_rule: {m: {rules: [{cluster: c}]}}", &[&[]]);
    let asked = ask(&shared, &[(":method", "GET")], "").await;
    assert_eq!((asked.status, asked.picked.len()), (0, 1));
}

const ADAPTERS: &str = "
model_mapping_rule:
  qwen:
    rules:
      - cluster: c
        subset:
          - {labels: {gpu: a}, lora: sql}
          - {labels: {gpu: b}, lora: law, weight: 0}";

/// The rule's adapter takes the place of the model in the body, and the client's name is in the response.
#[tokio::test(start_paused = true)]
async fn an_adapter_of_a_rule_goes_to_its_endpoints_and_not_to_the_client() {
    let shared = mk_llm(ADAPTERS, &[&[("gpu", "a")], &[("gpu", "b")]]);
    let mut asked = ask(&shared, &[], &mk_chat("qwen", "hi")).await;
    assert_eq!(asked.first(), A);
    assert_eq!(asked.body, mk_chat("sql", "hi"));
    asked.response_headers("200", A, false).await;
    let body = asked.response_body(r#"{"model":"sql"}"#, true).await;
    assert_eq!(body, r#"{"model":"qwen"}"#);
}

#[tokio::test(start_paused = true)]
async fn an_adapter_that_the_client_names_wins_over_the_weights() {
    let shared = mk_llm(ADAPTERS, &[&[("gpu", "a")], &[("gpu", "b")]]);
    let asked = ask(&shared, &[], &mk_chat("law", "hi")).await;
    assert_eq!((asked.first(), &*asked.body), (B, &*mk_chat("law", "hi")));
}

/// The pool's other models go to all of it, as they are.
#[tokio::test(start_paused = true)]
async fn a_model_that_is_listed_elsewhere_needs_no_rule() {
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(ADAPTERS));
    config.models = ["other".to_owned()].into();
    let shared = mk_shared_of(1 << 20, &["a", "b"], config, &mut Registry::default());
    assert_eq!(shared.director.options().model_match, ModelMatch::Auto);
    let seen = destinations(&shared, &[], "other").await;
    assert_eq!(seen, [A.to_owned(), B.to_owned()].into());
}

#[rstest]
#[case::round_robin("round_robin", &[A, B, A, B])]
#[case::random("random", &[])]
#[tokio::test(start_paused = true)]
async fn other_algorithms_go_by_turns_or_chance(#[case] algorithm: &str, #[case] want: &[&str]) {
    let filter =
        format!("algorithm: {algorithm}\nmodel_mapping_rule: {{m: {{rules: [{{cluster: c}}]}}}}");
    let shared = mk_llm(&filter, &[&[], &[]]);
    if want.is_empty() {
        let seen = destinations(&shared, &[], "m").await;
        assert_eq!(seen, [A.to_owned(), B.to_owned()].into());
        return;
    }
    let mut seen = Vec::new();
    for _ in want {
        let asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
        seen.push(asked.first().to_owned());
    }
    assert_eq!(seen, want);
}

/// Two clusters that alternate have turns of their own.
#[tokio::test(start_paused = true)]
async fn clusters_take_turns_apart() {
    let filter = "
algorithm: round_robin
model_mapping_rule:
  m: {rules: [{cluster: m}]}
  n: {rules: [{cluster: n}]}
clusters: {m: {}, n: {}}";
    let shared = mk_llm(filter, &[&[], &[]]);
    let mut of_m = BTreeSet::new();
    for _ in 0..4 {
        of_m.insert(ask(&shared, &[], &mk_chat("m", "hi")).await.picked);
        ask(&shared, &[], &mk_chat("n", "hi")).await;
    }
    assert_eq!(of_m.len(), 2, "{of_m:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_id_gets_that_of_its_logs() {
    let shared = mk_llm("model_mapping_rule: {m: {rules: [{cluster: c}]}}", &[&[]]);
    let (messages, mut replies) = open(&shared, 1);
    send(&messages, mk_head(&[("x-trace-id", "t-1")], false)).await;
    let body = HttpBody {
        body: mk_chat("m", "hi").into(),
        end_of_stream: true,
    };
    send(&messages, Request::RequestBody(body)).await;
    let Some(Response::RequestHeaders(part)) = replies.next().await.unwrap().unwrap().response
    else {
        panic!("not to the headers")
    };
    assert_eq!(header_value(&part, "x-request-id"), Some("t-1"));
}
