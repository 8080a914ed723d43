//! What a client gets when the endpoint picker dies under its request.

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;
use testbed::{Answer, eventually};
use tokio::time::timeout;

use crate::client::{Ask, CHAT, LIMIT, Payload};
use crate::stand::{SOON, Stand, Way, chat, counts, read_events, text_of};

const RUNNING: &str = "llm_d_epp_request_running{model_name=\"llama\"";
const OPEN: &str = "epp_streams{phase=\"request\"}";

pub(crate) async fn without_an_endpoint_picker_the_failure_mode_decides(
    stand: &Stand,
) -> Result<()> {
    stand.standalone.kill_epp().await;
    let ask = || Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
    let closed = stand.client.send(Way::FullDuplex, ask()).await;
    let open = eventually("Envoy knows that there is none", SOON, async || {
        let answer = stand.client.send(Way::FailOpen, ask()).await;
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        match text_of(&answer).as_deref() {
            Some("hell") => Ok(()),
            _ => Err(format!("{}: {}", answer.status, answer.text())),
        }
    });
    let open = open.await;
    stand.standalone.restart_epp().await?;
    stand.settle().await?;
    let closed = closed?;
    is_unavailable(Way::FullDuplex, &closed)?;
    Ok(open?)
}

pub(crate) async fn an_endpoint_picker_that_dies_before_its_pick_costs_that_request_alone(
    stand: &Stand,
) -> Result<()> {
    for way in [Way::FullDuplex, Way::FailOpen] {
        // half of a body is there, and no pick
        let (half, rest) = {
            let body = chat("hello", 1, false);
            (body.slice(..20), body.slice(20..))
        };
        let (parts, body) = Payload::fed();
        parts.send(half).await?;
        let ask = Ask::post(CHAT, body);
        let asked = stand.client.send(way, ask);
        let killed = async {
            stand.until(OPEN, |open| open >= 1.0).await?;
            stand.standalone.kill_epp().await;
            // the rest may come to a request that is over
            let _over = parts.send(rest).await;
            drop(parts);
            anyhow::Ok(())
        };
        let (answer, killed) = tokio::join!(asked, killed);
        stand.standalone.restart_epp().await?;
        stand.settle().await?;
        killed?;
        is_unavailable(way, &answer?)?;
    }
    Ok(())
}

pub(crate) async fn an_endpoint_picker_that_dies_after_its_pick_costs_that_request_alone(
    stand: &Stand,
) -> Result<()> {
    for way in [Way::FullDuplex, Way::FailOpen] {
        stand.change_servers(json!({"hang": true})).await?;
        let ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
        let asked = stand.client.send(way, ask);
        let killed = async {
            stand.until(RUNNING, counts(1)).await?;
            stand.standalone.kill_epp().await;
            anyhow::Ok(())
        };
        let (answer, killed) = tokio::join!(asked, killed);
        stand.change_servers(json!({"hang": null})).await?;
        stand.standalone.restart_epp().await?;
        stand.settle().await?;
        killed?;
        // its body went through the endpoint picker, so the mode that fails open is too late
        is_unavailable(way, &answer?)?;
    }
    Ok(())
}

/// The client sees that its answer is not complete, and what it has of it is right.
pub(crate) async fn events_are_cut_by_the_death_of_the_endpoint_picker(
    stand: &Stand,
) -> Result<()> {
    let text = "one and two and three and four. ".repeat(60);
    stand
        .change_servers(json!({"latency": {"inter_token_latency": "10ms"}}))
        .await?;
    for way in [Way::FullDuplex, Way::FailOpen, Way::Bodiless] {
        let ask = Ask::post(CHAT, Payload::Whole(chat(&text, 400, true)));
        let mut body = stand.client.open(way, ask).await?.into_body();
        let mut received = String::new();
        let cut = loop {
            match timeout(LIMIT, body.frame()).await? {
                None => break None,
                Some(Err(error)) => break Some(error),
                Some(Ok(frame)) => {
                    let data = frame.data_ref().map_or(&[][..], Bytes::as_ref);
                    received.push_str(std::str::from_utf8(data)?);
                }
            }
            if received.len() > 2000 {
                stand.standalone.kill_epp().await;
            }
        };
        stand.standalone.restart_epp().await?;
        stand.settle().await?;
        ensure!(cut.is_some(), "{way:?}: complete, {} bytes", received.len());
        let echo = read_events(&received);
        ensure!(
            text.starts_with(&echo) && !echo.is_empty(),
            "{way:?}: {echo}"
        );
    }
    stand.change_servers(json!({"latency": null})).await
}

/// Envoy's own answer, where there was no pick.
fn is_unavailable(way: Way, answer: &Answer) -> Result<()> {
    let text = answer.text();
    ensure!(answer.status == 503, "{way:?}: {}: {text}", answer.status);
    Ok(())
}
