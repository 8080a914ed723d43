//! What logs never have: prompts, ids, keys.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use processor::TokenTransfer;
use tracing::subscriber::set_global_default;
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    router::{Answer, StubRouter},
    served::{Options, Served, ask, chat},
};

/// It is in no other test, and these are its bytes.
const PROMPT: &str = "plover-egg";
const IDS: &str = "112, 108, 111, 118";

/// All that is logged in this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

// === impl Lines ===

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn no_prompt_id_or_key_is_logged_at_any_level() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(lines.clone())
        .finish();
    set_global_default(subscriber).unwrap();
    let router = StubRouter::start(Answer::of(500, "{}")).await;
    let served = Served::start(Options {
        router: Some(router.address),
        mode: TokenTransfer::Cache,
        ..Options::default()
    })
    .await;
    let reply = served.process(&chat("tiny", true, PROMPT)).await;
    let key = reply["token_key"].as_str().unwrap();
    let path = format!("/v1/tokens/{key}");
    for path in [&*path, "/v1/tokens/tk_7777777777777777777777777z"] {
        ask(&served.tokens, "GET", path, &[], "").await;
    }
    for model in ["strict", "short", PROMPT] {
        served.post("/process", chat(model, false, PROMPT)).await;
    }
    for body in [
        format!("{{\"{PROMPT}"),
        format!(r#"{{"model":"tiny","prompt":{{"{PROMPT}":1}}}}"#),
    ] {
        served.post("/v1/completions/render", body).await;
    }
    let logged = String::from_utf8(lines.0.lock().clone()).unwrap();
    assert!(logged.contains("the Router chooses no worker"), "{logged}");
    assert!(logged.contains("template-error"), "{logged}");
    for secret in [PROMPT, IDS, key, "7777777777"] {
        assert!(!logged.contains(secret), "{secret} is in {logged}");
    }
}
