//! Many requests at a time: nothing is left over, and nothing is mixed up.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use http_body_util::BodyExt;
use testbed::{Answer, eventually};
use tokio::time::timeout;

use crate::client::{Ask, CHAT, LIMIT, Payload};
use crate::stand::{LARGE, SOON, Stand, Way, chat, large, text_of};

const ABORTS: u32 = 1000;
/// At a time.
const CLIENTS: u32 = 20;
/// Of the mixed load.
const REQUESTS: u32 = 600;
/// One of so many has a body of 20 MB.
const LARGE_EACH: u32 = 150;
/// Large bodies at a time.
const LARGE_AT_ONCE: u32 = 3;
/// What the endpoint picker may hold above what it held after the first half of the load: its allocator gives memory back
/// late. The two large bodies of the second half take more, and so would 120 KB for each of its requests.
const GROWTH: u64 = 36 << 20;

/// All that is open or counted for a request.
const LEFT_OVER: [&str; 3] = [
    "epp_streams{",
    "llm_d_epp_request_running{",
    "epp_buffered_bytes",
];

pub(crate) async fn a_thousand_aborts_leave_nothing_and_hurt_nobody(stand: &Stand) -> Result<()> {
    let text = "a stream that goes on. ".repeat(80);
    let ask = || Ask::post(CHAT, Payload::Whole(chat(&text, 400, true)));
    // long streams on the connections on which others are given up
    let bystanders = (0..8).map(|nth| {
        let ask = Ask {
            http2: nth % 2 == 0,
            ..ask()
        };
        stand.delivered(Way::FullDuplex, ask)
    });
    let bystanders = bystanders
        .collect::<FuturesUnordered<_>>()
        .collect::<Vec<_>>();
    let next = AtomicU32::new(0);
    let aborts = (0..CLIENTS).map(async |_| {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= ABORTS {
                return anyhow::Ok(());
            }
            let ask = Ask {
                http2: nth.is_multiple_of(2),
                ..ask()
            };
            abort(stand, ask, nth).await?;
        }
    });
    let aborts = aborts.collect::<FuturesUnordered<_>>().collect::<Vec<_>>();
    let (bystanders, aborts) = tokio::join!(bystanders, aborts);
    aborts.into_iter().collect::<Result<Vec<()>>>()?;
    for answer in bystanders {
        let echo = text_of(&answer?);
        ensure!(
            echo.as_deref() == text.get(..1600),
            "a bystander got {echo:?}"
        );
    }
    nothing_left(stand).await
}

/// Gives a request up: before the body's end, while it waits, after the first events.
async fn abort(stand: &Stand, ask: Ask, nth: u32) -> Result<()> {
    let way = Way::FullDuplex;
    match nth % 3 {
        0 => {
            let (parts, body) = Payload::fed();
            parts.send(ask.body.bytes().split_off(500).into()).await?;
            let ask = Ask { body, ..ask };
            // the parts that are there are taken, and then the request is dropped
            let given_up = async { parts.reserve_many(4).await.map(drop) };
            tokio::select! {
                answer = stand.client.open(way, ask) => drop(answer),
                _ = given_up => {}
            }
        }
        1 => {
            let mut asked = Box::pin(stand.client.open(way, ask));
            // sent, as far as that goes at once
            let _pending = futures::poll!(&mut asked);
        }
        _ => {
            let mut body = stand.client.open(way, ask).await?.into_body();
            let first = timeout(LIMIT, body.frame()).await?;
            first.context("no event")??;
        }
    }
    Ok(())
}

pub(crate) async fn a_mixed_load_has_no_wrong_answer_and_leaves_no_memory(
    stand: &Stand,
) -> Result<()> {
    // as many large bodies at a time as there may come to be
    let large = (0..LARGE_AT_ONCE).map(|_| {
        let ask = Ask::post(CHAT, Payload::Whole(large(20_000_000)));
        stand.client.send(Way::FullDuplex, ask)
    });
    for answer in large
        .collect::<FuturesUnordered<_>>()
        .collect::<Vec<_>>()
        .await
    {
        ensure!(right(&answer?, LARGE, Some(8)), "a large body");
    }
    let sent = AtomicU32::new(0);
    work(stand, &sent, REQUESTS / 2, Fault::None).await?;
    nothing_left(stand).await?;
    let warm = stand.standalone.epp_memory().await.context("no epp")?;
    work(stand, &sent, REQUESTS, Fault::None).await?;
    nothing_left(stand).await?;
    let flat = eventually("memory is as before", SOON, async || {
        let now = stand.standalone.epp_memory().await.ok_or("no epp")?;
        if now <= warm + GROWTH {
            Ok(())
        } else {
            Err(format!("{now} bytes, {warm} after half of the load"))
        }
    });
    flat.await?;
    // with a new endpoint picker in the middle: what it cuts is seen to be cut
    work(stand, &sent, REQUESTS + 200, Fault::Restart).await?;
    stand.settle().await?;
    nothing_left(stand).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Restart,
}

