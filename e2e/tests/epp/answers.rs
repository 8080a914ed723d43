//! Refusals reach the client as they are, and clients do not choose the endpoint.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::Answer;

use crate::client::{Ask, CHAT, Payload};
use crate::stand::{Stand, Way, chat, counts};

const SATURATION: &str = "llm_d_epp_flow_control_pool_saturation";
const RELOADS: &str = "epp_config_reloads_total{result=\"success\"}";
const READY: &str = "llm_d_epp_ready_endpoints";

pub(crate) async fn a_model_that_nobody_lists_is_answered_404(stand: &Stand) -> Result<()> {
    change_models(stand, &["llama"]).await?;
    let mut outcome = Ok(());
    for way in [Way::FullDuplex, Way::StreamedAhead, Way::Buffered] {
        let body = chat("hello", 1, false);
        let body = String::from_utf8_lossy(&body).replace("llama", "gpt-99");
        let ask = Ask::post(CHAT, Payload::Whole(body.into()));
        let answer = stand.client.send(way, ask).await?;
        outcome = outcome.and(refused(&answer, 404, "model-not-found", None));
    }
    change_models(stand, &[]).await?;
    outcome
}

async fn change_models(stand: &Stand, models: &[&str]) -> Result<()> {
    let before = stand.metric(RELOADS).await?;
    let change = |config: &mut Value| config["isthmus"]["models"] = json!(models);
    stand.standalone.change_epp(change).await?;
    stand.until(RELOADS, |reloads| reloads > before).await
}

pub(crate) async fn a_request_of_low_priority_is_shed_with_429(stand: &Stand) -> Result<()> {
    stand
        .change_servers(json!({"metrics": {"waiting": 20}}))
        .await?;
    stand.until(SATURATION, |value| value >= 1.0).await?;
    let mut outcome = Ok(());
    for way in [Way::FullDuplex, Way::Streamed, Way::Buffered, Way::Bodiless] {
        let ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
        let ask = ask.header("x-llm-d-inference-objective", "batch");
        let answer = stand.client.send(way, ask).await?;
        outcome = outcome.and(refused(
            &answer,
            429,
            "saturated",
            Some("rejected-saturated"),
        ));
        let retry_after = answer.headers.get("retry-after");
        ensure!(
            retry_after.is_some_and(|after| after == "1"),
            "{:?}",
            answer.headers
        );
    }
    stand.change_servers(json!({"metrics": null})).await?;
    stand.until(SATURATION, |value| value < 1.0).await?;
    outcome
}

pub(crate) async fn a_pool_without_endpoints_is_answered_503(stand: &Stand) -> Result<()> {
    stand.standalone.set_endpoints([])?;
    stand.until(READY, counts(0)).await?;
    let ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
    let answer = stand.client.send(Way::FullDuplex, ask).await?;
    let servers = stand.standalone.servers();
    stand.standalone.set_endpoints(servers.iter().copied())?;
    stand.until(READY, counts(3)).await?;
    refused(&answer, 503, "no-endpoints", Some("rejected-no-endpoints"))
}

pub(crate) async fn a_servers_own_error_is_passed_on(stand: &Stand) -> Result<()> {
    for (knobs, status) in [
        (json!({"fail": {"status": 503, "rate": 1}}), 503),
        (json!({"reject": true}), 429),
    ] {
        stand.change_servers(knobs).await?;
        let ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
        let answer = stand.client.send(Way::FullDuplex, ask).await?;
        stand
            .change_servers(json!({"fail": null, "reject": null}))
            .await?;
        let own = answer.pod().is_some() && answer.json()["error"]["reason"].is_string();
        ensure!(
            answer.status == status && own,
            "{} {:?}: {}",
            answer.status,
            answer.headers,
            answer.text()
        );
    }
    Ok(())
}

/// Envoy's file has these headers removed before anything reads them; here it is told not to, so that what holds is the
/// endpoint picker's doing.
pub(crate) async fn headers_of_a_client_reach_neither_the_pick_nor_the_server(
    stand: &Stand,
) -> Result<()> {
    const ID: &str = "steered";
    let forged = format!("{}", stand.standalone.servers()[0]);
    // so that nobody picks it
    let busy = testbed::Requests::new(format!("http://{forged}"));
    let load = json!({"metrics": {"waiting": 100, "kv": 0.9}}).to_string();
    busy.post("/admin/config", http::HeaderMap::new(), load)
        .await?;
    stand.until(SATURATION, |value| value >= 1.0).await?;
    let mut ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false))).header("x-test-id", ID);
    let steering = [
        ("x-gateway-destination-endpoint", forged.as_str()),
        ("x-gateway-destination-endpoint-subset", &forged),
        ("x-gateway-destination-endpoint-served", &forged),
        ("x-gateway-destination-endpoint-scores", &forged),
        ("x-gateway-model-name-rewrite", "gpt-99"),
        ("x-llm-d-model-name-rewrite", "gpt-99"),
        ("x-prefiller-host-port", &forged),
        ("x-encoder-hosts-ports", &forged),
        ("x-data-parallel-host-port", &forged),
    ];
    for (name, value) in steering {
        ask = ask.header(name, value);
    }
    let answer = stand.client.send(Way::Unstripped, ask).await?;
    busy.post(
        "/admin/config",
        http::HeaderMap::new(),
        r#"{"metrics": null}"#,
    )
    .await?;
    stand.until(SATURATION, |value| value < 1.0).await?;
    ensure!(
        answer.status == 200 && answer.pod() != Some("llama-0"),
        "{} from {:?}: {}",
        answer.status,
        answer.pod(),
        answer.text()
    );
    let seen = stand.seen_by_server(&answer, ID).await?;
    for (name, _) in steering {
        let value = &seen["headers"][name];
        // the picked endpoints are the endpoint picker's own word
        let own = name == "x-gateway-destination-endpoint"
            && value
                .as_str()
                .is_some_and(|value| !value.starts_with(&forged));
        ensure!(
            own || *value == Value::Null,
            "the server got {name}: {value}"
        );
    }
    Ok(())
}

fn refused(answer: &Answer, status: u16, reason: &str, dropped: Option<&str>) -> Result<()> {
    let header = answer.headers.get("x-llm-d-request-dropped-reason");
    let header = header.and_then(|value| value.to_str().ok());
    let error = &answer.json()["error"];
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(
        answer.status == status
            && error["type"] == reason
            && error["code"] == status
            && !message.is_empty()
            && header == dropped
            && answer.headers["content-type"] == "application/json",
        "{} {:?}: {}",
        answer.status,
        answer.headers,
        answer.text()
    );
    Ok(())
}
