//! Requests to servers that speak another protocol, as the proxy sees them.

use crate::proto::{CommonResponse, HttpTrailers, Mutation, PartResponse};

use super::*;

/// `qwen` is behind Triton, `bert` behind TensorRT-LLM in Triton, `plain` speaks OpenAI's API.
const FILTER: &str = "
protocol: openai
transcoders: {trt-llm: {wire: triton}}
model_mapping_rule:
  qwen: {rules: [{cluster: c, backend: triton, headers: [{key: x-lora, value: sql}], subset: [{lora: sql}]}, {cluster: c, backend: triton}]}
  bert: {rules: [{cluster: c, backend: trt-llm}]}
  plain: {rules: [{cluster: c}]}
";

const FDS: BodySendMode = BodySendMode::FullDuplexStreamed;
const STREAMED: BodySendMode = BodySendMode::Streamed;
const BUFFERED: BodySendMode = BodySendMode::Buffered;
const NONE: BodySendMode = BodySendMode::None;

const EVENTS: [&str; 3] = [
    "data: {\"text_output\":\"a\",\"num_output_tokens\":1}\n\n",
    "data: {\"text_output\":\"b\",\"num_output_tokens\":1}\n\n",
    "data: {\"text_output\":\"\",\"finish_reason\":\"stop\"}\n\n",
];

/// A proxy with one request.
struct Proxy {
    modes: ProtocolConfiguration,
    messages: Messages,
    replies: Stream,
}

/// What was said of the request, or of the response.
#[derive(Debug, Default)]
struct Said {
    /// Replies to the headers.
    headers: usize,
    set: Vec<(String, String)>,
    removed: Vec<String>,
    clear_route_cache: bool,
    /// One of each reply that has any.
    parts: Vec<String>,
    trailers: usize,
    /// Of an answer in the server's stead.
    status: i32,
}

impl Proxy {
    fn open(shared: &Arc<Shared>, request: BodySendMode, response: BodySendMode) -> Self {
        let (messages, replies) = open(shared, 1);
        let modes = ProtocolConfiguration {
            request_body_mode: request.into(),
            response_body_mode: response.into(),
            send_body_without_waiting_for_header_response: true,
        };
        Self {
            modes,
            messages,
            replies,
        }
    }

    async fn send(&mut self, request: Request) -> Said {
        let message = ProcessingRequest {
            request: Some(request),
            protocol_config: Some(self.modes),
            ..ProcessingRequest::default()
        };
        self.messages.send(Ok(message)).await.unwrap();
        let mut said = Said::default();
        while let Some(Some(Ok(reply))) = self.replies.next().now_or_never() {
            said.add(reply.response);
        }
        said
    }

    /// Sends a chat; all that is said of it.
    async fn ask(&mut self, fields: &[(&str, &str)], body: &str) -> Said {
        let mut head = mk_headers(":path", "/v1/chat/completions", false);
        let all = &mut head.headers.as_mut().unwrap().headers;
        for (name, value) in fields.iter().chain(&[("x-request-id", "id-1")]) {
            all.extend(mk_headers(name, value, false).headers.unwrap().headers);
        }
        let mut said = self.send(Request::RequestHeaders(head)).await;
        if said.status == 0 && self.modes.request_body_mode != i32::from(NONE) {
            said.join(self.send(mk_part(body, true)).await);
        }
        said
    }

    async fn respond(&mut self, status: &str, content_type: &str) -> Said {
        let mut head = mk_headers(":status", status, false);
        let all = &mut head.headers.as_mut().unwrap().headers;
        all.extend(
            mk_headers("content-type", content_type, false)
                .headers
                .unwrap()
                .headers,
        );
        self.send(Request::ResponseHeaders(head)).await
    }

    async fn respond_with(&mut self, body: &str, end: bool) -> Said {
        let Request::RequestBody(body) = mk_part(body, end) else {
            unreachable!("made as one")
        };
        self.send(Request::ResponseBody(body)).await
    }
}

impl Said {
    fn add(&mut self, reply: Option<Response>) {
        // None: an override of a timeout.
        let Some(reply) = reply else { return };
        match reply {
            Response::RequestHeaders(part) | Response::ResponseHeaders(part) => {
                self.headers += 1;
                self.add_part(part);
            }
            Response::RequestBody(part) | Response::ResponseBody(part) => self.add_part(part),
            Response::ImmediateResponse(refusal) => {
                self.status = refusal.status.unwrap().code;
                self.parts = vec![String::from_utf8(refusal.body.to_vec()).unwrap()];
            }
            Response::RequestTrailers(_) | Response::ResponseTrailers(_) => self.trailers += 1,
        }
    }

