use rstest::rstest;

use super::*;

fn messages(body: &str, format: ContentFormat) -> Result<String, Refusal> {
    let variables = Body::parse(body)?.variables(&Map::new(), format)?;
    Ok(variables[&Value::from("messages")].to_string())
}

fn one(message: &str, format: ContentFormat) -> Result<String, Refusal> {
    messages(&format!(r#"{{"messages":[{message}]}}"#), format)
}

#[rstest]
#[case::text(
    r#"{"role":"user","content":"a"}"#,
    "[{'role': 'user', 'content': 'a'}]"
)]
#[case::order_and_foreign_fields(
    r#"{"x":1,"content":"a","name":"n","role":"user"}"#,
    "[{'role': 'user', 'content': 'a', 'name': 'n'}]"
)]
#[case::null(
    r#"{"role":"assistant","content":null}"#,
    "[{'role': 'assistant', 'content': ''}]"
)]
#[case::absent(r#"{"role":"assistant"}"#, "[{'role': 'assistant', 'content': ''}]")]
#[case::parts(
    r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},"b"]}"#,
    "[{'role': 'user', 'content': 'a\\nb'}]"
)]
#[case::reasoning(
    r#"{"role":"assistant","content":"a","reasoning":"r"}"#,
    "[{'role': 'assistant', 'content': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}]"
)]
#[case::tool(
    r#"{"role":"tool","content":[{"type":"text","text":"a"}],"tool_call_id":"c"}"#,
    "[{'role': 'tool', 'content': 'a', 'tool_call_id': 'c'}]"
)]
#[case::no_calls(
    r#"{"role":"assistant","content":"a","tool_calls":[]}"#,
    "[{'role': 'assistant', 'content': 'a'}]"
)]
fn a_template_of_text_sees_text(#[case] message: &str, #[case] seen: &str) {
    assert_eq!(one(message, ContentFormat::Text).unwrap(), seen);
}

#[rstest]
#[case::text(
    r#"{"role":"user","content":"a"}"#,
    "[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}]"
)]
#[case::null(
    r#"{"role":"assistant","content":null}"#,
    "[{'role': 'assistant', 'content': []}]"
)]
#[case::refusal(
    r#"{"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"text","text":null}]}"#,
    "[{'role': 'assistant', 'content': [{'type': 'text', 'text': 'no'}]}]"
)]
#[case::tool(
    r#"{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
    "[{'role': 'tool', 'content': 'a\\nb'}]"
)]
fn a_template_of_parts_sees_parts(#[case] message: &str, #[case] seen: &str) {
    assert_eq!(one(message, ContentFormat::Parts).unwrap(), seen);
}

#[rstest]
#[case::object(r#"{"b":1,"a":[2.0]}"#, "{'b': 1, 'a': [2.0]}")]
#[case::string(r#""{\"b\":1,\"a\":[2.0]}""#, "{'b': 1, 'a': [2.0]}")]
#[case::empty(r#""""#, "{}")]
#[case::null("null", "{}")]
#[case::list(r#""[1]""#, "[1]")]
#[case::list_itself("[1]", "[1]")]
#[case::number(r#""3""#, "3")]
#[case::text_of_null(r#""null""#, "None")]
fn arguments_are_what_their_text_says(#[case] arguments: &str, #[case] seen: &str) {
    let call = format!(
        r#"{{"id":"c","type":"function","function":{{"name":"f","arguments":{arguments}}}}}"#
    );
    let message = format!(r#"{{"role":"assistant","tool_calls":[{call}]}}"#);
    let expected = format!("'function': {{'name': 'f', 'arguments': {seen}}}");
    let messages = one(&message, ContentFormat::Text).unwrap();
    assert!(messages.contains(&expected), "{messages}");
}

#[rstest]
#[case::no_messages("{}")]
#[case::messages_of_another_type(r#"{"messages":"a"}"#)]
#[case::message_of_another_type(r#"{"messages":["a"]}"#)]
#[case::no_role(r#"{"messages":[{"content":"a"}]}"#)]
#[case::content_of_another_type(r#"{"messages":[{"role":"user","content":1}]}"#)]
#[case::text_of_another_type(
    r#"{"messages":[{"role":"user","content":[{"type":"text","text":1}]}]}"#
)]
#[case::call_of_no_function(r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"c"}]}]}"#)]
#[case::tool_without_a_name(r#"{"messages":[],"tools":[{"type":"function","function":{}}]}"#)]
#[case::flag_of_another_type(r#"{"messages":[],"add_generation_prompt":"maybe"}"#)]
#[case::flag_of_another_number(r#"{"messages":[],"add_generation_prompt":2}"#)]
#[case::reserved_argument(r#"{"messages":[],"chat_template_kwargs":{"messages":[]}}"#)]
#[case::lone_surrogate(r#"{"messages":[{"role":"user","content":"\ud800"}]}"#)]
#[case::no_object("[]")]
fn a_wrong_request_is_the_clients_fault(#[case] body: &str) {
    let refusal = messages(body, ContentFormat::Text).unwrap_err();
    assert!(matches!(refusal, Refusal::BadRequest(_)), "{refusal:?}");
}

