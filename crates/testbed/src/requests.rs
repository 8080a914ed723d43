//! A client of a gateway: chat requests as a user sends them, and what came back, with times.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// One request, answer included: a gateway that hangs is a failure, not a wait.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The limit for connecting: routes are inside one machine, which may be busy.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Sends requests to one URL over kept connections. Cheap to clone.
#[derive(Clone)]
pub struct Requests {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// From sending to the last byte.
    pub latency: Duration,
}

/// An answer whose body is still coming.
pub struct Stream {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: HeaderMap,
    body: Incoming,
    received: Vec<u8>,
}

/// No answer: what failed, for a person.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {problem}")]
pub struct NoAnswer {
    url: String,
    problem: String,
}

// === impl Requests ===

impl Requests {
    /// `base` is scheme and authority: `http://10.2.192.1`.
    pub fn new(base: impl Into<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        Self {
            base: base.into(),
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }

    /// A chat completion of the named model.
    ///
    /// # Errors
    /// When no complete answer came in 30 s; an error status is an answer.
    pub async fn chat(&self, model: &str, text: &str) -> Result<Answer, NoAnswer> {
        self.post(
            "/v1/chat/completions",
            HeaderMap::new(),
            chat_body(model, text, 5, false),
        )
        .await
    }

    /// A chat completion as server-sent events of up to `tokens` tokens; returns at the response's headers.
    ///
    /// # Errors
    /// When no response headers came in 30 s.
    pub async fn chat_stream(
        &self,
        model: &str,
        text: &str,
        tokens: u32,
    ) -> Result<Stream, NoAnswer> {
        let path = "/v1/chat/completions";
        let response = self
            .send(path, HeaderMap::new(), chat_body(model, text, tokens, true))
            .await?;
        let (head, body) = response.into_parts();
        Ok(Stream {
            status: head.status,
            headers: head.headers,
            body,
            received: Vec::new(),
        })
    }

    /// Any POST of JSON text.
    ///
    /// # Errors
    /// When no complete answer came in 30 s.
    pub async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<Answer, NoAnswer> {
        let start = Instant::now();
        let response = self.send(path, headers, body.into()).await?;
        let (head, body) = response.into_parts();
        let body = timeout(REQUEST_LIMIT, body.collect())
            .await
            .map_err(|_| self.failed(path, format!("no end of the answer in {REQUEST_LIMIT:?}")))?
            .map_err(|error| self.failed(path, format!("the answer broke off: {error}")))?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
            latency: start.elapsed(),
        })
    }

    /// A GET, such as of `/metrics`.
    ///
    /// # Errors
    /// When no complete answer came in 30 s.
    pub async fn get(&self, path: &str) -> Result<Answer, NoAnswer> {
        self.get_with(path, HeaderMap::new()).await
    }

    /// A GET with these headers.
    ///
    /// # Errors
    /// When no complete answer came in 30 s.
    pub async fn get_with(&self, path: &str, headers: HeaderMap) -> Result<Answer, NoAnswer> {
        let start = Instant::now();
        let request = Request::get(format!("{}{path}", self.base)).body(Full::default());
        let mut request = request.map_err(|error| self.failed(path, error.to_string()))?;
        request.headers_mut().extend(headers);
        let exchange = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| causes(&error))?;
            let (head, body) = response.into_parts();
            let body = body
                .collect()
                .await
                .map_err(|error| error.to_string())?
                .to_bytes();
            Ok::<_, String>((head, body))
        };
        let (head, body) = timeout(REQUEST_LIMIT, exchange)
            .await
            .map_err(|_| self.failed(path, format!("no answer in {REQUEST_LIMIT:?}")))?
            .map_err(|problem| self.failed(path, problem))?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
            latency: start.elapsed(),
        })
    }

    async fn send(
        &self,
        path: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<http::Response<Incoming>, NoAnswer> {
        let mut request = Request::post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .map_err(|error| self.failed(path, error.to_string()))?;
        request.headers_mut().extend(headers);
        timeout(REQUEST_LIMIT, self.client.request(request))
            .await
            .map_err(|_| self.failed(path, format!("no answer in {REQUEST_LIMIT:?}")))?
            .map_err(|error| self.failed(path, causes(&error)))
    }

    fn failed(&self, path: &str, problem: String) -> NoAnswer {
        NoAnswer {
            url: format!("{}{path}", self.base),
            problem,
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The pod that answered, if a model server did.
    pub fn pod(&self) -> Option<&str> {
        self.headers.get("x-inference-pod")?.to_str().ok()
    }

    /// The body as text, for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `Null` when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

// === impl Stream ===

impl Stream {
    /// The pod that answers, if a model server does.
    pub fn pod(&self) -> Option<&str> {
        self.headers.get("x-inference-pod")?.to_str().ok()
    }

    /// The `data:` of the next event, or nothing at the end of the body.
    ///
    /// # Errors
    /// When the stream breaks off, or nothing comes for 30 s.
    pub async fn next_event(&mut self) -> Result<Option<String>, String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.received.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                return Ok(Some(
                    event.trim().trim_start_matches("data:").trim().to_owned(),
                ));
            }
            let frame = timeout(REQUEST_LIMIT, self.body.frame())
                .await
                .map_err(|_| format!("nothing came for {REQUEST_LIMIT:?}"))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(format!("the stream broke off: {error}")),
                Some(Ok(frame)) => self
                    .received
                    .extend_from_slice(frame.data_ref().map_or(&[][..], Bytes::as_ref)),
            }
        }
    }
}

fn chat_body(model: &str, text: &str, tokens: u32, stream: bool) -> Bytes {
    let mut body = json!({
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
    });
    if stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    Bytes::from(body.to_string())
}

/// hyper's own text says only that connecting failed; its causes say why.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