    fn add_part(&mut self, part: PartResponse) {
        let CommonResponse {
            header_mutation,
            body_mutation,
            clear_route_cache,
        } = part.response.unwrap_or_default();
        self.clear_route_cache |= clear_route_cache;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        if let Some(mutation) = header_mutation {
            let set = mutation
                .set_headers
                .into_iter()
                .filter_map(|set| set.header);
            self.set
                .extend(set.map(|header| (text(&header.key), text(&header.raw_value))));
            let removed = mutation.remove_headers.iter();
            self.removed.extend(removed.map(|name| text(name)));
        }
        let part = match body_mutation.and_then(|mutation| mutation.mutation) {
            Some(Mutation::StreamedResponse(part)) => text(&part.body),
            Some(Mutation::Body(body)) => text(&body),
            Some(Mutation::ClearBody(_)) | None => String::new(),
        };
        self.parts.extend((!part.is_empty()).then_some(part));
    }

    fn join(&mut self, later: Self) {
        self.headers += later.headers;
        self.set.extend(later.set);
        self.removed.extend(later.removed);
        self.clear_route_cache |= later.clear_route_cache;
        self.parts.extend(later.parts);
        self.status = later.status.max(self.status);
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut set = self.set.iter().rev();
        set.find(|(set, _)| set == name)
            .map(|(_, value)| value.as_str())
    }

    fn body(&self) -> String {
        self.parts.concat()
    }
}

fn mk_part(text: &str, end: bool) -> Request {
    Request::RequestBody(HttpBody {
        body: text.to_owned().into(),
        end_of_stream: end,
    })
}

