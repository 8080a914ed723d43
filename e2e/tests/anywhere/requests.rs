//! What a client of west's gateway gets.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderValue};
use testbed::eventually;

use e2e::pair::{Pair, sum_metric};

const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn a_json_request_is_answered_by_the_exporting_cluster(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let answer = pair.gateway.chat("llama", "hello").await?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
    let pod = answer.pod().context("no x-inference-pod")?;
    let east = pair.pods(&pair.east).await?;
    ensure!(
        east.contains_key(pod),
        "answered by {pod}, not one of {:?}",
        east.keys()
    );
    let body = answer.json();
    ensure!(body["model"] == "llama", "{body}");
    ensure!(
        body["choices"][0]["message"]["content"].is_string(),
        "{body}"
    );
    ensure!(body["usage"]["completion_tokens"] == 5, "{body}");
    Ok(())
}

/// The first token is read while the model server still works on the same request: so it was not held back.
pub(crate) async fn tokens_arrive_one_by_one(pair: &Pair) -> Result<()> {
    const TOKENS: u32 = 600;
    pair.settle().await?;
    let mut stream = pair.gateway.chat_stream("llama", "tell me", TOKENS).await?;
    ensure!(stream.status == 200, "{}", stream.status);
    let pod = stream.pod().context("no x-inference-pod")?.to_owned();
    ensure!(
        pair.pods(&pair.east).await?.contains_key(&pod),
        "{pod} is not of east"
    );
    for _ in 0..3 {
        let event = stream.next_event().await.map_err(anyhow::Error::msg)?;
        ensure!(
            event.is_some_and(|event| event.starts_with('{')),
            "no third event"
        );
    }
    let metrics = pair.page(&pair.east, &pod, 8000, "/metrics").await?;
    let running = sum_metric(&metrics, "vllm:num_requests_running");
    ensure!(
        running >= 1.0,
        "three events are here, but {pod} runs {running} requests"
    );
    let (mut events, mut usage, mut last) = (3, false, String::new());
    while let Some(event) = stream.next_event().await.map_err(anyhow::Error::msg)? {
        events += 1;
        usage |= event.contains(&format!("\"completion_tokens\":{TOKENS}"));
        last = event;
    }
    ensure!(last == "[DONE]", "the stream ends with {last:?}");
    ensure!(usage, "no usage of {TOKENS} tokens");
    ensure!(events >= TOKENS, "{events} events for {TOKENS} tokens");
    Ok(())
}

pub(crate) async fn equal_weights_split_requests_and_each_picker_sees_its_share(
    pair: &Pair,
) -> Result<()> {
    const REQUESTS: usize = 400;
    /// A request takes some 50 ms, nearly all of it waiting for the simulated model.
    const AT_ONCE: usize = 8;
    pair.settle().await?;
    pair.west.apply_yaml(HALVES).await?;
    let east = pair.pods(&pair.east).await?;
    let west = pair.pods(&pair.west).await?;
    eventually("answers from both clusters", SOON, async || {
        let mut seen = [false, false];
        for _ in 0..16 {
            let answer = pair
                .gateway
                .chat("llama", "hello")
                .await
                .map_err(|error| error.to_string())?;
            let pod = answer
                .pod()
                .ok_or_else(|| format!("{}: {}", answer.status, answer.text()))?;
            seen[0] |= east.contains_key(pod);
            seen[1] |= west.contains_key(pod);
        }
        if seen == [true, true] {
            Ok(())
        } else {
            Err(format!("east, west: {seen:?}"))
        }
    })
    .await?;

    let picks = async |cluster| anyhow::Ok(sum_metric(&pair.epp_metrics(cluster).await?, PICKS));
    let before = (picks(&pair.east).await?, picks(&pair.west).await?);
    let requests = (0..REQUESTS).map(async |number| {
        let text = format!("request {number}");
        let answer = pair.gateway.chat("llama", &text).await?;
        ensure!(
            answer.status == 200,
            "{text}: {}: {}",
            answer.status,
            answer.text()
        );
        let pod = answer.pod().context("no x-inference-pod")?;
        Ok((
            u32::from(east.contains_key(pod)),
            u32::from(west.contains_key(pod)),
        ))
    });
    let counts = stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .try_fold((0, 0), async |(of_east, of_west), (east, west)| {
            Ok((of_east + east, of_west + west))
        })
        .await?;
    let after = (picks(&pair.east).await?, picks(&pair.west).await?);
    ensure!(counts.0 + counts.1 == 400, "{counts:?} do not add up");
    ensure!(
        counts.0.abs_diff(200) <= 35,
        "east answered {} of 400",
        counts.0
    );
    let asked = (after.0 - before.0, after.1 - before.1);
    ensure!(
        asked == (f64::from(counts.0), f64::from(counts.1)),
        "the endpoint pickers were asked {asked:?} times, the clusters answered {counts:?} requests"
    );
    Ok(())
}

pub(crate) async fn a_client_cannot_steer_the_pick(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let mut headers = HeaderMap::new();
    for name in [
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
    ] {
        headers.insert(name, HeaderValue::from_static(FORGED));
    }
    headers.insert("x-request-mark", HeaderValue::from_static(MARK));
    headers.insert("x-isthmus-failover", HeaderValue::from_static("1"));
    let body = r#"{"model":"llama","messages":[{"role":"user","content":"hi"}],"max_tokens":1}"#;
    let answer = pair
        .gateway
        .post("/v1/chat/completions", headers, body)
        .await?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
    let pod = answer.pod().context("no x-inference-pod")?;

    // what reached the model server: the picker's own choice, and nothing of the client's
    let seen = pair.page(&pair.east, pod, 8000, "/admin/requests").await?;
    ensure!(
        seen.contains(MARK),
        "the model server has no such request: {seen}"
    );
    for leaked in [FORGED, "-subset", "-served", "x-isthmus-failover"] {
        ensure!(
            !seen.contains(leaked),
            "{leaked} reached the model server: {seen}"
        );
    }
    Ok(())
}

/// An address that a client would like to reach.
const FORGED: &str = "10.2.255.1:6443";
/// Finds the request again.
const MARK: &str = "forged-by-a-client";

/// Requests that an endpoint picker has picked for.
const PICKS: &str = "llm_d_epp_request_total";

const HALVES: &str = include_str!("../../../config/samples/route-halves.yaml");
