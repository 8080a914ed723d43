//! In each body mode: what a client sends arrives, and what a server answers comes back.

use anyhow::{Result, ensure};
use bytes::Bytes;

use crate::client::{Ask, CHAT, Payload};
use crate::stand::{MAX_BODY, Stand, Way, chat, text_of};

const KIB: usize = 1024;

pub(crate) async fn full_duplex_streamed(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::FullDuplex).await
}

pub(crate) async fn streamed(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::Streamed).await
}

pub(crate) async fn streamed_ahead_of_the_answer_to_the_headers(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::StreamedAhead).await
}

pub(crate) async fn buffered(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::Buffered).await
}

pub(crate) async fn buffered_partial(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::BufferedPartial).await
}

pub(crate) async fn none(stand: &Stand) -> Result<()> {
    everything_arrives(stand, Way::Bodiless).await
}

async fn everything_arrives(stand: &Stand, way: Way) -> Result<()> {
    // no body
    let answer = stand.delivered(way, Ask::get("/v1/models")).await?;
    ensure!(answer.status == 200, "{way:?}: {}", answer.text());
    let nothing = Payload::Whole(Bytes::new());
    let answer = stand.delivered(way, Ask::post(CHAT, nothing)).await?;
    ensure!(answer.status == 400, "{way:?}: {}", answer.text());
    // bodies of known and unknown length, in both versions of HTTP
    for bytes in [KIB, 100 * KIB] {
        let text = text_for(bytes);
        let body = chat(&text, 8, false);
        let parts = body.chunks(7000).map(Bytes::copy_from_slice).collect();
        for payload in [
            Payload::Whole(body.clone()),
            Payload::Chunked(parts),
            Payload::WithTrailers(body.clone()),
        ] {
            for http2 in [false, true] {
                let ask = Ask {
                    http2,
                    ..Ask::post(CHAT, payload.clone())
                };
                let answer = stand.delivered(way, ask).await?;
                let echo = text_of(&answer);
                ensure!(
                    answer.status == 200 && echo.as_deref() == text.get(..32),
                    "{way:?}: {payload:.40?}, HTTP/2 {http2}: {}: {}",
                    answer.status,
                    answer.text()
                );
            }
        }
    }
    // events
    let text = text_for(2 * KIB);
    let ask = Ask::post(CHAT, Payload::Whole(chat(&text, 300, true)));
    let answer = stand.delivered(way, ask).await?;
    let echo = text_of(&answer);
    ensure!(
        echo.as_deref() == text.get(..1200),
        "{way:?}: {}: {}",
        answer.status,
        answer.text()
    );
    // more than Envoy holds
    let text = text_for(20_000_000);
    let ask = Ask::post(CHAT, Payload::Whole(chat(&text, 8, false)));
    if way == Way::BufferedPartial {
        let answer = stand.delivered(way, ask).await?;
        ensure!(
            text_of(&answer).as_deref() == text.get(..32),
            "{way:?}: {}",
            answer.text()
        );
        return Ok(());
    }
    let answer = stand.delivered(way, ask).await?;
    ensure!(
        text_of(&answer).as_deref() == text.get(..32),
        "{way:?}: {}: {:.200}",
        answer.status,
        answer.text()
    );
    Ok(())
}

/// The endpoint picker's own limit, whether the length is known or not.
pub(crate) async fn a_body_over_the_limit_is_answered_413(stand: &Stand) -> Result<()> {
    let text = text_for(MAX_BODY);
    let body = chat(&text, 8, false);
    let parts: Vec<Bytes> = body.chunks(1 << 20).map(Bytes::copy_from_slice).collect();
    for way in [Way::FullDuplex, Way::Buffered] {
        for payload in [
            Payload::Whole(body.clone()),
            Payload::Chunked(parts.clone()),
        ] {
            // over HTTP/2 an answer that comes before the body's end is not lost
            let ask = Ask::post(CHAT, payload).http2();
            let answer = stand.client.send(&way.url(), ask).await?;
            ensure!(
                answer.status == 413 && answer.json()["error"]["type"] == "body-too-large",
                "{way:?}: {}: {}",
                answer.status,
                answer.text()
            );
        }
    }
    Ok(())
}

/// Text of so many bytes that never repeats itself for long.
fn text_for(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    let mut number = bytes;
    while text.len() < bytes {
        text += &number.to_string();
        text.push(' ');
        number += 7919;
    }
    text.truncate(bytes);
    text
}
