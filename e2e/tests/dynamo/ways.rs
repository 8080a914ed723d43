//! Who chooses, and how ids reach the worker.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{HeaderMap, HeaderName, HeaderValue};
use testbed::{Answer, Requests, eventually};
use xxhash_rust::xxh64::xxh64;

use crate::stand::{Stand, chat, header, prompt};

const SOURCE: &str = "x-inference-token-source";
const CHECKSUM: &str = "x-inference-token-checksum";
/// A KV event is there some milliseconds after its prefill.
const SOON: Duration = Duration::from_secs(20);

/// D20.
pub(crate) async fn ids_by_key_leave_the_body_as_it_is(stand: &Stand) -> Result<()> {
    let body = chat(&prompt("a key", 60), Some(true));
    let answer = stand.send(&body).await?;
    ensure!(header(&answer, SOURCE) == "key", "{:?}", answer.headers);
    let text = without_route(&body, true)?;
    received(stand, &answer, &text).await?;
    has_ids(stand, &answer, &text).await
}

/// D21.
pub(crate) async fn ids_in_the_body_stand_behind_the_text(stand: &Stand) -> Result<()> {
    let body = chat(&prompt("a body", 2), Some(true));
    let answer = stand.send(&body).await?;
    ensure!(header(&answer, SOURCE) == "body", "{:?}", answer.headers);
    let text = without_route(&body, true)?;
    received(stand, &answer, &with_ids(stand, &text).await?).await?;
    has_ids(stand, &answer, &text).await
}

/// D23, D24.
pub(crate) async fn without_route_the_router_is_not_asked(stand: &Stand) -> Result<()> {
    for (lines, source) in [(60, "key"), (2, "body")] {
        let body = chat(&prompt(&format!("nobody, by {source}"), lines), Some(false));
        let before = decisions(stand, "").await?;
        let answer = stand.send(&body).await?;
        ensure!(header(&answer, SOURCE) == source, "{:?}", answer.headers);
        let after = decisions(stand, "").await?;
        ensure!(after == before, "the Router was asked: {before} to {after}");
        has_ids(stand, &answer, &without_route(&body, false)?).await?;
    }
    Ok(())
}

/// D15, H1: nobody said anything, so the switch decides.
pub(crate) async fn the_switch_asks_for_a_route_where_the_client_does_not(
    stand: &Stand,
) -> Result<()> {
    let before = decisions(stand, "").await?;
    let body = chat(&prompt("a switch", 2), None);
    let answer = stand.send(&body).await?;
    let after = decisions(stand, "").await?;
    ensure!(after == before + 1, "decisions: {before} to {after}");
    received(stand, &answer, &with_ids(stand, &body).await?).await
}

pub(crate) async fn a_repeated_prompt_goes_where_kv_events_say_it_is(stand: &Stand) -> Result<()> {
    let story = prompt("a lighthouse keeper", 30);
    let first = stand.send(&chat(&story, Some(true))).await?;
    let before = decisions(stand, "exact").await?;
    let mut nth = 0;
    eventually("a choice by KV events", SOON, async || {
        nth += 1;
        let body = chat(&format!("{story} End {nth}."), Some(true));
        let answer = stand.send(&body).await;
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let exact = decisions(stand, "exact").await;
        let exact = exact.map_err(|error| format!("{error:#}"))?;
        let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
        let is_there = answer.pod() == first.pod() && cached.as_u64().is_some_and(|it| it > 0);
        if is_there && exact > before {
            Ok(())
        } else {
            Err(format!(
                "{:?} answered with {cached} cached, exact decisions {before} to {exact}",
                answer.pod()
            ))
        }
    })
    .await?;
    Ok(())
}

/// Each server has two ranks behind its port, which without the header take turns: only the rank that has the prompt finds
/// it cached, each time.
pub(crate) async fn the_rank_that_has_a_prompt_cached_is_named_to_its_server(
    stand: &Stand,
) -> Result<()> {
    let story = prompt("a harbour master", 30);
    let body = |nth: u32| chat(&format!("{story} End {nth}."), Some(true));
    let mut rank = None;
    for nth in 0..6 {
        let answer = stand.send(&body(nth)).await?;
        let seen = stand.received(&answer).await?;
        let named = &seen["headers"]["x-data-parallel-rank"];
        ensure!(named == "0" || named == "1", "no rank is named: {seen}");
        let first = rank.get_or_insert((answer.pod().map(str::to_owned), named.clone()));
        let here = (answer.pod().map(str::to_owned), named.clone());
        ensure!(*first == here, "{first:?} has it, {here:?} was chosen");
        let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
        let is_cached = cached.as_u64().is_some_and(|it| it > 0);
        ensure!(is_cached == (nth > 0), "prompt {nth} has {cached} cached");
    }
    Ok(())
}

/// H14: others' prompts cannot be read by their ids or keys, and the text counts.
pub(crate) async fn ids_and_keys_of_clients_reach_no_worker(stand: &Stand) -> Result<()> {
    let text = chat(&prompt("a guest", 2), None);
    let open = text.strip_suffix('}').context("an object")?;
    let body = format!(r#"{open},"token_ids":[1,2,3],"nvext":{{"token_data":[4,5]}}}}"#);
    let key = HeaderValue::from_static("tk_aaaaaaaaaaaaaaaaaaaaaaaaaa");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-req-tokens-key"), key)]);
    let answer = stand.send_with(headers, &body).await?;
    ensure!(header(&answer, SOURCE) == "body", "{:?}", answer.headers);
    has_ids(stand, &answer, &text).await
}

/// The worker got this body, byte for byte.
async fn received(stand: &Stand, answer: &Answer, body: &str) -> Result<()> {
    let seen = stand.received(answer).await?;
    let hash = format!("{:016x}", xxh64(body.as_bytes(), 0));
    ensure!(
        seen["body_hash"] == hash,
        "the worker got another body than {body}: {seen}"
    );
    Ok(())
}

/// The worker computed with the ids that a Processor makes of this body.
async fn has_ids(stand: &Stand, answer: &Answer, body: &str) -> Result<()> {
    let ids = stand.rendered(body).await?;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let checksum = format!("{:016x}", xxh64(&bytes, 0));
    ensure!(
        header(answer, CHECKSUM) == checksum,
        "{:?}, not {checksum}",
        answer.headers
    );
    Ok(())
}

fn without_route(body: &str, route: bool) -> Result<String> {
    let member = format!(r#","route":{route}"#);
    ensure!(body.contains(&member), "{body}");
    Ok(body.replace(&member, ""))
}

async fn with_ids(stand: &Stand, body: &str) -> Result<String> {
    let ids: Vec<String> = stand
        .rendered(body)
        .await?
        .iter()
        .map(u32::to_string)
        .collect();
    let open = body.strip_suffix('}').context("an object")?;
    Ok(format!(r#"{open},"token_ids":[{}]}}"#, ids.join(",")))
}

/// The Router's decisions, of this source if one is named.
async fn decisions(stand: &Stand, source: &str) -> Result<u64> {
    let router = Requests::new(stand.external()?.router_admin_url());
    let page = router.get("/metrics").await?.text();
    let lines = page
        .lines()
        .filter(|line| line.starts_with("router_decisions_total{") && line.contains(source));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    Ok(values.sum())
}
