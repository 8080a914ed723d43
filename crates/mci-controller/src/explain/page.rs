//! The admin port's handler: sends questions to the world's loop, with a bound and a deadline.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::Explanation;
use crate::name::Key;

/// A request for an explanation. The loop answers it between two turns and never waits.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) key: Key,
    /// None: nothing is known of the key.
    pub(crate) answer: oneshot::Sender<Option<Explanation>>,
}

/// Where questions go.
type Questions = mpsc::Sender<Question>;

/// Timeout of an answer. The loop makes five turns a second at least, unless it is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn router(questions: mpsc::Sender<Question>) -> Router {
    Router::new()
        .route("/debug/explain/{namespace}/{name}", get(explain))
        .with_state(questions)
}

async fn explain(
    State(questions): State<Questions>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    // an invalid name is not echoed
    let Some(key) = Key::checked(&namespace, &name) else {
        return (StatusCode::NOT_FOUND, "no such pool or import\n").into_response();
    };
    let (answer, answered) = oneshot::channel();
    if questions.try_send(Question { key, answer }).is_err() {
        return busy();
    }
    match timeout(ANSWER_TIMEOUT, answered).await {
        Ok(Ok(Some(explanation))) => Json(explanation).into_response(),
        Ok(Ok(None)) => (StatusCode::NOT_FOUND, "no such pool or import\n").into_response(),
        Ok(Err(_)) | Err(_) => busy(),
    }
}

fn busy() -> Response {
    let text = "the controller is busy or ending: try again\n";
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(questions: &Questions, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router(questions.clone())
            .oneshot(request)
            .await
            .expect("infallible");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body");
        (
            status,
            String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_name_is_not_asked_for_nor_repeated() {
        let (questions, mut asked) = mpsc::channel(1);
        for path in [
            "/debug/explain/ml/..%2Fx",
            "/debug/explain/ML/llm",
            "/debug/explain/ml/%3Cscript%3E",
        ] {
            let (status, body) = ask(&questions, path).await;
            assert_eq!(
                (status.as_u16(), body.as_str()),
                (404, "no such pool or import\n")
            );
        }
        assert!(asked.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_answer_is_waited_for_so_long() {
        let (questions, mut asked) = mpsc::channel(1);
        let started = tokio::time::Instant::now();
        let (status, _) = ask(&questions, "/debug/explain/ml/llm").await;
        assert_eq!(status, 503);
        assert_eq!(started.elapsed(), ANSWER_TIMEOUT);
        // the next finds no room: refused at once
        let started = tokio::time::Instant::now();
        assert_eq!(ask(&questions, "/debug/explain/ml/llm").await.0, 503);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(
            asked.recv().await.expect("asked").key,
            Key::new("ml", "llm")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_shown_as_json() {
        let (questions, mut asked) = mpsc::channel::<Question>(1);
        let answering = async {
            let question = asked.recv().await.expect("asked");
            let explanation = Explanation {
                key: question.key.to_string(),
                exporters: Vec::new(),
                importers: Vec::new(),
                trace: Vec::new(),
            };
            question.answer.send(Some(explanation)).expect("waited for");
            let question = asked.recv().await.expect("asked");
            question.answer.send(None).expect("waited for");
        };
        let asking = async {
            let known = ask(&questions, "/debug/explain/ml/llm").await;
            let unknown = ask(&questions, "/debug/explain/ml/other").await;
            (known, unknown)
        };
        let ((known, unknown), ()) = tokio::join!(asking, answering);
        assert_eq!(known.0, 200);
        let empty = r#"{"key":"ml/llm","exporters":[],"importers":[],"trace":[]}"#;
        assert_eq!(known.1, empty);
        assert_eq!(unknown.0, 404);
    }
}
