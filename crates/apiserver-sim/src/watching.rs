//! Watches: a stream of changes from a resource version on.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    kinds::Kind,
    refusal::Refusal,
    selector::Selector,
    server::Shared,
    store::{Change, Stored},
};

/// One watch.
pub(crate) struct Watching {
    pub(crate) shared: Arc<Shared>,
    pub(crate) kind: &'static Kind,
    pub(crate) selector: Selector,
    pub(crate) partial: bool,
    pub(crate) bookmarks: bool,
    pub(crate) version: u64,
    pub(crate) deadline: Instant,
    pub(crate) bell: watch::Receiver<u64>,
    pub(crate) orders: watch::Receiver<Orders>,
    /// Orders that were given before it began.
    pub(crate) seen: u64,
    pub(crate) stage: Stage,
}

/// What is done to open watches: by kind, how many orders there were, and the last of them.
pub(crate) type Orders = BTreeMap<String, (u64, Ending)>;

/// How far a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// It ends as a connection that breaks.
    Breaking,
    Over,
}

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As at its timeout.
    Quiet,
    /// Within an event.
    InJson,
    /// With an ERROR event, 410.
    Expired,
}

/// Bytes of an event beside its type and its object.
const EVENT_FRAME: usize = r#"{"type":"","object":}"#.len() + 1;
/// Quiet watches are told how far they are this often, as Kubernetes does.
const BOOKMARK: Duration = Duration::from_mins(1);

// === impl Watching ===

impl Watching {
    pub(crate) fn stream(self) -> impl Stream<Item = Result<Bytes, io::Error>> + Send {
        stream::unfold(self, |mut watching| async move {
            let chunk = watching.next().await?;
            Some((chunk, watching))
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, io::Error>> {
        match self.stage {
            Stage::Open => {}
            Stage::Over => return None,
            Stage::Breaking => {
                self.stage = Stage::Over;
                return Some(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        let bookmark_at = Instant::now() + BOOKMARK;
        loop {
            self.bell.borrow_and_update();
            match self.changes() {
                Some(chunk) if !chunk.is_empty() => return Some(Ok(chunk)),
                Some(_) => {}
                None => return self.end(Ending::Expired),
            }
            // what happened before it is told: a CRD that goes takes its objects first
            let order = self
                .orders
                .borrow_and_update()
                .get(&self.kind.crd_name())
                .copied();
            if let Some((number, ending)) = order
                && number > self.seen
            {
                return self.end(ending);
            }
            // an error means that the server is gone
            tokio::select! {
                changed = self.bell.changed() => changed.ok()?,
                changed = self.orders.changed() => changed.ok()?,
                () = sleep_until(self.deadline) => {
                    self.stage = Stage::Over;
                    return self.bookmark().map(Ok);
                }
                () = sleep_until(bookmark_at), if self.bookmarks => {
                    return self.bookmark().map(Ok);
                }
            }
        }
    }

    /// The last word, if there is one.
    fn end(&mut self, ending: Ending) -> Option<Result<Bytes, io::Error>> {
        self.stage = Stage::Over;
        match ending {
            Ending::Quiet => None,
            Ending::InJson => {
                self.stage = Stage::Breaking;
                Some(Ok(Bytes::from_static(
                    br#"{"type":"MODIFIED","object":{"apiVer"#,
                )))
            }
            Ending::Expired => {
                let refusal = Refusal::new(410, "Expired", "too old resource version");
                let mut chunk = BytesMut::new();
                event(&mut chunk, "ERROR", &refusal.body());
                Some(Ok(chunk.freeze()))
            }
        }
    }

    /// Changes that this watch has not told; none where they are no longer known.
    fn changes(&mut self) -> Option<Bytes> {
        let store = self.shared.store.lock();
        let changes = store.since(self.kind, self.version)?;
        let mut chunk = BytesMut::new();
        for change in changes {
            self.version = change.version;
            if let Some((type_, object)) = self.told(&change) {
                let shown = store.shown(self.kind, object, self.partial);
                event(&mut chunk, type_, &shown);
            }
        }
        Some(chunk.freeze())
    }

    /// An object that begins or ceases to match is added or deleted, as seen from here.
    fn told<'a>(&self, change: &'a Change) -> Option<(&'static str, &'a Stored)> {
        let now = !change.deleted && self.selector.matches(&change.object);
        let before = change.before.as_ref();
        let before = before.is_some_and(|before| self.selector.matches(before));
        match (before, now) {
            (false, false) => None,
            (false, true) => Some(("ADDED", &change.object)),
            (true, true) => Some(("MODIFIED", &change.object)),
            (true, false) => Some(("DELETED", &change.object)),
        }
    }

    fn bookmark(&self) -> Option<Bytes> {
        if !self.bookmarks {
            return None;
        }
        let object = format!(
            r#"{{"apiVersion":"{}","kind":"{}","metadata":{{"resourceVersion":"{}"}}}}"#,
            self.kind.api_version(),
            self.kind.kind,
            self.version
        );
        let mut chunk = BytesMut::new();
        event(&mut chunk, "BOOKMARK", object.as_bytes());
        Some(chunk.freeze())
    }
}

fn event(chunk: &mut BytesMut, type_: &str, object: &[u8]) {
    chunk.reserve(EVENT_FRAME + type_.len() + object.len());
    chunk.put_slice(br#"{"type":""#);
    chunk.put_slice(type_.as_bytes());
    chunk.put_slice(br#"","object":"#);
    chunk.put_slice(object);
    chunk.put_slice(b"}\n");
}
