//! Many requests at a time: nothing is left over, and nothing is mixed up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use testbed::{Answer, eventually};
use tokio::time::{Instant, sleep, timeout};

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
/// Small requests that are sent in each of two rounds to see what one leaves.
const SMALL: u32 = 2000;
/// Their prompts, which come again and again: what the endpoint picker remembers of prompts does not grow.
const PROMPTS: u32 = 50;
/// What the endpoint picker may hold above what it held after the first round: 4 KB of each request, as its allocator does not
/// give all memory back at once.
const GROWTH: u64 = 8 << 20;
/// Requests that begin once a new endpoint picker is there.
const AFTER_OUTAGE: u32 = 150;
/// Requests that are answered before the endpoint picker is killed.
const BEFORE_OUTAGE: u32 = 60;
/// A client whose request met the outage waits so long: the endpoint picker that starts needs the processors.
const RETRY: Duration = Duration::from_millis(50);

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
    work(stand, &sent, REQUESTS).await?;
    nothing_left(stand).await?;
    small_requests_leave_no_memory(stand).await?;
    // with a new endpoint picker in the middle: what it cuts is seen to be cut
    work_through_an_outage(stand, &sent).await?;
    stand.settle().await?;
    nothing_left(stand).await
}

async fn small_requests_leave_no_memory(stand: &Stand) -> Result<()> {
    let sent = AtomicU32::new(0);
    let round = async |until: u32| {
        let clients = (0..CLIENTS).map(async |_| {
            loop {
                let nth = sent.fetch_add(1, Ordering::Relaxed);
                if nth >= until {
                    sent.fetch_sub(1, Ordering::Relaxed);
                    return anyhow::Ok(());
                }
                small(stand, nth)
                    .await
                    .with_context(|| format!("request {nth}"))?;
            }
        });
        let clients = clients.collect::<FuturesUnordered<_>>();
        clients.try_collect::<Vec<()>>().await?;
        nothing_left(stand).await?;
        stand.standalone.epp_memory().await.context("no epp")
    };
    let first = round(SMALL).await?;
    round(2 * SMALL).await?;
    let flat = eventually("memory is as before", SOON, async || {
        let now = stand.standalone.epp_memory().await.ok_or("no epp")?;
        if now <= first + GROWTH {
            Ok(())
        } else {
            Err(format!("{now} bytes, {first} after half of the requests"))
        }
    });
    Ok(flat.await?)
}

async fn small(stand: &Stand, nth: u32) -> Result<()> {
    let prompt = nth % PROMPTS;
    let text = format!("prompt {prompt} of those that come again. ").repeat(20);
    let body = Payload::Whole(chat(&text, 1, nth.is_multiple_of(3)));
    let ask = Ask {
        http2: nth.is_multiple_of(2),
        ..Ask::post(CHAT, body)
    };
    let way = way_of(nth);
    let answer = stand.client.send(way, ask).await?;
    let is_right = right(&answer, &text, Some(1));
    ensure!(
        is_right,
        "{way:?}: {}: {:.300}",
        answer.status,
        answer.text()
    );
    Ok(())
}

/// When there was no endpoint picker.
#[derive(Default)]
struct Outage {
    from: OnceLock<Instant>,
    to: OnceLock<Instant>,
}

// === impl Outage ===

impl Outage {
    /// Whether a request that began then may have failed by it, if it failed now.
    fn excuses(&self, begun: Instant) -> bool {
        self.from.get().is_some() && self.to.get().is_none_or(|to| begun < *to)
    }

    fn is_over(&self) -> bool {
        self.to.get().is_some()
    }
}

/// Sends requests of all kinds until so many are sent in all.
async fn work(stand: &Stand, sent: &AtomicU32, until: u32) -> Result<()> {
    let clients = (0..CLIENTS).map(async |_| {
        loop {
            let nth = sent.fetch_add(1, Ordering::Relaxed);
            if nth >= until {
                sent.fetch_sub(1, Ordering::Relaxed);
                return anyhow::Ok(());
            }
            one(stand, nth, || false)
                .await
                .with_context(|| format!("request {nth}"))?;
        }
    });
    let clients = clients.collect::<FuturesUnordered<_>>();
    clients.try_collect::<Vec<()>>().await?;
    Ok(())
}

/// Sends requests of all kinds before, during and after an outage of the endpoint picker. Only those that met it may fail.
async fn work_through_an_outage(stand: &Stand, sent: &AtomicU32) -> Result<()> {
    let outage = Outage::default();
    let (before, after) = (AtomicU32::new(0), AtomicU32::new(0));
    let clients = (0..CLIENTS).map(async |_| {
        loop {
            if outage.is_over() && after.fetch_add(1, Ordering::Relaxed) >= AFTER_OUTAGE {
                return anyhow::Ok(());
            }
            let (nth, begun) = (sent.fetch_add(1, Ordering::Relaxed), Instant::now());
            let is_answered = one(stand, nth, || outage.excuses(begun))
                .await
                .with_context(|| format!("request {nth}"))?;
            before.fetch_add(1, Ordering::Relaxed);
            if !is_answered {
                sleep(RETRY).await;
            }
        }
    });
    let clients = clients.collect::<FuturesUnordered<_>>();
    let fault = async {
        eventually("requests are answered", SOON, async || {
            let now = before.load(Ordering::Relaxed);
            if now >= BEFORE_OUTAGE {
                Ok(())
            } else {
                Err(now)
            }
        })
        .await?;
        outage.from.get_or_init(Instant::now);
        stand.standalone.kill_epp().await;
        stand.standalone.restart_epp().await?;
        stand.settle().await?;
        outage.to.get_or_init(Instant::now);
        anyhow::Ok(())
    };
    tokio::try_join!(clients.try_collect::<Vec<()>>(), fault)?;
    Ok(())
}

fn way_of(nth: u32) -> Way {
    match nth % 7 {
        0 => Way::Streamed,
        1 => Way::StreamedAhead,
        2 => Way::Buffered,
        3 => Way::Bodiless,
        _ => Way::FullDuplex,
    }
}

/// Sends one request. False if it failed and that is excused.
async fn one(stand: &Stand, nth: u32, is_excused: impl Fn() -> bool) -> Result<bool> {
    let way = way_of(nth);
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
            return match abort(stand, Ask { http2, ..ask }, nth).await {
                Ok(()) => Ok(true),
                Err(_) if is_excused() => Ok(false),
                Err(error) => Err(error),
            };
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
    match answer {
        Ok(answer) if right(&answer, &text, tokens) => Ok(true),
        // cut, or without an endpoint picker: what is never right is a complete answer that is another
        Ok(answer) if answer.status == 503 && is_excused() => Ok(false),
        Err(_) if is_excused() => Ok(false),
        Ok(answer) => bail!("{way:?}: {}: {:.300}", answer.status, answer.text()),
        Err(error) => Err(error),
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
