//! In each body mode: what a client sends arrives, and what a server answers comes back.

use anyhow::{Result, ensure};
use bytes::Bytes;

use crate::client::{Ask, CHAT, Payload};
use crate::stand::{LARGE, MAX_BODY, Stand, Way, chat, large, text_of};

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
    let answer = stand.client.send(way, Ask::get("/v1/models")).await?;
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
                // of an HTTP/1.1 client Envoy drops them
                let trailers = matches!(payload, Payload::WithTrailers(_)) && http2;
                let way = match way {
                    Way::FullDuplex if trailers => Way::OneAttempt,
                    way => way,
                };
                let ask = Ask {
                    http2,
                    ..Ask::post(CHAT, payload.clone())
                };
                let answer = stand.delivered(way, ask).await?;
                let echo = text_of(&answer);
                ensure!(
                    answer.status == 200 && echo.as_deref() == text.get(..32),
                    "{way:?}: {bytes} bytes, HTTP/2 {http2}, trailers {trailers}: {}: {:.300}",
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
    // more than Envoy holds, but where it has to
    let ask = Ask::post(CHAT, Payload::Whole(large(20_000_000)));
    let answer = stand.delivered(way, ask).await?;
    ensure!(
        text_of(&answer).as_deref() == Some(LARGE),
        "{way:?}: {}: {:.200}",
        answer.status,
        answer.text()
    );
    Ok(())
}

/// The endpoint picker's own limit, whether the length is known or not.
pub(crate) async fn a_body_over_the_limit_is_answered_413(stand: &Stand) -> Result<()> {
    let body = large(MAX_BODY);
    let parts: Vec<Bytes> = body.chunks(1 << 20).map(Bytes::copy_from_slice).collect();
    let known = || Payload::Whole(body.clone());
    let unknown = || Payload::Chunked(parts.clone());
    // over HTTP/2 an answer that comes before the body's end is not lost
    for (way, http2, payload) in [
        (Way::FullDuplex, true, known()),
        (Way::FullDuplex, true, unknown()),
        (Way::Buffered, true, known()),
        // there Envoy holds 16 MB over HTTP/2, whatever its limit
        (Way::Buffered, false, unknown()),
    ] {
        let ask = Ask {
            http2,
            ..Ask::post(CHAT, payload)
        };
        let answer = stand.client.send(way, ask).await?;
        ensure!(
            answer.status == 413 && answer.json()["error"]["type"] == "body-too-large",
            "{way:?}: {}: {}",
            answer.status,
            answer.text()
        );
    }
    Ok(())
}

/// Text of so many bytes that never repeats itself.
fn text_for(bytes: usize) -> String {
    let numbers = (bytes..).step_by(7919).map(|number| format!("{number} "));
    let mut text = String::with_capacity(bytes + 16);
    text.extend(numbers.take(bytes / 5));
    text.truncate(bytes);
    text
}
