//! From a call's bytes to the ids of its prompt: what takes a processor's time. It runs on a thread of its own.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use processor_api::{
    ProcessCall, ProcessRequest, REQUEST_ID_HEADER, Refusal, RouteRequest, WireError,
};
use tokenization::{Api, Prompt};
use tokio::time::Instant;

use super::{RouteCall, Shared};
use crate::{members::Members, metrics::Stage, models::Found};

/// Headers of a client's request that go on to the Router.
const TRACE_HEADERS: [&str; 3] = [REQUEST_ID_HEADER, "traceparent", "tracestate"];

/// A prompt whose ids are known.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) ids: Arc<[u32]>,
    /// The client sent the ids itself.
    pub(super) is_clients_own: bool,
    /// As in the request.
    pub(super) model: Arc<str>,
    /// Names its files by their contents.
    pub(super) tokenizer: Arc<str>,
    /// The Router is to be asked.
    pub(super) wants_route: bool,
    /// What it is asked, if there is one.
    pub(super) route: Option<RouteCall>,
    /// Of the request: its name and trace.
    pub(super) headers: HeaderMap,
    /// The model in the catalogue.
    pub(super) name: Arc<str>,
    /// What took the time.
    pub(super) took: Took,
}

/// When a prompt was rendered and encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) begun: Instant,
    pub(super) render: Duration,
    pub(super) encode: Duration,
}

/// The ids of a client's body.
#[derive(Debug)]
pub(crate) struct Ids {
    /// What it is.
    pub(crate) api: Api,
    /// They.
    pub(crate) ids: Vec<u32>,
}

/// A prompt's ids, and whose they are.
struct Encoded {
    ids: Vec<u32>,
    is_clients_own: bool,
    found: Found,
    took: Took,
}

/// The prompt of a call of `/process`.
pub(super) fn prepare_process(
    shared: &Shared,
    call: &Bytes,
    with_router: bool,
) -> Result<Prepared, Refusal> {
    let call = ProcessCall::parse(text(call)?).map_err(|error| bad_call(&error))?;
    check_size(shared, call.body)?;
    let members = members(call.body)?;
    let path = call.request.path.as_deref();
    let api = api_of(path, call.body)?;
    let encoded = encode(shared, api, call.body, &members.model)?;
    let Encoded {
        ids,
        is_clients_own,
        found,
        took,
    } = encoded;
    let tokenizer = found.model.tag().into();
    let model = (&*members.model).into();
    let headers = trace_headers(&call.request.headers);
    let (ids, route) = if members.route && with_router {
        let (ids, frame) = route_frame(call.request, members.cache_salt, &found, ids);
        let headers = headers.clone();
        (ids, Some(RouteCall { frame, headers }))
    } else {
        (ids, None)
    };
    Ok(Prepared {
        ids: ids.into(),
        is_clients_own,
        model,
        tokenizer,
        wants_route: members.route,
        route,
        headers,
        name: found.name,
        took,
    })
}

/// The ids of a client's body.
pub(super) fn prepare_render(
    shared: &Shared,
    api: Api,
    body: &Bytes,
) -> Result<Arc<[u32]>, Refusal> {
    let body = text(body)?;
    check_size(shared, body)?;
    let members = members(body)?;
    Ok(encode(shared, api, body, &members.model)?.ids.into())
}

/// The ids of a client's body whose path is not known.
pub(crate) fn ids_of(shared: &Shared, body: &Bytes) -> Result<Ids, Refusal> {
    let body = text(body)?;
    let members = members(body)?;
    let api = api_of(None, body)?;
    let ids = encode(shared, api, body, &members.model)?.ids;
    Ok(Ids { api, ids })
}

fn api_of(path: Option<&str>, body: &str) -> Result<Api, Refusal> {
    let api = Api::of(path, body)?;
    let other = "only chat completions and completions have prompts";
    api.ok_or_else(|| Refusal::Unsupported(other.to_owned()))
}

fn encode(shared: &Shared, api: Api, body: &str, model: &str) -> Result<Encoded, Refusal> {
    let found = shared.models.find(model)?;
    let begun = Instant::now();
    let prompt = found.model.prompt(api, body, now());
    let rendered = Instant::now();
    let render = rendered - begun;
    shared.metrics.took(Stage::Render, render);
    let prompt = prompt.inspect_err(|refusal| {
        if matches!(refusal, Refusal::Template(_)) {
            shared.metrics.template_error(&found.name);
        }
    })?;
    let is_clients_own = matches!(prompt, Prompt::Ids(_));
    let options = &shared.options;
    let ids = found.model.encode(prompt, options, &mut rand::rng())?;
    let encode = rendered.elapsed();
    shared.metrics.took(Stage::Encode, encode);
    shared.metrics.prompt(ids.len());
    Ok(Encoded {
        ids,
        is_clients_own,
        found,
        took: Took {
            begun,
            render,
            encode,
        },
    })
}

/// The ids come back: the binary form has its own copy.
fn route_frame(
    request: ProcessRequest<'_>,
    cache_salt: Option<Cow<'_, str>>,
    found: &Found,
    ids: Vec<u32>,
) -> (Vec<u32>, Bytes) {
    let ProcessRequest {
        headers: sent,
        path: _,
        candidates,
        priority,
        max_endpoints,
        reservation_id,
    } = request;
    let route = RouteRequest {
        token_ids: ids,
        request_id: sent.get(REQUEST_ID_HEADER).cloned(),
        reservation_id,
        model: Some(Cow::Borrowed(&found.name)),
        lora_name: found.lora_name.as_deref().map(Cow::Borrowed),
        cache_salt,
        candidates,
        priority,
        max_endpoints,
    };
    let frame = route.encode_binary().into();
    (route.token_ids, frame)
}

fn trace_headers(sent: &BTreeMap<Cow<'_, str>, Cow<'_, str>>) -> HeaderMap {
    let of = |name: &'static str| {
        let value = HeaderValue::from_str(sent.get(name)?).ok()?;
        Some((HeaderName::from_static(name), value))
    };
    TRACE_HEADERS.into_iter().filter_map(of).collect()
}

fn members(body: &str) -> Result<Members<'_>, Refusal> {
    let members = Members::read(body);
    members.ok_or_else(|| bad("the request body is no JSON object"))
}

fn check_size(shared: &Shared, body: &str) -> Result<(), Refusal> {
    let limit = shared.max_prompt_bytes;
    if body.len() > limit {
        let flag = "--max-prompt-bytes";
        return Err(Refusal::TooLarge { limit, flag });
    }
    Ok(())
}

fn text(bytes: &Bytes) -> Result<&str, Refusal> {
    str::from_utf8(bytes).map_err(|_| bad("the body is no text in UTF-8"))
}

fn bad(message: &str) -> Refusal {
    Refusal::BadRequest(message.to_owned())
}

fn bad_call(error: &WireError) -> Refusal {
    Refusal::BadRequest(error.to_string())
}

/// What templates call the time, as in the engines' containers.
fn now() -> DateTime {
    Timestamp::now().to_zoned(TimeZone::UTC).datetime()
}
