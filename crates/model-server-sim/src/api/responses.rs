//! Responses that are kept, as vLLM keeps them with `VLLM_ENABLE_RESPONSES_API_STORE`, but a bounded number of them: for
//! clients that get or cancel one, and for requests that go on from one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Path, Request, State},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{answer::Answer, error::ApiError, receive, request::brief};
use crate::{
    engine::Sequence,
    server::{ApiServer, App},
};

/// A response in the background that has not ended.
const QUEUED: &str = "queued";

/// The responses that one API server keeps.
#[derive(Debug)]
pub(crate) struct Responses {
    by: ApiServer,
    kept: Arc<Kept>,
    /// One task for each response in the background, of which the engine takes a bounded number.
    background: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Kept {
    /// Number of responses; 0 means that none is kept.
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<String, Entry>,
    /// The ids of all entries, the oldest first.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Entry {
    /// As clients get it.
    document: Value,
    /// What the model read and wrote, which a request that goes on from here repeats.
    conversation: Vec<u8>,
    /// Ends the response in the background.
    cancelled: CancellationToken,
}

/// `GET /v1/responses/{id}`
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let responses = app.responses(app.api_server(&request));
    receive(&app, request).await?;
    responses.kept.document(&id).map(Json)
}

/// `POST /v1/responses/{id}/cancel`
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let responses = app.responses(app.api_server(&request));
    receive(&app, request).await?;
    responses.kept.cancel(&id).map(Json)
}

/// Keeps the complete answer, if it is to be kept.
pub(super) fn keep(app: &App, answer: &Answer) {
    if let Some(stored) = &answer.stored
        && let Some(entry) = Entry::complete(answer)
    {
        let responses = app.responses(stored.by);
        responses.kept.insert(answer.response_id(), entry);
    }
}

// === impl Responses ===

impl Responses {
    /// None yet, and never more than `limit`.
    pub(crate) fn new(by: ApiServer, limit: usize) -> Self {
        Self {
            by,
            kept: Arc::new(Kept {
                limit,
                table: Mutex::new(Table::default()),
            }),
            background: Mutex::new(JoinSet::new()),
        }
    }

    /// Who keeps them.
    pub(super) fn by(&self) -> ApiServer {
        self.by
    }

    /// Whether any is kept.
    pub(super) fn are_kept(&self) -> bool {
        self.kept.limit > 0
    }

    /// What the model read and wrote up to the response of this id.
    ///
    /// # Errors
    /// [`ApiError`] when it is not kept.
    pub(super) fn conversation(&self, id: &str) -> Result<Vec<u8>, ApiError> {
        let table = self.kept.table.lock();
        let entry = table.by_id.get(id);
        let conversation = entry.map(|entry| entry.conversation.clone());
        conversation.ok_or_else(|| unknown(id))
    }

    /// Answers in the background: the document of now. Nothing happens to an answer that is not to be kept.
    pub(super) fn run(&self, mut answer: Answer, mut sequence: Sequence) -> Value {
        let document = answer.response(QUEUED);
        let Some(stored) = &answer.stored else {
            return document;
        };
        let id = answer.response_id();
        let cancelled = CancellationToken::new();
        let entry = Entry {
            document: document.clone(),
            conversation: stored.prompt.clone(),
            cancelled: cancelled.clone(),
        };
        self.kept.insert(id.clone(), entry);
        let kept = Arc::clone(&self.kept);
        let mut background = self.background.lock();
        while background.try_join_next().is_some() {}
        background.spawn(async move {
            let progress = tokio::select! {
                progress = sequence.finished() => progress,
                () = cancelled.cancelled() => return,
            };
            match progress {
                Ok(progress) => {
                    answer.cached_tokens = progress.cached_tokens;
                    kept.end(&id, Entry::complete(&answer));
                }
                Err(_) => kept.end(&id, None),
            }
        });
        document
    }
}

// === impl Kept ===

impl Kept {
    fn document(&self, id: &str) -> Result<Value, ApiError> {
        let table = self.table.lock();
        let entry = table.by_id.get(id);
        let document = entry.map(|entry| entry.document.clone());
        document.ok_or_else(|| unknown(id))
    }

    fn cancel(&self, id: &str) -> Result<Value, ApiError> {
        let mut table = self.table.lock();
        let entry = table.by_id.get_mut(id).ok_or_else(|| unknown(id))?;
        if entry.document["status"] != QUEUED {
            return Err(ApiError::NotInBackground);
        }
        entry.document["status"] = json!("cancelled");
        entry.cancelled.cancel();
        Ok(entry.document.clone())
    }

    /// The oldest responses make room.
    fn insert(&self, id: String, entry: Entry) {
        let mut table = self.table.lock();
        let Table { by_id, order } = &mut *table;
        order.push_back(id.clone());
        by_id.insert(id, entry);
        while order.len() > self.limit {
            let oldest = order.pop_front().and_then(|id| by_id.remove(&id));
            if let Some(oldest) = oldest {
                oldest.cancelled.cancel();
            }
        }
    }

    /// A response in the background ended; without an entry it failed.
    fn end(&self, id: &str, entry: Option<Entry>) {
        let mut table = self.table.lock();
        let known = table.by_id.get_mut(id);
        let Some(known) = known.filter(|known| known.document["status"] == QUEUED) else {
            return;
        };
        match entry {
            Some(entry) => *known = entry,
            None => known.document["status"] = json!("failed"),
        }
    }
}

// === impl Entry ===

impl Entry {
    /// The entry of a complete answer; none, if it is not to be kept.
    fn complete(answer: &Answer) -> Option<Self> {
        let stored = answer.stored.as_ref()?;
        let text = answer.output.text().as_bytes();
        Some(Self {
            document: answer.response_whole(),
            conversation: [&stored.prompt, text].concat(),
            cancelled: CancellationToken::new(),
        })
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::UnknownResponse(brief(id))
}
