//! Where the token ids of a prompt come from: by key, in the body, from a Processor, or four bytes of text each.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header, uri::PathAndQuery};
use bytes::Bytes;
use http_call::{Call, Hop};
use processor_api::{
    TOKENS_KEY_HEADER,
    tokens::{Fetched, KeyHeader, Source, Tags, model, source},
};
use serde::Deserialize;
use token_cache::{Entry, MAX_IDS, Store};
use tokio::task::JoinSet;

use super::answer::Endpoint;
use crate::args::{AcceptTokens, CacheSettings, TokenSettings};

/// What a Processor has to render and tokenize a prompt.
const TOKENIZE: Duration = Duration::from_secs(5);

pub(super) const SOURCE: HeaderName = HeaderName::from_static("x-inference-token-source");
pub(super) const CHECKSUM: HeaderName = HeaderName::from_static("x-inference-token-checksum");

/// What brings ids.
#[derive(Debug)]
pub(crate) struct Tokens {
    accept: AcceptTokens,
    cache: Option<Store>,
    fetch_timeout: Duration,
    tokenizer: Option<Hop>,
    /// Keeps up the cache; ends with this value.
    _upkeep: JoinSet<()>,
}

/// The ids of one prompt.
#[derive(Debug)]
pub(super) struct Given {
    /// `key`, `body` or `text`.
    pub(super) source: &'static str,
    /// Why it is the text, or why no Processor made its ids.
    pub(super) reason: Option<&'static str>,
    /// Absent: four bytes of text each.
    pub(super) ids: Option<Vec<u32>>,
}

/// What the render paths answer; for completions it may be a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Rendered {
    One(RenderedPrompt),
    Several(Vec<RenderedPrompt>),
}

#[derive(Deserialize)]
struct RenderedPrompt {
    token_ids: Vec<u32>,
}

// === impl Tokens ===

impl Tokens {
    /// Begins to connect to the cache, if there is one; that needs a runtime.
    pub(crate) fn start(settings: TokenSettings) -> Self {
        let TokenSettings {
            accept,
            cache,
            fetch_timeout,
            tokenize,
        } = settings;
        let mut upkeep = JoinSet::new();
        let cache = cache.filter(|_| accept.key).map(CacheSettings::open);
        let cache = cache.and_then(|opened| match opened {
            Ok((store, work)) => {
                upkeep.spawn(work.run());
                Some(store)
            }
            Err(error) => {
                tracing::error!(%error, "the token cache cannot be used: ids of keys are not");
                None
            }
        });
        Self {
            accept,
            cache,
            fetch_timeout,
            tokenizer: tokenize.map(|base| Hop::new(base, http_call::Settings::default())),
            _upkeep: upkeep,
        }
    }

    /// The ids of a prompt. It never fails: the text is complete.
    pub(super) async fn find(
        &self,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Given {
        let key = headers.get(TOKENS_KEY_HEADER).filter(|_| self.accept.key);
        let key = KeyHeader::read(key.map(HeaderValue::as_bytes));
        let entry = self.fetch(key).await;
        let fetched = match (&entry, key) {
            (_, KeyHeader::Absent) => Fetched::Nothing,
            (_, KeyHeader::Bad) => Fetched::Bad,
            (Ok(Some(entry)), _) => Fetched::Entry {
                model: &entry.model,
                tokenizer: &entry.tokenizer,
                ids: &entry.ids,
            },
            (Ok(None), _) => Fetched::Unknown,
            (Err(()), _) => Fetched::Failed,
        };
        let model = match fetched {
            Fetched::Entry { .. } => model(body).unwrap_or_default(),
            _ => String::new(),
        };
        let tags = Tags {
            model: &model,
            tokenizer: None,
        };
        let own_body = self.accept.body.then_some(&**body);
        let found = source(fetched, tags, own_body, MAX_IDS);
        let name = found.name();
        match found {
            Source::Key(ids) => Given::new(name, ids.to_vec()),
            Source::Body(ids) => Given::new(name, ids),
            Source::Text(reason) => self.tokenize(endpoint, body, reason.reason()).await,
        }
    }

    async fn fetch(&self, key: KeyHeader) -> Result<Option<Entry>, ()> {
        let KeyHeader::Key(key) = key else {
            return Ok(None);
        };
        let cache = self.cache.as_ref().ok_or(())?;
        let entry = cache.fetch(key, self.fetch_timeout).await;
        entry.map_err(|error| tracing::debug!(%error, "no ids of a key"))
    }

    async fn tokenize(&self, endpoint: Endpoint, body: &Bytes, reason: &'static str) -> Given {
        let mut given = Given {
            source: "text",
            reason: Some(reason),
            ids: None,
        };
        if let Some(tokenizer) = &self.tokenizer {
            given.ids = render(tokenizer, endpoint, body).await;
            if given.ids.is_none() {
                given.reason = Some("tokenize-failed");
            }
        }
        given
    }
}

async fn render(tokenizer: &Hop, endpoint: Endpoint, body: &Bytes) -> Option<Vec<u32>> {
    let path = match endpoint {
        Endpoint::Chat => "/v1/chat/completions/render",
        _ => "/v1/completions/render",
    };
    let json = HeaderValue::from_static("application/json");
    let call = Call {
        method: Method::POST,
        path: PathAndQuery::from_static(path),
        headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
        body: vec![body.clone()],
    };
    let reply = tokenizer.call(call, TOKENIZE).await;
    let reply = reply.map_err(|error| tracing::debug!(%error, "no ids of a text"));
    let reply = reply.ok().filter(|reply| reply.status.is_success())?;
    let ids = match serde_json::from_slice(&reply.body).ok()? {
        Rendered::One(prompt) => prompt.token_ids,
        Rendered::Several(prompts) => {
            let [prompt] = <[RenderedPrompt; 1]>::try_from(prompts).ok()?;
            prompt.token_ids
        }
    };
    Some(ids).filter(|ids| !ids.is_empty())
}

// === impl Given ===

impl Given {
    fn new(source: &'static str, ids: Vec<u32>) -> Self {
        Self {
            source,
            reason: None,
            ids: Some(ids),
        }
    }
}