/// Sends requests of all kinds until so many are sent in all.
async fn work(stand: &Stand, sent: &AtomicU32, until: u32, fault: Fault) -> Result<()> {
    let from = sent.load(Ordering::Relaxed);
    let clients = (0..CLIENTS).map(async |_| {
        loop {
            let nth = sent.fetch_add(1, Ordering::Relaxed);
            if nth >= until {
                sent.fetch_sub(1, Ordering::Relaxed);
                return anyhow::Ok(());
            }
            one(stand, nth, fault)
                .await
                .with_context(|| format!("request {nth}"))?;
        }
    });
    let clients = clients.collect::<FuturesUnordered<_>>().collect::<Vec<_>>();
    let fault = async {
        if fault == Fault::Restart {
            let some = from + (until - from) / 3;
            eventually("a third of the requests", SOON, async || {
                let now = sent.load(Ordering::Relaxed);
                if now >= some { Ok(()) } else { Err(now) }
            })
            .await?;
            stand.standalone.kill_epp().await;
            stand.standalone.restart_epp().await?;
        }
        anyhow::Ok(())
    };
    let (clients, fault) = tokio::join!(clients, fault);
    clients.into_iter().collect::<Result<Vec<()>>>()?;
    fault
}

async fn one(stand: &Stand, nth: u32, fault: Fault) -> Result<()> {
    let way = match nth % 7 {
        0 => Way::Streamed,
        1 => Way::StreamedAhead,
        2 => Way::Buffered,
        3 => Way::Bodiless,
        _ => Way::FullDuplex,
    };
    let mut text = format!(
        "request {nth} says this and {}. ",
        nth.wrapping_mul(2_654_435_761)
    )
    .repeat(20);
    let http2 = nth.is_multiple_of(2);
    let (ask, tokens) = match nth % 10 {
        0 => (Ask::get("/v1/models"), None),
        1 => {
            let ask = Ask::post(CHAT, Payload::Whole(chat(&text, 100, true)));
            return abort(stand, Ask { http2, ..ask }, nth)
                .await
                .or_else(|error| {
                    if fault == Fault::None {
                        Err(error)
                    } else {
                        Ok(())
                    }
                });
        }
        2..=5 => (
            Ask::post(CHAT, Payload::Whole(chat(&text, 30, true))),
            Some(30),
        ),
        // now and then one that takes long to read
        _ if nth % LARGE_EACH == 7 => {
            text = LARGE.to_owned();
            (Ask::post(CHAT, Payload::Whole(large(20_000_000))), Some(8))
        }
        _ => (
            Ask::post(CHAT, Payload::Whole(chat(&text, 10, false))),
            Some(10),
        ),
    };
    let answer = stand.client.send(way, Ask { http2, ..ask }).await;
    match (answer, fault) {
        (Ok(answer), _) if right(&answer, &text, tokens) => Ok(()),
        // cut, or without an endpoint picker: what is never right is a complete answer that is another
        (Ok(answer), Fault::Restart) if answer.status == 503 => Ok(()),
        (Err(_), Fault::Restart) => Ok(()),
        (Ok(answer), _) => bail!("{way:?}: {}: {:.300}", answer.status, answer.text()),
        (Err(error), Fault::None) => Err(error),
    }
}

fn right(answer: &Answer, text: &str, tokens: Option<usize>) -> bool {
    answer.status == 200
        && match tokens {
            Some(tokens) => text_of(answer).as_deref() == text.get(..(4 * tokens).min(text.len())),
            None => answer.json()["object"] == "list",
        }
}

async fn nothing_left(stand: &Stand) -> Result<()> {
    let seen = eventually("nothing is left over", SOON, async || {
        for metric in LEFT_OVER {
            let value = stand.standalone.metric(metric).await?;
            // not on the page is no proof
            if value != Some(0.0) {
                return Err(format!("{metric} is {value:?}"));
            }
        }
        Ok(())
    });
    Ok(seen.await?)
}
