//! The admin port's handler of explanations.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    name::Key,
    questions::{Busy, Questions},
};

pub(crate) fn router(questions: Questions) -> Router {
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
    match questions.explain(key).await {
        Ok(Some(explanation)) => Json(explanation).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, "no such pool or import\n").into_response(),
        Err(Busy) => (StatusCode::SERVICE_UNAVAILABLE, format!("{Busy}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;
    use crate::{explain::Explanation, questions::Question};

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
        let (questions, mut asked) = Questions::new();
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
    async fn an_answer_is_shown_as_json() {
        let (questions, mut asked) = Questions::new();
        let answering = async {
            while let Some(Question { key, answer }) = asked.recv().await {
                let explanation = (*key.name == *"llm").then(|| Explanation {
                    key: key.to_string(),
                    exporters: Vec::new(),
                    importers: Vec::new(),
                    trace: Vec::new(),
                });
                answer.send(explanation).expect("waited for");
            }
        };
        let asking = async move {
            let known = ask(&questions, "/debug/explain/ml/llm").await;
            let unknown = ask(&questions, "/debug/explain/ml/other").await;
            drop(questions);
            (known, unknown)
        };
        let ((known, unknown), ()) = tokio::join!(asking, answering);
        assert_eq!(known.0, 200);
        let empty = r#"{"key":"ml/llm","exporters":[],"importers":[],"trace":[]}"#;
        assert_eq!(known.1, empty);
        assert_eq!(unknown.0, 404);
    }
}
