//! `GET /`: asks for what the page shows, and sends it under a policy that lets nothing else run.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::{Query, State},
    http::{HeaderName, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use tokio::{sync::Semaphore, time::timeout};

use super::{Directory, DocsUrl, Filter, html};
use crate::{
    overview::Overview,
    questions::{ANSWER_TIMEOUT, Busy, Questions},
    text::clipped,
};

/// What the handler needs.
#[derive(Clone)]
struct Page {
    overview: Arc<ArcSwap<Overview>>,
    directory: Directory,
    questions: Questions,
    docs: Option<DocsUrl>,
    /// Pages that are being made.
    turns: Arc<Semaphore>,
}

/// As in the form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    pool: String,
    cluster: String,
    only: String,
    page: String,
}

/// Pages made at once. With [`AT_ONCE`] they ask half of the questions that may wait, so that explanations find room.
const PAGES: usize = 2;
/// Rows of a page that are asked for at once.
const AT_ONCE: usize = 2;
/// How long rows are waited for: less than the whole answer may take, so that those that came are shown.
const ROWS_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest filter, in characters: that of a namespace, a slash and a name.
const MAX_FILTER: usize = 63 + 1 + 253;

pub(crate) fn router(
    overview: Arc<ArcSwap<Overview>>,
    directory: Directory,
    questions: Questions,
    docs: Option<DocsUrl>,
) -> Router {
    Router::new().route("/", get(page)).with_state(Page {
        overview,
        directory,
        questions,
        docs,
        turns: Arc::new(Semaphore::new(PAGES)),
    })
}

async fn page(State(page): State<Page>, Query(asked): Query<Asked>) -> Response {
    let made = timeout(ANSWER_TIMEOUT, page.make(&asked)).await;
    match made.unwrap_or(Err(Busy)) {
        Ok(response) => response,
        Err(Busy) => (StatusCode::SERVICE_UNAVAILABLE, format!("{Busy}\n")).into_response(),
    }
}

// === impl Page ===

impl Page {
    async fn make(&self, asked: &Asked) -> Result<Response, Busy> {
        let _turn = self.turns.acquire().await.map_err(|_| Busy)?;
        let filter = Filter {
            text: clipped(asked.pool.trim(), MAX_FILTER).to_owned(),
            only_holes: asked.only == "holes",
            page: asked.page.parse().unwrap_or(1),
        };
        let listing = self.directory.list(&filter).await;
        let mut rows = Vec::new();
        let mut answers = stream::iter(listing.keys.iter().cloned())
            .map(|key| self.questions.explain(key))
            .buffered(AT_ONCE);
        let collecting = async {
            while let Some(answer) = answers.next().await {
                rows.extend(answer?);
            }
            Ok(())
        };
        // what came is shown
        let is_whole = matches!(
            timeout(ROWS_TIMEOUT, collecting).await,
            Ok(Ok::<(), Busy>(()))
        );
        let nonce = format!("{:032x}", rand::random::<u128>());
        let overview = self.overview.load();
        let text = html::page(&html::View {
            overview: &overview,
            listing: &listing,
            rows: &rows,
            is_whole,
            filter: &filter,
            clusters: clipped(asked.cluster.trim(), MAX_FILTER),
            docs: self.docs.as_ref(),
            nonce: &nonce,
        });
        let policy = format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; form-action \
             'self'; base-uri 'none'; frame-ancestors 'none'"
        );
        let headers: [(HeaderName, &str); 4] = [
            (header::CONTENT_SECURITY_POLICY, &policy),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        Ok((headers, Html(text)).into_response())
    }
}
