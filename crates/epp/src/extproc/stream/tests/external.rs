//! The external stage, as the proxy sees it, with a Processor that does what a test says.

use std::collections::BTreeMap;

use processor_api::{Degraded, ProcessReply, TokenField, TokenKey};
use rand::{SeedableRng, rngs::StdRng};

use super::{
    llm::{A, B, C, loads, mk_chat, mk_head, page, streamed},
    *,
};
use crate::{
    external::{LifeCycle, NoReply, Switches, fixtures::Scripted},
    extproc::stream::tests::sessions::mk_served,
    proto::{CommonResponse, Mutation, PartResponse},
};

mod fallbacks;
mod life;
mod modes;
mod replies;

const WAIT: Duration = Duration::from_secs(1);

/// A pool of the pods a, b and c, with a Processor.
struct Bed {
    scripted: Arc<Scripted>,
    shared: Arc<Shared>,
    registry: Registry,
}

/// A request that was passed on, and its stream.
struct Passed {
    messages: Messages,
    replies: Stream,
    set: BTreeMap<String, String>,
    removed: Vec<String>,
    body: String,
}

impl Bed {
    fn of(scripted: Arc<Scripted>, switches: Switches) -> Self {
        Self::with(scripted, switches, small_config())
    }

    fn with(scripted: Arc<Scripted>, switches: Switches, config: Config) -> Self {
        Self::around(scripted, switches, config, |director| director)
    }

    fn around(
        scripted: Arc<Scripted>,
        switches: Switches,
        config: Config,
        make: impl FnOnce(Director) -> Director,
    ) -> Self {
        let mut registry = Registry::default();
        let external = scripted.external_with(switches, &mut registry);
        let pool = Pool::default();
        let members = [("a", A), ("b", B), ("c", C)];
        let members = members.map(|(pod, address)| mk_member(pod, address.parse().unwrap()));
        pool.replace(members.to_vec(), Moment::START);
        let config = CurrentConfig::new(config);
        let director = Director::new(pool, config, Options::default(), Clock::start());
        let director = director.naming_models(Some(external.metrics.clone()));
        let director = make(director.staging(Some(external)));
        let shared = mk_shared_around(director, 1 << 20, &mut registry);
        Self {
            scripted,
            shared,
            registry,
        }
    }

    /// After a second this is replied.
    fn replying(reply: ProcessReply, switches: Switches) -> Self {
        Self::of(Scripted::answering(WAIT, Ok(reply)), switches)
    }

    fn without_reply(no_reply: NoReply, switches: Switches) -> Self {
        Self::of(Scripted::answering(WAIT, Err(no_reply)), switches)
    }

    /// Sends a request through a proxy that can try one endpoint.
    async fn pass(&self, fields: &[(&str, &str)], body: &str) -> Passed {
        self.pass_list(1, fields, body).await.unwrap()
    }

    /// Through one that can try `list` of them; or the status and body of the refusal.
    async fn pass_list(
        &self,
        list: u8,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Result<Passed, (i32, String)> {
        let (messages, mut replies) = open(&self.shared, list);
        send(&messages, mk_head(fields, false)).await;
        send(&messages, mk_whole(body)).await;
        let part = match next(&mut replies).await {
            Response::RequestHeaders(part) => part,
            Response::ImmediateResponse(refusal) => {
                let body = String::from_utf8(refusal.body.to_vec()).unwrap();
                return Err((refusal.status.unwrap().code, body));
            }
            other => panic!("not to the headers: {other:?}"),
        };
        let (set, removed) = mutated(part);
        let mut body = String::new();
        loop {
            let Response::RequestBody(part) = next(&mut replies).await else {
                panic!("not to the body")
            };
            let mutation = part.response.unwrap().body_mutation;
            let is_last = matches!(
                mutation.as_ref().and_then(|one| one.mutation.as_ref()),
                Some(Mutation::StreamedResponse(part)) if part.end_of_stream
            );
            body.push_str(&streamed(mutation));
            if is_last {
                break;
            }
        }
        Ok(Passed {
            messages,
            replies,
            set,
            removed,
            body,
        })
    }

    fn saturation(&self) -> f64 {
        self.shared.director.saturation()
    }

    fn has(&self, line: &str) -> bool {
        page(&self.registry).contains(&format!("{line}\n"))
    }

    fn assert_has(&self, lines: &[&str]) {
        for line in lines {
            assert!(self.has(line), "{line} is not in {}", page(&self.registry));
        }
    }
}

impl Passed {
    fn destination(&self) -> &str {
        &self.set["x-gateway-destination-endpoint"]
    }

    async fn responds(&mut self, by: &str) {
        let headers = mk_headers(":status", "200", false);
        let message = ProcessingRequest {
            request: Some(Request::ResponseHeaders(headers)),
            metadata_context: Some(mk_served(by)),
            ..ProcessingRequest::default()
        };
        self.messages.send(Ok(message)).await.unwrap();
        next(&mut self.replies).await;
    }

    async fn response_body(&mut self, text: &str, end_of_stream: bool) {
        let body = HttpBody {
            body: text.to_owned().into(),
            end_of_stream,
        };
        send(&self.messages, Request::ResponseBody(body)).await;
        next(&mut self.replies).await;
    }
}

async fn next(replies: &mut Stream) -> Response {
    let reply = replies.next().await.expect("a reply").unwrap();
    reply.response.expect("an answer")
}

fn mk_whole(body: &str) -> Request {
    Request::RequestBody(HttpBody {
        body: body.to_owned().into(),
        end_of_stream: true,
    })
}

/// What an answer sets and removes.
fn mutated(part: PartResponse) -> (BTreeMap<String, String>, Vec<String>) {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let CommonResponse {
        header_mutation, ..
    } = part.response.unwrap_or_default();
    let mutation = header_mutation.unwrap_or_default();
    let set = mutation.set_headers.iter().flat_map(|set| &set.header);
    let set = set.map(|header| (text(&header.key), text(&header.raw_value)));
    (
        set.collect(),
        mutation.remove_headers.iter().map(text).collect(),
    )
}

fn mk_key() -> TokenKey {
    TokenKey::random(&mut StdRng::seed_from_u64(1))
}

/// Routes by the switch.
fn routing() -> Switches {
    Switches {
        routes: true,
        ..Switches::default()
    }
}

fn mk_reply(worker: Option<&str>) -> ProcessReply {
    ProcessReply {
        worker_address: worker.map(str::to_owned),
        token_key: Some(mk_key()),
        token_count: Some(100),
        ..ProcessReply::default()
    }
}
