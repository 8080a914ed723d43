//! Requests and responses in full: what the server gets and what the client gets, however the response is cut.
#![cfg(test)]

use std::fmt::Write as _;

use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;
use transcode::{
    Backend, BodyEdit, Call, ChatTemplate, Failure, Piece, Protocol, StreamOutput, Target,
    Transcoder, Transcoders, Triton, TrtLlm, Usage, Wire, transcoder,
};

/// What the server does.
#[derive(Clone, Copy)]
struct Answer {
    status: u16,
    content_type: &'static str,
    body: &'static str,
}

/// What the client gets.
#[derive(Debug, Default, PartialEq)]
struct Got {
    body: String,
    failure: Option<Failure>,
    usage: Option<Usage>,
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const CHAT_BODY: &str = r#"{"model":"chat","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Say \"é\""}],"max_tokens":4,"temperature":0.5,"stop":["\n"],"seed":7}"#;
const COMPLETION_BODY: &str = r#"{"model":"chat","prompt":"Once upon","top_k":5}"#;

fn vllm() -> (Backend, Transcoders) {
    (Backend::Triton, Transcoders::default())
}

fn old_vllm() -> (Backend, Transcoders) {
    let triton = Triton {
        chat_template: ChatTemplate::ChatMl,
        extra_outputs: false,
    };
    let transcoders = Transcoders {
        triton,
        ..Transcoders::default()
    };
    (Backend::Triton, transcoders)
}

fn trt_llm() -> (Backend, Transcoders) {
    trt_llm_with(StreamOutput::Delta, false)
}

fn trt_llm_cumulative() -> (Backend, Transcoders) {
    trt_llm_with(StreamOutput::Cumulative, false)
}

fn trt_llm_that_repeats_prompts() -> (Backend, Transcoders) {
    trt_llm_with(StreamOutput::Delta, true)
}

fn trt_llm_with(stream_output: StreamOutput, repeats_prompt: bool) -> (Backend, Transcoders) {
    let trt_llm = TrtLlm {
        wire: Wire::Triton,
        stream_output,
        repeats_prompt,
        ..TrtLlm::default()
    };
    let transcoders = Transcoders {
        trt_llm,
        ..Transcoders::default()
    };
    (Backend::TrtLlm, transcoders)
}

fn passthrough() -> (Backend, Transcoders) {
    (Backend::Sglang, Transcoders::default())
}

fn streamed(body: &str) -> String {
    body.replacen(
        '{',
        r#"{"stream":true,"stream_options":{"include_usage":true},"#,
        1,
    )
}

fn mk_transcoder((backend, transcoders): (Backend, Transcoders)) -> Box<dyn Transcoder> {
    let call = Call {
        request_id: "req-1".to_owned(),
        trace_id: "trace-1".to_owned(),
        created: 1_790_000_000,
    };
    transcoder(Protocol::OpenAi, &backend, &transcoders, call)
}

/// A request as the server gets it, and its transcoder.
fn send(
    setting: (Backend, Transcoders),
    path: &str,
    body: &str,
) -> (Box<dyn Transcoder>, String, String) {
    let mut transcoder = mk_transcoder(setting);
    let data = transcoder
        .read_request(path, body.as_bytes())
        .expect("text only");
    assert_eq!(data.model, "chat");
    let target = Target {
        model: "meta/llama 3",
        adapter: None,
    };
    let edit = transcoder.encode_request(&target).expect("a model only");
    let sent = match edit.body {
        BodyEdit::Same => body.to_owned(),
        BodyEdit::Whole(body) => String::from_utf8(body.to_vec()).expect("JSON"),
        BodyEdit::Splice(at, with) => {
            let mut body = body.to_owned();
            body.replace_range(at, str::from_utf8(&with).expect("JSON"));
            body
        }
    };
    (
        transcoder,
        edit.path.unwrap_or_else(|| path.to_owned()),
        sent,
    )
}

/// The response of which the parts come one by one.
fn receive<'a>(transcoder: &mut dyn Transcoder, parts: impl IntoIterator<Item = &'a [u8]>) -> Got {
    let mut bytes = Vec::new();
    let mut got = Got::default();
    let mut last = false;
    let mut add = |piece: Piece| {
        assert!(
            !last || piece.data.is_empty(),
            "nothing comes after the last piece"
        );
        bytes.extend_from_slice(&piece.data);
        last |= piece.last;
        got.failure = got.failure.take().or(piece.failure);
        got.usage = got.usage.or(piece.usage);
    };
    for part in parts {
        add(transcoder.read_response(Bytes::copy_from_slice(part), false));
    }
    add(transcoder.read_response(Bytes::new(), true));
    assert!(last, "the response ends");
    got.body = String::from_utf8(bytes).expect("text");
    got
}

