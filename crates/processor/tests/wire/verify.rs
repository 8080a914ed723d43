//! `processor verify`, with a Processor as the engine, and with an engine that tokenizes alone.

use std::{fs, path::Path};

use clap::Parser;
use process::{Exit, Shutdown};
use processor::{Args, run};
use tempfile::TempDir;
use tokenization::sample;

use crate::{
    router::{Answer, StubRouter},
    served::{Options, Served},
};

const SAMPLES: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}
{"model":"tiny","prompt":"Hello"}

{"model":"tiny","prompt":["a","b"]}
"#;

async fn verify(engine: &str, samples: &str) -> anyhow::Result<()> {
    let base = TempDir::new().unwrap();
    sample::write(&base.path().join("tiny")).unwrap();
    let write = |name: &str, text: &str| {
        let path = base.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let models = write("models.yaml", "models: [{name: tiny, path: tiny}]");
    let samples = write("samples.jsonl", samples);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (models, samples) = (text(&models), text(&samples));
    let flags = [
        "processor",
        "verify",
        "--models-file",
        &models,
        "--engine",
        engine,
        "--samples",
        &samples,
    ];
    run(Args::try_parse_from(flags).unwrap(), Shutdown::manual()).await
}

#[tokio::test]
async fn samples_whose_ids_are_those_of_the_engine_are_in_order() {
    let engine = Served::start(Options::default()).await;
    let url = format!("http://{}", engine.address);
    verify(&url, SAMPLES).await.unwrap();
}

#[tokio::test]
async fn an_id_that_differs_fails() {
    let engine = StubRouter::start(Answer::of(200, r#"[{"token_ids":[72,106]}]"#)).await;
    let url = format!("http://{}", engine.address);
    let samples = r#"{"model":"tiny","prompt":"Hi"}"#;
    let error = verify(&url, samples).await.unwrap_err();
    let exit: &Exit = error.downcast_ref().expect("an exit code");
    assert_eq!(exit.code(), 1);
    assert!(exit.to_string().starts_with("1 of 1 samples"), "{exit}");
}

#[tokio::test]
async fn an_engine_that_tokenizes_nowhere_refuses_and_that_fails() {
    let engine = StubRouter::start(Answer::of(404, "{}")).await;
    let url = format!("http://{}", engine.address);
    let error = verify(&url, r#"{"model":"tiny","prompt":"Hi"}"#)
        .await
        .unwrap_err();
    assert!(error.is::<Exit>(), "{error}");
    let asked: Vec<_> = engine
        .asked
        .lock()
        .iter()
        .map(|asked| asked.line.clone())
        .collect();
    assert_eq!(asked, ["POST /v1/completions/render", "POST /tokenize"]);
}
