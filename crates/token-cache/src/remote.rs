//! A cache behind the HTTP interface.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
    uri::PathAndQuery,
};
use http_call::{BaseUrl, Call, Hop, Reply, Settings, Trust};
use processor_api::{TOKENS_COUNT_HEADER, TOKENS_MODEL_HEADER, TOKENS_TOKENIZER_HEADER, TokenKey};

use crate::{
    body::BodyForm,
    entry::{Entry, MAX_BYTES},
    error::StoreError,
    memory::Put,
    service::TOKENS_PATH,
};

/// Operations at once: as those of Redis.
const MAX_CALLS: usize = 1024;

/// Asks what serves the interface.
#[derive(Debug)]
pub(crate) struct Remote {
    hop: Hop,
    token: Arc<BearerToken>,
}

/// The token that the cache wants, if it wants one.
#[derive(Default)]
pub(crate) struct BearerToken(ArcSwapOption<HeaderValue>);

// === impl Remote ===

impl Remote {
    pub(crate) fn new(base: BaseUrl, tls: Option<Trust>, token: Arc<BearerToken>) -> Self {
        let settings = Settings {
            max_in_flight: MAX_CALLS,
            max_reply: MAX_BYTES,
            tls,
            ..Settings::default()
        };
        Self {
            hop: Hop::new(base, settings),
            token,
        }
    }

    pub(crate) async fn put(
        &self,
        key: &TokenKey,
        entry: &Entry,
        within: Duration,
    ) -> Result<Put, StoreError> {
        let headers = headers_of(entry, BodyForm::Binary).ok_or(StoreError::TooLarge)?;
        let body = BodyForm::Binary.write(&entry.ids);
        let reply = self
            .call(Method::PUT, key, headers, vec![body.into()], within)
            .await?;
        match reply.status {
            StatusCode::NO_CONTENT => Ok(Put::Stored),
            StatusCode::CONFLICT => Err(StoreError::Conflict),
            StatusCode::PAYLOAD_TOO_LARGE => Err(StoreError::TooLarge),
            _ => Err(refused(&reply)),
        }
    }

    pub(crate) async fn get(
        &self,
        key: &TokenKey,
        within: Duration,
    ) -> Result<Option<Entry>, StoreError> {
        let mut headers = HeaderMap::new();
        let binary = BodyForm::Binary.content_type();
        headers.insert(ACCEPT, HeaderValue::from_static(binary));
        let reply = self
            .call(Method::GET, key, headers, Vec::new(), within)
            .await?;
        match reply.status {
            StatusCode::OK => read(&reply).map(Some).ok_or(StoreError::Damaged),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refused(&reply)),
        }
    }

    pub(crate) async fn delete(&self, key: &TokenKey, within: Duration) -> Result<(), StoreError> {
        let reply = self
            .call(Method::DELETE, key, HeaderMap::new(), Vec::new(), within)
            .await?;
        match reply.status {
            StatusCode::NO_CONTENT => Ok(()),
            _ => Err(refused(&reply)),
        }
    }

    async fn call(
        &self,
        method: Method,
        key: &TokenKey,
        mut headers: HeaderMap,
        body: Vec<Bytes>,
        within: Duration,
    ) -> Result<Reply, StoreError> {
        if let Some(token) = &*self.token.0.load() {
            headers.insert(AUTHORIZATION, HeaderValue::clone(token));
        }
        let path = format!("{TOKENS_PATH}{}", key.as_str());
        let path = PathAndQuery::try_from(path)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let call = Call {
            method,
            path,
            headers,
            body,
        };
        Ok(self.hop.call(call, within).await?)
    }
}

/// The tags and the form; none where a name cannot stand in a header.
pub(crate) fn headers_of(entry: &Entry, form: BodyForm) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(8);
    let form = HeaderValue::from_static(form.content_type());
    headers.insert(CONTENT_TYPE, form);
    let model = HeaderValue::from_bytes(entry.model.as_bytes()).ok()?;
    headers.insert(HeaderName::from_static(TOKENS_MODEL_HEADER), model);
    let tokenizer = HeaderValue::from_bytes(entry.tokenizer.as_bytes()).ok()?;
    headers.insert(HeaderName::from_static(TOKENS_TOKENIZER_HEADER), tokenizer);
    let count = HeaderValue::from(entry.ids.len());
    headers.insert(HeaderName::from_static(TOKENS_COUNT_HEADER), count);
    Some(headers)
}

/// A tag, if there is one in UTF-8.
pub(crate) fn tag(headers: &HeaderMap, name: &str) -> Option<Arc<str>> {
    let value = headers.get(name)?;
    str::from_utf8(value.as_bytes()).ok().map(Arc::from)
}

/// What the header says of the number of ids.
///
/// # Errors
/// When it is there and no number.
pub(crate) fn count(headers: &HeaderMap) -> Result<Option<usize>, ()> {
    let value = headers.get(TOKENS_COUNT_HEADER);
    let parse = |value: &HeaderValue| value.to_str().ok()?.trim().parse().ok();
    value.map(|value| parse(value).ok_or(())).transpose()
}

fn read(reply: &Reply) -> Option<Entry> {
    let form = reply.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let form = BodyForm::of_content_type(form).ok()?;
    let ids = form.read(&reply.body, count(&reply.headers).ok()?).ok()?;
    Some(Entry {
        model: tag(&reply.headers, TOKENS_MODEL_HEADER)?,
        tokenizer: tag(&reply.headers, TOKENS_TOKENIZER_HEADER)?,
        ids: ids.into(),
    })
}

fn refused(reply: &Reply) -> StoreError {
    let status = reply.status;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        StoreError::Unavailable(format!("it answers with status {}", status.as_u16()))
    } else {
        StoreError::Refused(status.as_u16())
    }
}

// === impl BearerToken ===

impl BearerToken {
    /// Operations from now on have the first token of a file: one that lists those of callers may have several lines.
    ///
    /// # Errors
    /// Says why it cannot stand in a header, without it.
    pub(crate) fn set(&self, file: &[u8]) -> Result<(), &'static str> {
        let mut lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let token = lines.find(|line| !line.is_empty());
        let token = token.ok_or("there is no token in it")?;
        let value = [b"Bearer ", token].concat();
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| "the token has other characters than visible ASCII")?;
        value.set_sensitive(true);
        self.0.store(Some(Arc::new(value)));
        Ok(())
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BearerToken").finish_non_exhaustive()
    }
}