/// The whole exchange, as text; asserts that it is the same however the response is cut.
fn show(setting: (Backend, Transcoders), path: &str, body: &str, answer: Answer) -> String {
    let run = |parts: &[&[u8]]| {
        let (mut transcoder, ..) = send(setting.clone(), path, body);
        transcoder.read_response_headers(answer.status, Some(answer.content_type));
        receive(&mut *transcoder, parts.iter().copied())
    };
    let bytes = answer.body.as_bytes();
    let got = run(&[bytes]);
    for cut in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(cut);
        assert_eq!(run(&[head, tail]), got, "cut at {cut}");
    }
    let single: Vec<_> = bytes.chunks(1).collect();
    assert_eq!(run(&single), got, "byte by byte");

    let (mut transcoder, sent_path, sent) = send(setting, path, body);
    let head = transcoder.read_response_headers(answer.status, Some(answer.content_type));
    let mut text = format!("POST {sent_path}\n{sent}\n\n");
    writeln!(
        text,
        "{} {:?}",
        answer.status,
        head.rewritten.unwrap_or(answer.content_type)
    )
    .unwrap();
    writeln!(text, "{}", got.body.trim_end()).unwrap();
    writeln!(text, "\n{:?}\n{:?}", got.usage, got.failure).unwrap();
    text
}

fn events(body: &'static str) -> Answer {
    Answer {
        status: 200,
        content_type: "text/event-stream; charset=utf-8",
        body,
    }
}

fn json(status: u16, body: &'static str) -> Answer {
    Answer {
        status,
        content_type: "application/json",
        body,
    }
}

const VLLM_WHOLE: &str = r#"{"model_name":"llama","model_version":"1","text_output":"é it is","finish_reason":"length","num_input_tokens":9,"num_output_tokens":4}"#;
const VLLM_EVENTS: &str = concat!(
    r#"data: {"finish_reason":"None","model_name":"llama","num_input_tokens":9,"num_output_tokens":1,"text_output":"é"}"#,
    "\n\n: ping\r\n",
    r#"data: {"finish_reason":"None","model_name":"llama","num_input_tokens":9,"num_output_tokens":2,"text_output":" it"}"#,
    "\r\n\r\n",
    r#"data: {"finish_reason":"stop","num_output_tokens":1,"text_output":""}"#,
    "\n\n",
);
const OLD_WHOLE: &str = r#"{"text_output":"user: Say"}"#;
const TRT_WHOLE: &str = r#"{"context_logits":0.0,"cum_log_probs":0.0,"model_name":"ensemble","model_version":"1","output_log_probs":[0.0,0.0],"sequence_end":false,"sequence_id":0,"text_output":"system: Be brief.\nuser: Say \"é\"\nassistant: é"}"#;
/// The answer begins with the prompt, and ends at the limit of 512 tokens.
const TRT_COUNTED: &str =
    r#"{"num_input_tokens":2,"num_output_tokens":512,"text_output":"Once upon a time"}"#;
const TRT_EVENTS: &str = concat!(
    r#"data: {"model_name":"ensemble","output_log_probs":[0.0,0.0],"text_output":" é"}"#,
    "\n\n",
    r#"data: {"model_name":"ensemble","text_output":" it is what it is"}"#,
    "\n\n",
);
const CUMULATIVE_EVENTS: &str = concat!(
    "data: {\"text_output\":\" \u{FFFD}\"}\n\n",
    "data: {\"text_output\":\" é\"}\n\n",
    "data: {\"text_output\":\" é it\"}\n\n",
);
const FIRST_ERROR: &str = "data: {\"error\":\"in ensemble 'e', Failed to process\"}\n\n";
const LATER_ERROR: &str = concat!(
    "data: {\"text_output\":\"é\"}\n\n",
    "data: {\"error\":\"out of memory\"}\n\n",
    "data: {\"text_output\":\"more\"}\n\n",
);
const LAST_ERROR: &str = concat!(
    "data: {\"text_output\":\"é\",\"finish_reason\":\"stop\"}\n\n",
    "data: {\"error\":\"cannot release\"}",
);
const CUT_OFF: &str = "data: {\"text_output\":\"é\"}\n\ndata: {\"text_out";
const OTHER_JSON: &str = r#"{"outputs":[]}"#;

