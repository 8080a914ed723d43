use rstest::rstest;

use super::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A request of the smallest kind with other fields before.
fn body(path: &str, fields: &str) -> String {
    let prompt = if path == CHAT {
        r#""messages":[{"role":"user","content":"Hi"}]"#
    } else {
        r#""prompt":"Hi""#
    };
    let separator = if fields.is_empty() { "" } else { "," };
    format!(r#"{{{fields}{separator}"model":"m",{prompt}}}"#)
}

fn read(path: &str, fields: &str) -> Result<Asked, Refusal> {
    Asked::read(path, body(path, fields).as_bytes())
}

#[rstest]
#[case(CHAT, r#""n":2"#, "n")]
#[case(CHAT, r#""n":0"#, "n")]
#[case(COMPLETIONS, r#""best_of":3"#, "best_of")]
#[case(
    CHAT,
    r#""tools":[{"type":"function","function":{"name":"f"}}]"#,
    "tools"
)]
#[case(CHAT, r#""functions":[{"name":"f"}]"#, "functions")]
#[case(CHAT, r#""logprobs":true"#, "logprobs")]
#[case(COMPLETIONS, r#""logprobs":0"#, "logprobs")]
#[case(CHAT, r#""top_logprobs":2"#, "top_logprobs")]
#[case(CHAT, r#""logit_bias":{"5":-100}"#, "logit_bias")]
#[case(CHAT, r#""response_format":{"type":"json_object"}"#, "response_format")]
#[case(CHAT, r#""audio":{"voice":"x"}"#, "audio")]
#[case(COMPLETIONS, r#""echo":true"#, "echo")]
#[case(COMPLETIONS, r#""suffix":"x""#, "suffix")]
#[case(CHAT, r#""temperature":"hot""#, "temperature")]
#[case(CHAT, r#""max_tokens":0"#, "max_tokens")]
#[case(CHAT, r#""max_tokens":-1"#, "max_tokens")]
#[case(CHAT, r#""stop":[5]"#, "stop")]
#[case(CHAT, r#""stream":"yes""#, "stream")]
fn what_has_no_terms_is_refused_by_its_name(
    #[case] path: &str,
    #[case] fields: &str,
    #[case] param: &str,
) {
    let refusal = read(path, fields).unwrap_err();
    assert_eq!(refusal.param.as_deref(), Some(param));
    assert!(refusal.message.contains(param), "{refusal}");
}

#[rstest]
#[case(r#"{"model":"m"}"#, "messages")]
#[case(r#"{"model":"m","messages":[]}"#, "messages")]
#[case(
    r#"{"model":"m","messages":[{"role":"user","content":5}]}"#,
    "messages"
)]
#[case(
    r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"c"}}]}]}"#,
    "messages[1].content[1]"
)]
#[case(
    r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#,
    "messages[0].tool_calls"
)]
#[case(r#"{"messages":[{"role":"user","content":"a"}]}"#, "model")]
fn messages_of_no_text_are_refused_by_their_place(#[case] body: &str, #[case] param: &str) {
    let refusal = Asked::read(CHAT, body.as_bytes()).unwrap_err();
    assert_eq!(refusal.param.as_deref(), Some(param));
}

#[rstest]
#[case("[1,2,3]")]
#[case(r#"["a","b"]"#)]
#[case("[]")]
#[case(r#""""#)]
fn a_completion_has_one_prompt_of_text(#[case] prompt: &str) {
    let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
    let refusal = Asked::read(COMPLETIONS, body.as_bytes()).unwrap_err();
    assert_eq!(refusal.param.as_deref(), Some("prompt"));
}

#[rstest]
#[case("/v1/embeddings")]
#[case("/v1/responses")]
#[case("/v1/chat/completions/render")]
fn other_apis_are_refused(#[case] path: &str) {
    let refusal = read(path, "").unwrap_err();
    assert!(refusal.message.contains(path), "{refusal}");
}

#[rstest]
#[case("{")]
#[case(r#"{"model":"m","model":"m"}"#)]
#[case("\"text\"")]
fn bodies_that_are_no_requests_are_refused(#[case] body: &str) {
    let refusal = Asked::read(CHAT, body.as_bytes()).unwrap_err();
    assert!(refusal.message.starts_with("the request cannot be read"));
}

#[test]
fn what_asks_for_nothing_is_no_reason_to_refuse() {
    let nothing = r#""n":1,"tools":[],"tool_choice":"none","functions":null,"logprobs":false,"top_logprobs":0,
        "logit_bias":{},"response_format":{"type":"text"},"user":"u","metadata":{"a":1},"store":false"#;
    let asked = Asked::read(
        "/gateway/v1/chat/completions?x=1",
        body(CHAT, nothing).as_bytes(),
    );
    assert_eq!(asked.map(|asked| asked.api), Ok(Api::Chat));
}

#[test]
fn a_request_is_read_in_full() {
    let fields = r#""stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":7,"max_tokens":9,
        "temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
        "repetition_penalty":1.5,"seed":-3,"stop":"x""#;
    let asked = read(CHAT, fields).unwrap();
    let wanted = Asked {
        api: Api::Chat,
        model: "m".to_owned(),
        prompt: Prompt::Messages(vec![("user".to_owned(), "Hi".to_owned())]),
        sampling: Sampling {
            max_tokens: Some(7),
            temperature: Some(0.5),
            top_p: Some(0.9),
            top_k: Some(5),
            min_p: Some(0.1),
            presence_penalty: Some(1.0),
            frequency_penalty: Some(-1.0),
            repetition_penalty: Some(1.5),
            seed: Some(-3),
            stop: vec!["x".to_owned()],
        },
        stream: true,
        include_usage: true,
    };
    assert_eq!(asked, wanted);
}

#[test]
fn the_texts_of_a_message_are_lines() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"assistant","content":null}]}"#;
    let asked = Asked::read(CHAT, body.as_bytes()).unwrap();
    let text = asked.prompt.render(ChatTemplate::Plain);
    assert_eq!(text, "user: a\nb\nassistant: \nassistant:");
}
