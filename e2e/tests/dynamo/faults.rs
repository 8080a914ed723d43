//! Parts that die or stand still under load.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::{join_all, try_join_all};
use testbed::standalone::{MODEL, Part};
use testbed::{Requests, eventually};

use crate::stand::{Stand, chat, header, prompt};

const PARTS: [Part; 3] = [Part::Processor, Part::Router, Part::Redis];
const CLIENTS: usize = 8;
const EACH: usize = 15;
/// Breakers probe each 5 s, give or take a second; on a busy machine the first probes may be late.
const RECOVERED: Duration = Duration::from_secs(30);
/// The limit until the Router has recorded or released a booking, on a busy machine too.
const BOOKED: Duration = Duration::from_secs(30);
/// Number of long answers, and the tokens of each. A token takes 50 ms, so an answer takes three minutes, longer than
/// the requests beside it.
const LONG: usize = 3;
const TOKENS: u32 = 3600;

pub(crate) async fn a_killed_part_costs_no_request_and_is_used_again(stand: &Stand) -> Result<()> {
    for part in PARTS {
        let external = stand.external()?;
        let sent = load(stand, part, async || external.kill(part).await).await;
        external.restart(part).await?;
        sent?;
        used_again(stand, part).await?;
    }
    Ok(())
}

pub(crate) async fn a_frozen_part_costs_no_request_and_is_used_again(stand: &Stand) -> Result<()> {
    for part in PARTS {
        let external = stand.external()?;
        let sent = load(stand, part, async || external.freeze(part).await).await;
        external.thaw(part).await;
        sent?;
        used_again(stand, part).await?;
    }
    Ok(())
}

/// Covers requests that are answered, and requests that are aborted. Only the endpoint picker releases their bookings:
/// the Router itself would wait for 5 minutes.
pub(crate) async fn bookings_are_gone_once_all_requests_have_ended(stand: &Stand) -> Result<()> {
    let external = stand.external()?;
    // a restart removes the bookings of earlier tests
    external.kill(Part::Router).await;
    external.restart(Part::Router).await?;
    used_again(stand, Part::Router).await?;
    booked(stand, 0).await?;
    let begin = (0..LONG).map(async |nth| {
        let text = prompt(&format!("the long answer {nth}"), 2);
        let mut stream = stand.requests.chat_stream(MODEL, &text, TOKENS).await?;
        stream.next_event().await.map_err(anyhow::Error::msg)?;
        anyhow::Ok(stream)
    });
    let streams = try_join_all(begin).await?;
    booked(stand, LONG).await?;
    load(stand, Part::Router, async || {}).await?;
    // the short ones have ended, and the long ones have not
    booked(stand, LONG).await?;
    drop(streams);
    booked(stand, 0).await
}

/// Waits until the Router has so many bookings.
async fn booked(stand: &Stand, wanted: usize) -> Result<()> {
    let router = Requests::new(stand.external()?.router_admin_url());
    let wanted = format!("router_bookings {wanted}");
    eventually(&wanted, BOOKED, async || {
        let page = router.get("/metrics").await;
        let page = page.map_err(|error| error.to_string())?.text();
        let lines = page.lines();
        let lines: Vec<&str> = lines
            .filter(|line| line.starts_with("router_bookings "))
            .collect();
        if lines == [&*wanted] {
            Ok(())
        } else {
            Err(format!("{lines:?}"))
        }
    })
    .await?;
    Ok(())
}

/// Requests of several clients, long and short; in the midst of them something happens. None may fail.
async fn load(stand: &Stand, part: Part, happens: impl AsyncFn()) -> Result<()> {
    let clients = (0..CLIENTS).map(async |client| {
        for nth in 0..EACH {
            if client == 0 && nth == EACH / 4 {
                happens().await;
            }
            let lines = if nth % 2 == 0 { 2 } else { 60 };
            let text = prompt(&format!("{part:?} {client} {nth}"), lines);
            stand.send(&chat(&text, None)).await?;
        }
        anyhow::Ok(())
    });
    let ended = join_all(clients).await;
    let failed: Vec<String> = ended
        .iter()
        .filter_map(|it| Some(format!("{:#}", it.as_ref().err()?)))
        .collect();
    ensure!(failed.is_empty(), "{part:?}: {}", failed.join("; "));
    Ok(())
}

/// Long prompts' ids go by key and the Router chooses, as before.
async fn used_again(stand: &Stand, part: Part) -> Result<()> {
    let picks = "epp_external_picks_total{by=\"external\"";
    let mut nth = 0;
    eventually(&format!("{part:?} in use"), RECOVERED, async || {
        nth += 1;
        let before = stand.metric(picks).await?;
        let text = prompt(&format!("{part:?} again {nth}"), 60);
        let answer = stand.send(&chat(&text, None)).await;
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let source = header(&answer, "x-inference-token-source");
        let after = stand.metric(picks).await?;
        if source == "key" && after > before {
            Ok(())
        } else {
            Err(format!("ids by {source}, picks {before} to {after}"))
        }
    })
    .await?;
    Ok(())
}
