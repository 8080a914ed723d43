//! Who chooses, and how ids reach the worker.

use anyhow::{Result, ensure};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::stand::{Stand, chat, header, prompt};

const SOURCE: &str = "x-inference-token-source";

pub(crate) async fn ids_by_key_leave_the_body_and_name_the_key(stand: &Stand) -> Result<()> {
    let text = prompt("a key", 60);
    let answer = stand.send(&chat(&text, Some(true))).await?;
    ensure!(header(&answer, SOURCE) == "key", "{:?}", answer.headers);
    Ok(())
}
