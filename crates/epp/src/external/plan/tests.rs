use rstest::rstest;

use super::*;

const SWITCHES: fn() -> Switches = Switches::default;

fn facts(path: &str, body: &str) -> Facts {
    let api = Api::for_path(path.as_bytes()).unwrap();
    let parsed = api.map(|api| api.parse(body.as_bytes()).unwrap());
    Facts::of(api, parsed.as_ref(), body.as_bytes(), false)
}

const CALL: fn(bool, bool) -> Plan = |route, transfer| Plan::Call(Ask { route, transfer });

#[rstest]
#[case::chat("/v1/chat/completions", r#""messages":[]"#, CALL(false, true))]
#[case::text("/v1/completions?x=1", r#""prompt":"a""#, CALL(false, true))]
#[case::one_text("/v1/completions", r#""prompt":[ "a" ]"#, CALL(false, true))]
#[case::two_texts(
    "/v1/completions",
    r#""prompt":["a","b"]"#,
    Plan::Skip(Skip::SeveralPrompts)
)]
#[case::two_lists(
    "/v1/completions",
    r#""prompt":[[1],[2]]"#,
    Plan::Skip(Skip::SeveralPrompts)
)]
#[case::empty_list("/v1/completions", r#""prompt":[]"#, Plan::Skip(Skip::SeveralPrompts))]
#[case::ids("/v1/completions", r#""prompt":[1,2]"#, Plan::Skip(Skip::IdsGiven))]
#[case::ids_in_a_list("/v1/completions", r#""prompt":[[1,2]]"#, Plan::Skip(Skip::IdsGiven))]
#[case::routed_ids("/v1/completions", r#""prompt":[1,2],"route":true"#, CALL(true, false))]
#[case::no_messages("/v1/chat/completions", r#""prompt":"a""#, Plan::Skip(Skip::NoPrompt))]
#[case::render(
    "/v1/chat/completions/render",
    r#""messages":[]"#,
    Plan::Skip(Skip::OtherPath)
)]
#[case::embeddings(
    "/v1/embeddings",
    r#""input":"a","route":true"#,
    Plan::Skip(Skip::OtherPath)
)]
#[case::generate(
    "/inference/v1/generate",
    r#""token_ids":[1]"#,
    Plan::Skip(Skip::OtherPath)
)]
#[case::not_read("/v1/models", "", Plan::Skip(Skip::OtherPath))]
fn chats_and_single_prompts_are_for_the_processor(
    #[case] path: &str,
    #[case] fields: &str,
    #[case] want: Plan,
) {
    let body = format!(r#"{{"model":"m",{fields}}}"#);
    assert_eq!(plan(&facts(path, &body), &SWITCHES(), false), want);
}

#[rstest]
#[case::by_the_switch("", true, true, true)]
#[case::by_the_client(r#","route":true"#, false, true, true)]
#[case::not_by_the_client(r#","route":false"#, true, true, false)]
#[case::client_has_no_say(r#","route":false"#, true, false, true)]
#[case::not_a_boolean(r#","route":"yes""#, true, true, false)]
#[case::null(r#","route":null"#, true, true, false)]
fn the_client_says_whether_to_route_and_else_the_switch(
    #[case] route: &str,
    #[case] routes: bool,
    #[case] clients_route: bool,
    #[case] want: bool,
) {
    let body = format!(r#"{{"model":"m","messages":[]{route}}}"#);
    let switches = Switches {
        routes,
        clients_route,
        ..SWITCHES()
    };
    let plan = plan(&facts("/v1/chat/completions", &body), &switches, false);
    assert_eq!(plan, CALL(want, true));
}

#[rstest]
#[case::unseen(None, false, Skip::Unseen)]
#[case::translated(Some(r#"{"model":"m","messages":[]}"#), true, Skip::Translated)]
fn a_body_that_is_not_at_hand_is_skipped(
    #[case] body: Option<&str>,
    #[case] is_translated: bool,
    #[case] want: Skip,
) {
    let api = Api::for_path(b"/v1/chat/completions").unwrap();
    let parsed = body.map(|body| api.unwrap().parse(body.as_bytes()).unwrap());
    let body = body.unwrap_or("{\"model\":").as_bytes();
    let facts = Facts::of(api, parsed.as_ref(), body, is_translated);
    assert_eq!(plan(&facts, &SWITCHES(), false), Plan::Skip(want));
    assert_eq!(
        want.failure(),
        None,
        "also where all others must be asked about"
    );
}

#[test]
fn what_the_processor_does_not_get_counts_as_its_refusal() {
    let body = r#"{"model":"m","messages":[]}"#;
    let facts = facts("/v1/chat/completions", body);
    let at_most = |max_body| Switches {
        max_body,
        ..SWITCHES()
    };
    let plan = |max_body, is_open| plan(&facts, &at_most(max_body), is_open);
    assert_eq!(plan(body.len(), false), CALL(false, true));
    assert_eq!(plan(body.len() - 1, true), Plan::Skip(Skip::TooLarge));
    assert_eq!(plan(body.len(), true), Plan::Skip(Skip::BreakerOpen));
    assert_eq!(Skip::TooLarge.failure(), Some(StageFailure::TooLarge));
    assert_eq!(Skip::BreakerOpen.failure(), Some(StageFailure::Unavailable));
}