#[rstest]
#[case("triton_chat", vllm(), CHAT, CHAT_BODY, json(200, VLLM_WHOLE))]
#[case(
    "triton_completion",
    vllm(),
    COMPLETIONS,
    COMPLETION_BODY,
    json(200, VLLM_WHOLE)
)]
#[case("triton_chat_stream", vllm(), CHAT, &streamed(CHAT_BODY), events(VLLM_EVENTS))]
#[case("triton_completion_stream", vllm(), COMPLETIONS, &streamed(COMPLETION_BODY), events(VLLM_EVENTS))]
#[case("triton_old_chatml", old_vllm(), CHAT, CHAT_BODY, json(200, OLD_WHOLE))]
#[case("trt_llm_chat", trt_llm(), CHAT, CHAT_BODY, json(200, TRT_WHOLE))]
#[case(
    "trt_llm_that_repeats",
    trt_llm_that_repeats_prompts(),
    CHAT,
    CHAT_BODY,
    json(200, TRT_WHOLE)
)]
#[case(
    "trt_llm_counted",
    trt_llm(),
    COMPLETIONS,
    COMPLETION_BODY,
    json(200, TRT_COUNTED)
)]
#[case(
    "trt_llm_completion",
    trt_llm(),
    COMPLETIONS,
    COMPLETION_BODY,
    json(200, TRT_WHOLE)
)]
#[case("trt_llm_chat_stream", trt_llm(), CHAT, &streamed(CHAT_BODY), events(TRT_EVENTS))]
#[case("trt_llm_cumulative", trt_llm_cumulative(), CHAT, &streamed(CHAT_BODY), events(CUMULATIVE_EVENTS))]
#[case(
    "passthrough",
    passthrough(),
    CHAT,
    CHAT_BODY,
    json(200, r#"{"id":"1","choices":[]}"#)
)]
#[case("passthrough_stream", passthrough(), CHAT, &streamed(CHAT_BODY), events("data: {\"id\":\"1\"}\n\ndata: [DONE]\n\n"))]
#[case(
    "error_status",
    vllm(),
    CHAT,
    CHAT_BODY,
    json(404, r#"{"error":"Request for unknown model: 'llama' is not found"}"#)
)]
#[case("error_status_of_a_stream", trt_llm(), CHAT, &streamed(CHAT_BODY), json(400, r#"{"error":"unexpected inference input"}"#))]
#[case("error_status_of_another", vllm(), CHAT, CHAT_BODY, Answer { status: 503, content_type: "text/plain", body: "no healthy upstream" })]
#[case("error_status_alone", vllm(), CHAT, CHAT_BODY, json(500, ""))]
#[case("error_first", vllm(), CHAT, &streamed(CHAT_BODY), events(FIRST_ERROR))]
#[case("error_later", vllm(), CHAT, &streamed(CHAT_BODY), events(LATER_ERROR))]
#[case("error_last", vllm(), COMPLETIONS, &streamed(COMPLETION_BODY), events(LAST_ERROR))]
#[case(
    "error_with_status_200",
    trt_llm(),
    CHAT,
    CHAT_BODY,
    json(200, r#"{"error":"too late"}"#)
)]
#[case("broken_event", vllm(), CHAT, &streamed(CHAT_BODY), events(CUT_OFF))]
#[case(
    "broken_whole",
    vllm(),
    CHAT,
    CHAT_BODY,
    json(200, r#"{"text_output":"é"#)
)]
#[case("broken_without_text", vllm(), CHAT, CHAT_BODY, json(200, OTHER_JSON))]
#[case("broken_cumulative", trt_llm_cumulative(), CHAT, &streamed(CHAT_BODY), events(TRT_EVENTS))]
#[case("empty_stream", vllm(), CHAT, &streamed(CHAT_BODY), events(""))]
fn exchange(
    #[case] name: &str,
    #[case] setting: (Backend, Transcoders),
    #[case] path: &str,
    #[case] body: &str,
    #[case] answer: Answer,
) {
    insta::assert_snapshot!(name, show(setting, path, body, answer));
}

