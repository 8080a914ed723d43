//! Parts that die or stand still under load.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use testbed::standalone::Part;
use testbed::{Requests, eventually};

use crate::stand::{Stand, chat, header, prompt};

const PARTS: [Part; 3] = [Part::Processor, Part::Router, Part::Redis];
const CLIENTS: usize = 8;
const EACH: usize = 15;
/// Breakers probe each 5 s, give or take a second.
const RECOVERED: Duration = Duration::from_secs(20);
/// The DELETE of each is under way at its end; one that was lost on a busy machine costs the Router's patience of 20 s.
const ENDED: Duration = Duration::from_secs(30);

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

pub(crate) async fn bookings_are_gone_once_all_requests_have_ended(stand: &Stand) -> Result<()> {
    load(stand, Part::Router, async || {}).await?;
    let router = Requests::new(stand.external()?.router_admin_url());
    eventually("no bookings", ENDED, async || {
        let page = router.get("/metrics").await;
        let page = page.map_err(|error| error.to_string())?.text();
        let lines: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("router_bookings "))
            .collect();
        if lines == ["router_bookings 0"] {
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