fn mk_chat(model: &str, fields: &str) -> String {
    format!(r#"{{"model":"{model}",{fields}"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

fn mk_transcoding() -> Arc<Shared> {
    mk_transcoding_counted_in(&mut Registry::default())
}

fn mk_transcoding_counted_in(registry: &mut Registry) -> Arc<Shared> {
    let filter = LlmFilter::parse(FILTER, Compat::Strict).unwrap_or_else(|error| panic!("{error}"));
    let mut config = small_config();
    config.llm_filter = Some(Arc::new(filter));
    mk_shared_of(1 << 20, &["a"], config, registry)
}

fn in_flight(shared: &Shared) -> u32 {
    let snapshot = shared.director.pool().snapshot();
    snapshot.endpoints().map(|one| one.load().in_flight()).sum()
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn another_path_and_body_go_to_the_server_by_the_same_route(
    #[values(FDS, STREAMED, BUFFERED)] mode: BodySendMode,
) {
    let mut proxy = Proxy::open(&mk_transcoding(), mode, mode);
    let said = proxy.ask(&[], &mk_chat("qwen", r#""max_tokens":5,"#)).await;
    assert_eq!(said.header(":path"), Some("/v2/models/qwen/generate"));
    assert_eq!(
        said.header("x-gateway-destination-endpoint"),
        Some("10.0.0.1:8000")
    );
    assert!(
        !said.clear_route_cache,
        "the new path must not choose another route"
    );
    assert!(
        said.removed.contains(&"accept-encoding".to_owned()),
        "{said:?}"
    );
    assert_eq!(
        said.body(),
        r#"{"text_input":"user: hi\nassistant:","stream":false,"exclude_input_in_output":true,"sampling_parameters":"{\"max_tokens\":5}","return_finish_reason":true,"return_num_input_tokens":true,"return_num_output_tokens":true}"#
    );
    let length = said.body().len().to_string();
    let wanted = (mode == BUFFERED).then_some(length.as_str());
    assert_eq!(said.header("content-length"), wanted);
}

/// Some clients write a byte order mark before the JSON.
#[tokio::test(start_paused = true)]
async fn a_byte_order_mark_keeps_no_request_from_another_protocol() {
    let chat = mk_chat("qwen", "");
    let mut bodies = Vec::new();
    for body in [chat.clone(), format!("\u{feff}{chat}")] {
        let mut proxy = Proxy::open(&mk_transcoding(), BUFFERED, BUFFERED);
        let said = proxy.ask(&[], &body).await;
        bodies.push((said.status, said.body()));
    }
    assert_eq!(bodies[0], bodies[1]);
    assert!(bodies[0].1.starts_with(r#"{"text_input":"user: hi"#));
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_stream_comes_back_event_by_event(#[values(FDS, STREAMED)] mode: BodySendMode) {
    let shared = mk_transcoding();
    let mut proxy = Proxy::open(&shared, mode, mode);
    proxy.ask(&[], &mk_chat("qwen", r#""stream":true,"#)).await;
    let said = proxy
        .respond("200", "text/event-stream; charset=utf-8")
        .await;
    assert_eq!(said.headers, 1, "before the body");
    assert_eq!(
        said.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert!(
        said.removed.contains(&"content-length".to_owned()),
        "{said:?}"
    );
    for (event, text) in EVENTS.into_iter().zip(["a", "b"]) {
        let body = proxy.respond_with(event, false).await.body();
        let content =
            format!(r#""model":"qwen","choices":[{{"index":0,"delta":{{"content":"{text}"}}"#);
        assert!(body.contains(&content), "{body}");
    }
    let body = proxy.respond_with(EVENTS[2], true).await.body();
    assert!(body.contains(r#""finish_reason":"stop""#), "{body}");
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    assert_eq!(in_flight(&shared), 0);
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_whole_answer_comes_back_as_one(
    #[values(FDS, STREAMED, BUFFERED)] mode: BodySendMode,
    #[values(1, 2)] parts: usize,
) {
    let mut proxy = Proxy::open(&mk_transcoding(), mode, mode);
    proxy.ask(&[], &mk_chat("qwen", "")).await;
    let mut said = proxy.respond("200", "application/json").await;
    assert_eq!(
        said.headers,
        usize::from(mode != FDS),
        "there it waits for the body"
    );
    let answer = r#"{"text_output":"ok","finish_reason":"stop","num_output_tokens":1}"#;
    let parts = if mode == BUFFERED { 1 } else { parts };
    let size = answer.len().div_ceil(parts);
    for at in 0..parts {
        let part = answer
            .get(at * size..answer.len().min((at + 1) * size))
            .unwrap();
        said.join(proxy.respond_with(part, at + 1 == parts).await);
    }
    assert_eq!(said.headers, 1);
    assert_eq!(said.header("content-type"), Some("application/json"));
    let body = said.body();
    let wanted = r#"{"id":"chatcmpl-id-1","object":"chat.completion","created":"#;
    assert!(
        body.starts_with(wanted) && body.contains(r#""content":"ok""#),
        "{body}"
    );
    let length = body.len().to_string();
    let wanted = (mode == BUFFERED).then_some(length.as_str());
    assert_eq!(said.header("content-length"), wanted);
}

#[rstest]
#[case::whole("application/json", r#"{"text_output":"ok"}"#, "\"content\":\"ok\"")]
#[case::events(
    "text/event-stream",
    "data: {\"text_output\":\"ok\"}\n",
    "data: [DONE]\n\n"
)]
#[tokio::test(start_paused = true)]
async fn trailers_end_an_answer_too(
    #[case] content_type: &str,
    #[case] answer: &str,
    #[case] part: &str,
) {
    let shared = mk_transcoding();
    let mut proxy = Proxy::open(&shared, FDS, FDS);
    proxy.ask(&[], &mk_chat("qwen", "")).await;
    let mut said = proxy.respond("200", content_type).await;
    said.join(proxy.respond_with(answer, false).await);
    assert!(!said.body().contains(part), "{}", said.body());
    let end = proxy.send(Request::ResponseTrailers(HttpTrailers {})).await;
    assert_eq!(end.trailers, 1);
    said.join(end);
    assert_eq!(said.headers, 1);
    assert!(said.body().contains(part), "{}", said.body());
    assert_eq!(in_flight(&shared), 0);
}

#[rstest]
#[case::unanswered(FDS, 503)]
#[case::whole(BUFFERED, 503)]
#[case::answered(STREAMED, 0)]
#[tokio::test(start_paused = true)]
async fn a_broken_answer_is_503_as_long_as_the_client_has_no_status(
    #[case] mode: BodySendMode,
    #[case] status: i32,
) {
    let shared = mk_transcoding();
    let mut proxy = Proxy::open(&shared, mode, mode);
    proxy.ask(&[], &mk_chat("qwen", "")).await;
    proxy.respond("200", "application/json").await;
    let said = proxy.respond_with(r#"{"text_out"#, true).await;
    assert_eq!(said.status, status);
    let body = said.body();
    assert!(
        body.contains(r#""code":503"#) && body.contains("cannot be read"),
        "{body}"
    );
    assert_eq!(in_flight(&shared), 0);
}

#[rstest]
#[case::unanswered(FDS, 503)]
#[case::answered(STREAMED, 0)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_there_is_no_room_for_ends_with_an_error(
    #[case] mode: BodySendMode,
    #[case] status: i32,
) {
    let shared = mk_transcoding();
    let mut proxy = Proxy::open(&shared, mode, mode);
    proxy.ask(&[], &mk_chat("qwen", "")).await;
    proxy.respond("200", "application/json").await;
    let budget = &shared.settings.limits.budget;
    let mut others = budget.reserve_none();
    assert!(others.grow((1 << 20) - usize::try_from(budget.used()).unwrap()));
    let mut said = proxy.respond_with(r#"{"text_"#, false).await;
    if status == 0 {
        said.join(proxy.respond_with(r#"output":"ok"}"#, true).await);
    }
    assert_eq!(said.status, status);
    let body: serde_json::Value = serde_json::from_str(&said.body()).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("too many bodies"), "{message}");
    assert_eq!(in_flight(&shared), 0);
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_gets_the_shape_that_clients_know(
    #[values(FDS, STREAMED, BUFFERED)] mode: BodySendMode,
) {
    let mut proxy = Proxy::open(&mk_transcoding(), mode, mode);
    proxy.ask(&[], &mk_chat("bert", r#""stream":true,"#)).await;
    let mut said = proxy.respond("404", "application/json").await;
    let error = r#"{"error":"Request for unknown model: 'bert' is not found"}"#;
    said.join(proxy.respond_with(error, true).await);
    assert_eq!((said.status, said.headers), (0, 1), "the status passes");
    assert_eq!(
        said.body(),
        r#"{"error":{"message":"Request for unknown model: 'bert' is not found","type":"NotFoundError","param":null,"code":404},"trace_id":"id-1"}"#
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_in_a_stream_counts_as_one() {
    let mut registry = Registry::default();
    let mut proxy = Proxy::open(&mk_transcoding_counted_in(&mut registry), FDS, FDS);
    proxy.ask(&[], &mk_chat("qwen", r#""stream":true,"#)).await;
    proxy.respond("200", "text/event-stream").await;
    let said = proxy
        .respond_with("data: {\"error\":\"no memory\"}\n\n", false)
        .await;
    assert!(
        said.body()
            .contains(r#""message":"no memory","type":"InternalServerError""#)
    );
    assert!(said.body().ends_with("data: [DONE]\n\n"));
    assert_eq!(
        proxy.respond_with(EVENTS[0], true).await.body(),
        "",
        "it is over"
    );
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let counted = page.lines().any(|line| {
        line.contains("request_error_total{") && line.contains("\"500\"") && line.ends_with(" 1")
    });
    assert!(counted, "{page}");
}

#[rstest]
#[case::parameter(FDS, FDS, r#""n":2,"#, "\"param\":\"n\"")]
#[case::request_unseen(NONE, FDS, "", "the request's body")]
#[case::response_unseen(FDS, NONE, "", "the response's body")]
#[tokio::test(start_paused = true)]
async fn what_cannot_be_translated_is_refused(
    #[case] request: BodySendMode,
    #[case] response: BodySendMode,
    #[case] fields: &str,
    #[case] part: &str,
) {
    let shared = mk_transcoding();
    let mut proxy = Proxy::open(&shared, request, response);
    let said = proxy.ask(&[], &mk_chat("qwen", fields)).await;
    assert_eq!(said.status, 400);
    assert!(said.body().contains(part), "{}", said.body());
    assert_eq!(in_flight(&shared), 0);
}

#[tokio::test(start_paused = true)]
async fn an_adapter_and_its_model_have_places_of_their_own() {
    let mut proxy = Proxy::open(&mk_transcoding(), FDS, FDS);
    let said = proxy.ask(&[("x-lora", "sql")], &mk_chat("qwen", "")).await;
    assert_eq!(said.header(":path"), Some("/v2/models/qwen/generate"));
    assert!(
        said.body().contains(r#"\"lora_name\":\"sql\""#),
        "{}",
        said.body()
    );
}

#[tokio::test(start_paused = true)]
async fn other_rules_are_served_as_ever() {
    let mut proxy = Proxy::open(&mk_transcoding(), FDS, FDS);
    let body = mk_chat("plain", r#""n":2,"#);
    let said = proxy.ask(&[], &body).await;
    assert_eq!((said.header(":path"), said.body()), (None, body));
    assert!(said.clear_route_cache);
    assert!(!said.removed.contains(&"accept-encoding".to_owned()));
    let said = proxy.respond("200", "application/json").await;
    assert_eq!(
        (said.headers, said.set.len(), said.removed.len()),
        (1, 0, 0)
    );
    let answer = r#"{"any":"thing"}"#;
    assert_eq!(proxy.respond_with(answer, true).await.body(), answer);
}
