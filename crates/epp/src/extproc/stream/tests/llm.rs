//! Requests under an LLM filter, as the proxy sees them.

use super::*;
use crate::{
    extproc::stream::tests::sessions::{header_value, mk_served},
    proto::Mutation,
};

mod elsewhere;
mod load;
mod rules;
mod unshared_caches;

/// A request and all that came back so far.
struct Exchanged {
    messages: Messages,
    replies: Stream,
    /// The endpoints of the answer; empty: it was refused.
    picked: Vec<String>,
    /// The body that goes to the server, or that of the refusal.
    body: String,
    /// 0: it was passed on.
    status: i32,
}

impl Exchanged {
    fn first(&self) -> &str {
        &self.picked[0]
    }

    async fn send(&mut self, request: Request) -> Response {
        send(&self.messages, request).await;
        self.replies
            .next()
            .await
            .unwrap()
            .unwrap()
            .response
            .unwrap()
    }

    async fn response_headers(&mut self, status: &str, served: &str, end: bool) -> Response {
        let json = ("content-type", "application/json");
        self.response_head(&[(":status", status), json], served, end)
            .await
    }

    async fn response_head(
        &mut self,
        fields: &[(&str, &str)],
        served: &str,
        end: bool,
    ) -> Response {
        let all = fields.iter().flat_map(|(name, value)| {
            let one = mk_headers(name, value, end).headers.unwrap();
            one.headers
        });
        let headers = HttpHeaders {
            headers: Some(HeaderMap {
                headers: all.collect(),
            }),
            end_of_stream: end,
        };
        let message = ProcessingRequest {
            request: Some(Request::ResponseHeaders(headers)),
            metadata_context: Some(mk_served(served)),
            ..ProcessingRequest::default()
        };
        self.messages.send(Ok(message)).await.unwrap();
        self.replies
            .next()
            .await
            .unwrap()
            .unwrap()
            .response
            .unwrap()
    }

    async fn response_body(&mut self, text: &str, end: bool) -> String {
        let body = HttpBody {
            body: text.to_owned().into(),
            end_of_stream: end,
        };
        let mut passed = String::new();
        let mut reply = Some(self.send(Request::ResponseBody(body)).await);
        while let Some(Response::ResponseBody(part)) = reply {
            passed.push_str(&streamed(part.response.unwrap().body_mutation));
            let next = self.replies.next().now_or_never().flatten();
            reply = next.and_then(|next| next.unwrap().response);
        }
        passed
    }
}

/// A whole answer by whom it was picked for.
async fn answered(mut asked: Exchanged) {
    let by = asked.first().to_owned();
    asked.response_headers("200", &by, false).await;
    asked.response_body("{}", true).await;
}

/// Streamed, with this first event so long after the answer.
async fn streamed_after(asked: &mut Exchanged, wait: Duration, event: &str) -> Response {
    let by = asked.first().to_owned();
    let sse = ("content-type", "text/event-stream; charset=utf-8");
    let head = [(":status", "200"), sse];
    let head = asked.response_head(&head, &by, false).await;
    tokio::time::advance(wait).await;
    asked.response_body(event, false).await;
    asked.response_body("data: [DONE]\n\n", true).await;
    head
}

pub(super) fn streamed(mutation: Option<crate::proto::BodyMutation>) -> String {
    match mutation.and_then(|one| one.mutation) {
        Some(Mutation::StreamedResponse(part)) => String::from_utf8(part.body.to_vec()).unwrap(),
        other => panic!("not streamed: {other:?}"),
    }
}

pub(super) fn mk_head(fields: &[(&str, &str)], end: bool) -> Request {
    let mut head = mk_headers(":path", "/v1/chat/completions", end);
    let all = &mut head.headers.as_mut().unwrap().headers;
    for (name, value) in fields {
        all.extend(mk_headers(name, value, end).headers.unwrap().headers);
    }
    Request::RequestHeaders(head)
}

