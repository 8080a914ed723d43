use clap::Parser;
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    explain: ExplainArgs,
}

fn parse(arguments: &[&str]) -> Result<ExplainArgs, String> {
    let arguments = std::iter::once("explain").chain(arguments.iter().copied());
    let parsed = Cli::try_parse_from(arguments);
    parsed
        .map(|cli| cli.explain)
        .map_err(|error| error.to_string())
}

/// A controller that gives this answer once; returns the request.
async fn serve(answer: String) -> (String, tokio::task::JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut seen = Vec::new();
        let mut buffer = [0; 1024];
        while !seen.ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut buffer).await.expect("read");
            assert!(read > 0, "cut off");
            seen.extend(&buffer[..read]);
        }
        stream.write_all(answer.as_bytes()).await.expect("written");
        String::from_utf8_lossy(&seen).into_owned()
    });
    (format!("http://{address}"), tasks)
}

fn mk_answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

async fn explain(url: &str, extra: &[&str]) -> Result<String, (u8, String)> {
    let arguments: Vec<&str> = ["ml/llm", "--admin-url", url]
        .iter()
        .chain(extra)
        .copied()
        .collect();
    let mut out = Vec::new();
    match run_explain(parse(&arguments).expect("valid"), &mut out).await {
        Ok(()) => Ok(String::from_utf8(out).expect("text")),
        Err(error) => {
            let exit = error.downcast_ref::<Exit>().expect("an exit");
            Err((exit.code(), exit.to_string()))
        }
    }
}

#[rstest]
#[case::no_slash(&["llm"], "ml/llm")]
#[case::traversal(&["ml/../x"], "ml/llm")]
#[case::upper(&["ML/llm"], "ml/llm")]
#[case::tls(&["ml/llm", "--admin-url", "https://x"], "http://127.0.0.1:8080")]
#[case::path(&["ml/llm", "--admin-url", "http://x/metrics"], "http://127.0.0.1:8080")]
#[case::format(&["ml/llm", "-o", "yaml"], "yaml")]
fn bad_arguments_are_reported_with_an_example(#[case] arguments: &[&str], #[case] named: &str) {
    let error = parse(arguments).expect_err("refused");
    assert!(error.contains(named), "{error}");
}

#[rstest]
#[case("http://127.0.0.1:8080", "127.0.0.1:8080")]
#[case("http://localhost", "localhost:80")]
#[case("http://[::1]:8080/", "[::1]:8080")]
fn urls_are_read(#[case] text: &str, #[case] expected: &str) {
    let url: AdminUrl = text.parse().expect("a URL");
    assert_eq!(url.to_string(), expected);
}

#[tokio::test]
async fn an_answer_is_printed_as_text_or_json() {
    let body = r#"{"key":"ml/llm","exporters":[],"importers":[{"cluster":"b","state":"Skipped","reason":"NamespaceMissing","queued":false}],"trace":[]}"#;
    let (url, mut served) = serve(mk_answer("200 OK", body)).await;
    let text = explain(&url, &[]).await.expect("printed");
    assert!(
        text.contains("b        Skipped  NamespaceMissing"),
        "{text}"
    );
    let request = served
        .join_next()
        .await
        .expect("served")
        .expect("ends well");
    assert!(
        request.starts_with("GET /debug/explain/ml/llm HTTP/1.1"),
        "{request}"
    );
    let (url, _served) = serve(mk_answer("200 OK", body)).await;
    let json = explain(&url, &["-o", "json"]).await.expect("printed");
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["importers"][0]["reason"], "NamespaceMissing");
}

#[tokio::test]
async fn an_unknown_pool_is_reported_with_what_to_do() {
    let (url, _served) = serve(mk_answer("404 Not Found", "no such pool or import\n")).await;
    let (code, text) = explain(&url, &[]).await.expect_err("unknown");
    assert_eq!(code, 2);
    assert!(text.starts_with("ml/llm is unknown"), "{text}");
    assert!(text.contains("/debug/clusters"), "{text}");
}

#[tokio::test]
async fn an_unreachable_controller_is_reported_with_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let (code, text) = explain(&url, &[]).await.expect_err("refused");
    assert_eq!(code, 1);
    assert!(
        text.contains(&url) && text.contains("port-forward"),
        "{text}"
    );
}

#[tokio::test]
async fn other_answers_are_failures() {
    let (url, _served) = serve(mk_answer("503 Service Unavailable", "busy\n")).await;
    let (code, text) = explain(&url, &[]).await.expect_err("busy");
    assert_eq!(code, 1);
    assert!(text.contains("503") && text.contains("busy"), "{text}");
    let (url, _served) = serve(mk_answer("200 OK", "<html>")).await;
    let (code, text) = explain(&url, &[]).await.expect_err("no controller");
    assert_eq!(code, 1);
    assert!(text.contains("same version"), "{text}");
    let (url, _served) = serve("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned()).await;
    assert_eq!(explain(&url, &[]).await.expect_err("cut off").0, 1);
}
