//! A Router that answers as it is told, and remembers what it was asked.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::to_bytes, extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// What it is to answer.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: &'static str,
    pub(crate) takes: Duration,
}

/// What it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// It answers until it is dropped.
pub(crate) struct StubRouter {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
    _tasks: JoinSet<()>,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn of(status: u16, body: &'static str) -> Self {
        Self {
            status,
            body,
            takes: Duration::ZERO,
        }
    }
}

// === impl StubRouter ===

impl StubRouter {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let remembered = Arc::clone(&asked);
        let answering = move |request: Request| {
            let (answer, remembered) = (answer.clone(), Arc::clone(&remembered));
            async move {
                let (head, body) = request.into_parts();
                let asked = Asked {
                    line: format!("{} {}", head.method, head.uri),
                    headers: head.headers,
                    body: to_bytes(body, 64 << 20).await.unwrap(),
                };
                remembered.lock().push(asked);
                sleep(answer.takes).await;
                let mut response = Response::new(answer.body.to_owned());
                *response.status_mut() = StatusCode::from_u16(answer.status).unwrap();
                response
            }
        };
        let mut tasks = JoinSet::new();
        let serving = axum::serve(listener, Router::new().fallback(answering));
        tasks.spawn(async { serving.await.unwrap() });
        Self {
            address,
            asked,
            _tasks: tasks,
        }
    }

    pub(crate) fn last(&self) -> Asked {
        self.asked.lock().pop().expect("a call")
    }
}
