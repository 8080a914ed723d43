//! The endpoint picker behind gateways of Istio by an `EnvoyFilter`.

use anyhow::{Result, ensure};
use testbed::{Requests, eventually};

use crate::{
    dump,
    picks::{self, SOON},
    stand::{CLASSIC, NAMESPACE, OF_GATEWAY_API, Stand},
};

/// Of the route that the chart makes.
const ROUTE: &str = "llm.llama.0";
/// As the chart names it for the release.
const EXT_PROC: &str = "isthmus.ext-proc.llm.llama";

pub(crate) async fn forced_picks_are_served_by_a_gateway_of_gateway_api(
    stand: &Stand,
) -> Result<()> {
    stand
        .release(
            "Values: EnvoyFilter for a Gateway of Gateway API",
            "llama",
            &[],
        )
        .await?;
    // Istio's own support of InferencePools, with which the tests before this one end, serves forced picks as well
    stand
        .configured(OF_GATEWAY_API, "the EnvoyFilter's filter is on", |dump| {
            let route = dump::route(dump, ROUTE)?;
            let on = &route["typed_per_filter_config"][EXT_PROC];
            ensure!(on.is_object(), "{route}");
            Ok(())
        })
        .await?;
    let gateway = stand.requests(OF_GATEWAY_API).await?;
    let servers = stand.servers(NAMESPACE).await?;
    picks::are_served(&gateway, "llama", &servers).await?;
    without_an_endpoint_picker_there_is_no_answer(stand, &gateway).await
}

pub(crate) async fn forced_picks_are_served_by_a_classic_gateway(stand: &Stand) -> Result<()> {
    stand
        .release("Values: EnvoyFilter for a classic gateway", "llama", &[])
        .await?;
    stand.apply("Classic Gateway and VirtualService").await?;
    let gateway = stand.requests(CLASSIC).await?;
    let servers = stand.servers(NAMESPACE).await?;
    picks::are_served(&gateway, "llama", &servers).await
}

/// With `FailClose` no request goes on without a pick.
async fn without_an_endpoint_picker_there_is_no_answer(
    stand: &Stand,
    gateway: &Requests,
) -> Result<()> {
    stand.scale_picker(0).await?;
    let refused = eventually("requests get 503", SOON, async || {
        let answer = gateway.chat("llama", "hello").await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 503 && answer.pod().is_none() {
            Ok(())
        } else {
            Err(format!("{} by {:?}", answer.status, answer.pod()))
        }
    });
    let refused = refused.await;
    stand.scale_picker(1).await?;
    Ok(refused?)
}

/// What the page says of the Go filter's configuration.
pub(crate) async fn the_rules_of_an_llm_filter_hold(stand: &Stand) -> Result<()> {
    const MODEL: &str = "qwen-2.5-72b";
    stand
        .release("Values: LLM filter and Metadata-Center", MODEL, &[])
        .await?;
    stand.apply("Classic Gateway and VirtualService").await?;
    let gateway = stand.requests(CLASSIC).await?;
    let servers = stand.servers(NAMESPACE).await?;
    picks::are_served(&gateway, MODEL, &servers).await?;
    let answer = gateway.chat("another", "hello").await?;
    ensure!(
        answer.status == 404 && answer.json()["error"]["param"] == "model",
        "{}: {}",
        answer.status,
        answer.text()
    );
    let calls = "epp_metadata_request_duration_seconds_count{call=\"pick\",outcome=\"ok\"}";
    let asked = eventually("the Metadata-Center is asked", SOON, async || {
        match stand.metric(calls).await {
            Ok(calls) if calls > 0.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    Ok(asked.await?)
}
