//! A scripted EPP: `FULL_DUPLEX_STREAMED` both ways, picks what the test says.

use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3 as wire;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use wire::external_processor_server::{ExternalProcessor, ExternalProcessorServer};
use wire::processing_request::Request as From;
use wire::processing_response::Response as To;

use crate::xds::names::{LB_NAMESPACE, PICK, SERVED};
use crate::xds::proto::google;

/// The body of a refusal, in the form of OpenAI's API.
pub(super) const REFUSAL: &str = r#"{"error":{"message":"no \"capacity\""}}"#;

#[derive(Clone, Debug)]
pub(super) enum Behaviour {
    /// `ip:port`
    Pick(String),
    /// Picks this endpoint, and sets this header of the request.
    PickAndSet(String, &'static str, &'static str),
    /// Goes on without a pick.
    Nothing,
    /// Answers the request itself with this status and [`REFUSAL`].
    Refuse(i32),
    /// Answers by a message that says nothing.
    Empty,
    /// Never answers.
    Hang,
}

#[derive(Clone)]
pub(super) struct Epp {
    state: Arc<Mutex<State>>,
    pub(super) stop: CancellationToken,
}

struct State {
    behaviour: Behaviour,
    asked: usize,
    headers: Vec<String>,
    paths: Vec<String>,
    served: Vec<String>,
    lists: Vec<String>,
}

// === impl Epp ===

impl Epp {
    pub(super) fn new(behaviour: Behaviour) -> Self {
        let state = State {
            behaviour,
            asked: 0,
            headers: Vec::new(),
            paths: Vec::new(),
            served: Vec::new(),
            lists: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            stop: CancellationToken::new(),
        }
    }

    pub(super) fn service(&self) -> ExternalProcessorServer<Self> {
        ExternalProcessorServer::new(self.clone())
    }

    pub(super) fn set(&self, behaviour: Behaviour) {
        self.state.lock().behaviour = behaviour;
    }

    /// Requests seen.
    pub(super) fn asked(&self) -> usize {
        self.state.lock().asked
    }

    /// Names of all request headers seen.
    pub(super) fn headers(&self) -> Vec<String> {
        self.state.lock().headers.clone()
    }

    /// Paths of all requests seen.
    pub(super) fn paths(&self) -> Vec<String> {
        self.state.lock().paths.clone()
    }

    /// Where Envoy says that requests went.
    pub(super) fn served(&self) -> Vec<String> {
        self.state.lock().served.clone()
    }

    /// How many endpoints could be named, as each call said that said it.
    pub(super) fn lists(&self) -> Vec<String> {
        self.state.lock().lists.clone()
    }

    fn answer(&self, request: wire::ProcessingRequest) -> Option<wire::ProcessingResponse> {
        let metadata = request.metadata_context.unwrap_or_default();
        let behaviour = self.state.lock().behaviour.clone();
        let mut dynamic_metadata = None;
        let hangs = matches!(behaviour, Behaviour::Hang);
        let response = match request.request? {
            From::RequestHeaders(headers) => {
                let mut state = self.state.lock();
                state.asked += 1;
                let headers = headers.headers.unwrap_or_default().headers;
                let path = headers.iter().find(|header| header.key == ":path");
                let path = path.map(|path| String::from_utf8_lossy(&path.raw_value).into_owned());
                state.paths.extend(path);
                state
                    .headers
                    .extend(headers.into_iter().map(|header| header.key));
                match behaviour {
                    Behaviour::Hang => return None,
                    Behaviour::Empty => return Some(wire::ProcessingResponse::default()),
                    Behaviour::Refuse(code) => To::ImmediateResponse(wire::ImmediateResponse {
                        status: Some(HttpStatus { code }),
                        headers: Some(json_headers()),
                        body: REFUSAL.into(),
                        ..Default::default()
                    }),
                    Behaviour::Nothing => To::RequestHeaders(wire::HeadersResponse::default()),
                    Behaviour::Pick(at) => {
                        dynamic_metadata = Some(pick(at));
                        To::RequestHeaders(wire::HeadersResponse::default())
                    }
                    Behaviour::PickAndSet(at, name, value) => {
                        dynamic_metadata = Some(pick(at));
                        To::RequestHeaders(set(name, value))
                    }
                }
            }
            _ if hangs => return None,
            From::RequestBody(body) => To::RequestBody(echo(body)),
            From::ResponseBody(body) => To::ResponseBody(echo(body)),
            From::ResponseHeaders(_) => {
                let served = metadata.filter_metadata.get(LB_NAMESPACE);
                let served = served.and_then(|fields| fields.fields.get(SERVED));
                if let Some(google::value::Kind::StringValue(at)) =
                    served.and_then(|v| v.kind.clone())
                {
                    self.state.lock().served.push(at);
                }
                To::ResponseHeaders(wire::HeadersResponse::default())
            }
            From::RequestTrailers(_) => To::RequestTrailers(wire::TrailersResponse::default()),
            From::ResponseTrailers(_) => To::ResponseTrailers(wire::TrailersResponse::default()),
        };
        Some(wire::ProcessingResponse {
            dynamic_metadata,
            response: Some(response),
            ..Default::default()
        })
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Epp {
    type ProcessStream =
        Pin<Box<dyn Stream<Item = Result<wire::ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        call: Request<Streaming<wire::ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let list = call.metadata().get("x-isthmus-max-endpoints");
        let list = list.and_then(|value| value.to_str().ok());
        self.state.lock().lists.extend(list.map(ToOwned::to_owned));
        let state = (self.clone(), call.into_inner());
        let answers = stream::unfold(state, |(epp, mut requests)| async move {
            loop {
                let request = requests.next().await?.ok()?;
                if let Some(answer) = epp.answer(request) {
                    return Some((Ok(answer), (epp, requests)));
                }
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn json_headers() -> wire::HeaderMutation {
    let header = HeaderValue {
        key: "content-type".into(),
        raw_value: b"application/json".to_vec(),
        ..Default::default()
    };
    let option = HeaderValueOption {
        header: Some(header),
        ..Default::default()
    };
    wire::HeaderMutation {
        set_headers: vec![option],
        ..Default::default()
    }
}

fn pick(at: String) -> google::Struct {
    let text = google::Value {
        kind: Some(google::value::Kind::StringValue(at)),
    };
    let inner = google::Struct {
        fields: [(PICK.to_owned(), text)].into_iter().collect(),
    };
    let inner = google::Value {
        kind: Some(google::value::Kind::StructValue(inner)),
    };
    google::Struct {
        fields: [(LB_NAMESPACE.to_owned(), inner)].into_iter().collect(),
    }
}

fn set(name: &str, value: &str) -> wire::HeadersResponse {
    let header = HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..Default::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    };
    wire::HeadersResponse {
        response: Some(wire::CommonResponse {
            header_mutation: Some(wire::HeaderMutation {
                set_headers: vec![header],
                ..Default::default()
            }),
            ..Default::default()
        }),
    }
}

fn echo(body: wire::HttpBody) -> wire::BodyResponse {
    let streamed = wire::StreamedBodyResponse {
        body: body.body,
        end_of_stream: body.end_of_stream,
        ..Default::default()
    };
    wire::BodyResponse {
        response: Some(wire::CommonResponse {
            body_mutation: Some(wire::BodyMutation {
                mutation: Some(wire::body_mutation::Mutation::StreamedResponse(streamed)),
            }),
            ..Default::default()
        }),
    }
}