#[test]
fn an_adapter_is_a_sampling_parameter_of_vllm_and_unknown_to_tensorrt_llm() {
    let target = Target {
        model: "llama",
        adapter: Some("sql"),
    };
    let mut vllm = mk_transcoder(vllm());
    vllm.read_request(CHAT, CHAT_BODY.as_bytes()).unwrap();
    let edit = vllm.encode_request(&target).unwrap();
    assert_eq!(edit.path.as_deref(), Some("/v2/models/llama/generate"));
    let BodyEdit::Whole(body) = edit.body else {
        panic!("{edit:?}");
    };
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains(r#"\"lora_name\":\"sql\""#), "{body}");

    let mut trt_llm = mk_transcoder(trt_llm());
    trt_llm.read_request(CHAT, CHAT_BODY.as_bytes()).unwrap();
    let refusal = trt_llm.encode_request(&target).unwrap_err();
    assert_eq!(refusal.param.as_deref(), Some("model"));
}

#[test]
fn what_only_vllm_has_is_refused_for_tensorrt_llm() {
    let body = CHAT_BODY.replacen('{', r#"{"min_p":0.1,"#, 1);
    let mut trt_llm = mk_transcoder(trt_llm());
    trt_llm.read_request(CHAT, body.as_bytes()).unwrap();
    let target = Target {
        model: "llama",
        adapter: None,
    };
    let refusal = trt_llm.encode_request(&target).unwrap_err();
    assert_eq!(refusal.param.as_deref(), Some("min_p"));
}

#[test]
fn what_is_too_long_is_broken_at_once() {
    let event = "x".repeat(65 * 1024);
    let (mut stream, ..) = send(vllm(), CHAT, &streamed(CHAT_BODY));
    stream.read_response_headers(200, None);
    let chunk = format!("data: {{\"text_output\":\"a\"}}\n\ndata: {event}");
    let piece = stream.read_response(chunk.into(), false);
    assert!(
        matches!(piece.failure, Some(Failure::Broken(_))) && piece.last,
        "{piece:?}"
    );
    let text = str::from_utf8(&piece.data).unwrap();
    assert!(
        text.contains(r#""content":"a""#) && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );

    let (mut whole, ..) = send(vllm(), CHAT, CHAT_BODY);
    whole.read_response_headers(200, None);
    let piece = whole.read_response(vec![b' '; 4 * 1024 * 1024 + 1].into(), false);
    assert!(
        matches!(piece.failure, Some(Failure::Broken(_))) && piece.last,
        "{piece:?}"
    );
}

proptest! {
    /// Whatever comes, and however it is cut: the same events, of which the last is the end.
    #[test]
    fn any_stream_ends_and_is_the_same_however_it_is_cut(
        pieces in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                "data: {\"text_output\":\"a\"}\n\n",
                "data: {\"text_output\":\"é\"}\r\n\r\n",
                "data: {\"text_output\":\ndata: \"b\"}\r\r",
                "data: {\"error\":\"x\"}\n\n",
                "data: {\"text_output\":[\"a\",\"b\"],\"num_output_tokens\":[1,1]}\n\n",
                ": comment\n", "event: message\n", "id: 5\r", "data:\n", "\n",
            ]).prop_map(|text: &str| text.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..3),
        ], 0..12),
        size in 1usize..9,
        cumulative: bool,
    ) {
        let setting = || if cumulative { trt_llm_cumulative() } else { vllm() };
        let bytes = pieces.concat();
        let run = |parts: Vec<&[u8]>| {
            let (mut transcoder, ..) = send(setting(), CHAT, &streamed(CHAT_BODY));
            transcoder.read_response_headers(200, Some("text/event-stream"));
            receive(&mut *transcoder, parts)
        };
        let whole = run(vec![&bytes]);
        prop_assert!(whole.body.ends_with("data: [DONE]\n\n"));
        prop_assert_eq!(run(bytes.chunks(size).collect()), whole);
    }
}