#[rstest]
#[case::image(
    r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#
)]
#[case::image_without_a_type(r#"{"messages":[{"role":"user","content":[{"image_url":"x"}]}]}"#)]
#[case::text_with_more(
    r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache":1}]}]}"#
)]
#[case::own_template(r#"{"messages":[],"chat_template":"x"}"#)]
#[case::continued(r#"{"messages":[],"continue_final_message":true}"#)]
#[case::truncated(r#"{"messages":[],"truncate_prompt_tokens":10}"#)]
#[case::large_integer(r#"{"messages":[],"x":18446744073709551616}"#)]
#[case::arguments_that_are_no_json(
    r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]}"#
)]
fn what_only_the_engine_can_do_is_left_to_it(#[case] body: &str) {
    let refusal = Body::parse(body)
        .and_then(|body| {
            body.check_supported()?;
            body.variables(&Map::new(), ContentFormat::Text)
        })
        .unwrap_err();
    assert!(matches!(refusal, Refusal::Unsupported(_)), "{refusal:?}");
}

/// These are the values that the engine's reader of requests accepts.
#[rstest]
#[case("true", true)]
#[case("1", true)]
#[case("0", false)]
#[case("1.0", true)]
#[case(r#""true""#, true)]
#[case(r#""FALSE""#, false)]
#[case(r#""off""#, false)]
#[case(r#""y""#, true)]
fn a_flag_may_be_a_word_or_a_number(#[case] written: &str, #[case] read: bool) {
    let body = format!(r#"{{"messages":[],"add_generation_prompt":{written}}}"#);
    let flag = Body::parse(&body).unwrap().flag("add_generation_prompt");
    assert_eq!(flag.unwrap(), Some(read));
}

#[test]
fn the_variables_are_those_of_the_engine() {
    let body = r#"{
        "messages": [],
        "tools": [{"function": {"parameters": {"z": 1, "a": 2}, "strict": true, "name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": false, "add_generation_prompt": false, "bos_token": "<k>"},
        "reasoning_effort": "low"
    }"#;
    let special = Map::from([
        ("bos_token".into(), "<s>".into()),
        ("eos_token".into(), "</s>".into()),
    ]);
    let variables = Body::parse(body)
        .unwrap()
        .variables(&special, ContentFormat::Text)
        .unwrap();
    let shown = |name: &str| variables[&Value::from(name)].to_string();
    assert_eq!(
        shown("tools"),
        "[{'type': 'function', 'function': {'name': 'f', 'description': None, \
         'parameters': {'z': 1, 'a': 2}, 'strict': True}}]"
    );
    assert_eq!(shown("enable_thinking"), "False");
    assert_eq!(shown("add_generation_prompt"), "True");
    assert_eq!(
        (shown("bos_token"), shown("eos_token")),
        ("<k>".to_owned(), "</s>".to_owned())
    );
    assert_eq!(
        (shown("documents"), shown("reasoning_effort")),
        ("None".to_owned(), "low".to_owned())
    );
    let none = Body::parse(r#"{"messages":[]}"#).unwrap();
    let none = none.variables(&Map::new(), ContentFormat::Text).unwrap();
    assert!(none[&Value::from("tools")].is_none());
}