/// Sends a request with these headers and this body through a proxy that can try `list` endpoints.
async fn ask_for(shared: &Arc<Shared>, list: u8, fields: &[(&str, &str)], body: &str) -> Exchanged {
    let (messages, mut replies) = open(shared, list);
    send(&messages, mk_head(fields, body.is_empty())).await;
    if !body.is_empty() {
        let body = HttpBody {
            body: body.to_owned().into(),
            end_of_stream: true,
        };
        send(&messages, Request::RequestBody(body)).await;
    }
    let part = match replies.next().await.unwrap().unwrap().response {
        Some(Response::RequestHeaders(part)) => part,
        Some(Response::ImmediateResponse(refusal)) => {
            return Exchanged {
                messages,
                replies,
                picked: Vec::new(),
                body: String::from_utf8(refusal.body.to_vec()).unwrap(),
                status: refusal.status.unwrap().code,
            };
        }
        other => panic!("not to the headers: {other:?}"),
    };
    let picked = header_value(&part, "x-gateway-destination-endpoint").unwrap();
    let picked = picked.split(',').map(str::to_owned).collect();
    let mut passed = String::new();
    if !body.is_empty() {
        let mut ended = false;
        while !ended {
            let Some(Response::RequestBody(part)) = replies.next().await.unwrap().unwrap().response
            else {
                panic!("not to the body")
            };
            let mutation = part.response.unwrap().body_mutation;
            ended = matches!(
                mutation.as_ref().and_then(|one| one.mutation.as_ref()),
                Some(Mutation::StreamedResponse(part)) if part.end_of_stream
            );
            passed.push_str(&streamed(mutation));
        }
    }
    Exchanged {
        messages,
        replies,
        picked,
        body: passed,
        status: 0,
    }
}

async fn ask(shared: &Arc<Shared>, fields: &[(&str, &str)], body: &str) -> Exchanged {
    ask_for(shared, 1, fields, body).await
}

pub(super) fn mk_chat(model: &str, prompt: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{prompt}"}}]}}"#)
}

fn mk_streamed_chat(model: &str, prompt: &str) -> String {
    mk_chat(model, prompt).replacen('{', r#"{"stream":true,"#, 1)
}

/// Five chunks.
fn mk_prompt(letter: &str) -> String {
    letter.repeat(5 * 512)
}

/// Requests in flight and unfinished prefill, by endpoint.
pub(super) fn loads(shared: &Arc<Shared>) -> Vec<(u32, u64)> {
    let snapshot = shared.director.pool().snapshot();
    let load = |endpoint: &Arc<scheduling::Endpoint>| {
        let load = endpoint.load();
        (load.in_flight(), load.prefill())
    };
    snapshot.endpoints().map(load).collect()
}

pub(super) fn page(registry: &Registry) -> String {
    let mut page = String::new();
    encode(&mut page, registry).unwrap();
    page
}

pub(super) fn mk_filter(text: &str) -> Arc<LlmFilter> {
    let text = format!("protocol: openai\n{text}");
    let filter = LlmFilter::parse(&text, Compat::Strict);
    Arc::new(filter.unwrap_or_else(|refusals| panic!("{text}: {refusals}")))
}

/// The labels of the pods at 10.0.0.1 and on.
fn mk_llm(filter: &str, pods: &[&[(&str, &str)]]) -> Arc<Shared> {
    mk_llm_counted_in(filter, pods, &mut Registry::default())
}

fn mk_llm_counted_in(
    filter: &str,
    pods: &[&[(&str, &str)]],
    registry: &mut Registry,
) -> Arc<Shared> {
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(filter));
    let members = pods.iter().zip(1..).map(|(labels, host)| {
        let address = format!("10.0.0.{host}:8000").parse().unwrap();
        let mut member = mk_member(&format!("pod-{host}"), address);
        let labels = labels
            .iter()
            .map(|&(key, value)| (key.into(), value.into()));
        member.labels = Arc::new(labels.collect());
        member
    });
    mk_shared_with(members.collect(), 1 << 20, config, registry)
}

pub(super) const A: &str = "10.0.0.1:8000";
pub(super) const B: &str = "10.0.0.2:8000";
pub(super) const C: &str = "10.0.0.3:8000";

pub(super) const PLAIN: &str = "model_mapping_rule: {m: {rules: [{cluster: c}]}}";
