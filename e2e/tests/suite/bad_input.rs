//! What cannot be used is refused clearly, and nothing else suffers.

use std::time::Duration;

use anyhow::{Result, ensure};
use crd::conditions;
use http::{HeaderMap, HeaderValue};
use testbed::{eventually, isthmus};

use crate::environment::{Environment, pool_condition};

const SOON: Duration = Duration::from_secs(20);
const CHAT: &str = "/v1/chat/completions";

pub(crate) async fn a_malformed_body_is_refused_with_400(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    for body in [
        r#"{"model": "llama", "messages": ["#,
        r#"{"model":"llama","model":"other","messages":[]}"#,
        r#"{"messages":[]}"#,
        "",
    ] {
        let answer = environment
            .gateway
            .post(CHAT, HeaderMap::new(), body)
            .await?;
        ensure!(
            answer.status == 400,
            "{body:?}: {}: {}",
            answer.status,
            answer.text()
        );
        ensure!(
            answer.json()["error"]["message"].is_string(),
            "{body:?}: not an error in the API's form: {}",
            answer.text()
        );
    }
    let answer = environment.gateway.chat("llama", "and on").await?;
    ensure!(answer.status == 200, "afterwards: {}", answer.status);
    Ok(())
}

pub(crate) async fn a_huge_header_is_refused_and_the_gateway_goes_on(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let mut headers = HeaderMap::new();
    headers.insert("x-huge", HeaderValue::from_str(&"x".repeat(1 << 20))?);
    // Envoy may answer 431 and close while the megabyte is still on its way: then the client sees the connection end
    match environment
        .gateway
        .post(CHAT, headers, r#"{"model":"llama"}"#)
        .await
    {
        Ok(answer) => ensure!(answer.status == 431, "{}: {}", answer.status, answer.text()),
        Err(error) => ensure!(!error.to_string().contains("no answer in"), "{error}"),
    }
    let answer = environment.gateway.chat("llama", "and on").await?;
    ensure!(answer.status == 200, "afterwards: {}", answer.status);
    Ok(())
}

pub(crate) async fn an_unknown_model_is_refused_with_404(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let answer = environment.gateway.chat("no-such-model", "hello").await?;
    ensure!(answer.status == 404, "{}: {}", answer.status, answer.text());
    ensure!(answer.text().contains("no-such-model"), "{}", answer.text());
    Ok(())
}

pub(crate) async fn a_wrong_export_value_exports_nothing_and_says_so(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    isthmus::annotate(
        &environment.east,
        "inference.networking.x-k8s.io/export=cluster-set",
    )
    .await?;
    eventually("Exported says why not", SOON, async || {
        let exported = pool_condition(&environment.east, conditions::EXPORTED).await?;
        let exported = exported.ok_or("no condition Exported")?;
        let clear =
            exported.message.contains("cluster-set") && exported.message.contains("ClusterSet");
        if exported.status == "False" && exported.reason == "NotSupported" && clear {
            Ok(())
        } else {
            Err(format!("{exported:?}"))
        }
    })
    .await?;
    environment.no_import(SOON).await
}

pub(crate) async fn a_garbage_kubeconfig_leaves_the_other_members_alone(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let mut members = environment.members.clone();
    members.insert(
        "north".to_owned(),
        "apiVersion: v1\nclusters: {{{".to_owned(),
    );
    members.insert("Not_A_Name".to_owned(), members["east"].clone());
    isthmus::set_members(&environment.west, &members).await?;
    let result = async {
        eventually("the controller reports the bad members", SOON, async || {
            let metrics = environment
                .controller_metrics()
                .await
                .map_err(|error| format!("{error:#}"))?;
            let lines: Vec<_> = metrics
                .lines()
                .filter(|line| line.starts_with("mci_member_"))
                .collect();
            if lines
                .iter()
                .any(|line| line.contains("north") && line.contains("BadCredentials"))
            {
                Ok(())
            } else {
                Err(lines.join("\n"))
            }
        })
        .await?;
        // the others go on: a withdrawal and an export still pass
        isthmus::withdraw(&environment.east).await?;
        environment.no_import(SOON).await?;
        isthmus::export(&environment.east).await?;
        environment.serving().await
    }
    .await;
    isthmus::set_members(&environment.west, &environment.members).await?;
    result
}
