//! What cannot be used is refused clearly, and nothing else suffers.

use std::time::Duration;

use anyhow::{Result, ensure};
use crd::conditions;
use http::HeaderMap;
use testbed::{eventually, isthmus};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use e2e::pair::{Pair, pool_condition};

const SOON: Duration = Duration::from_secs(20);
const CHAT: &str = "/v1/chat/completions";

pub(crate) async fn a_malformed_body_is_refused_with_400(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    for body in [
        r#"{"model": "llama", "messages": ["#,
        r#"{"model":"llama","model":"other","messages":[]}"#,
        r#"{"messages":[]}"#,
        "",
    ] {
        let answer = pair.gateway.post(CHAT, HeaderMap::new(), body).await?;
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
    let answer = pair.gateway.chat("llama", "and on").await?;
    ensure!(answer.status == 200, "afterwards: {}", answer.status);
    Ok(())
}

pub(crate) async fn a_huge_header_is_refused_and_the_gateway_goes_on(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let answer = timeout(SOON, huge_header(&pair.gateway_address)).await??;
    let status = answer.lines().next().unwrap_or_default().to_owned();
    ensure!(status.contains(" 431 "), "{status:?}");
    let answer = pair.gateway.chat("llama", "and on").await?;
    ensure!(answer.status == 200, "afterwards: {}", answer.status);
    Ok(())
}

/// What comes back while a header of a megabyte is being sent: the answer comes before its end, and the connection is
/// closed under the rest.
async fn huge_header(address: &str) -> Result<String> {
    let (mut from, mut to) = TcpStream::connect(address).await?.into_split();
    let send = async {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nx-huge: ");
        to.write_all(head.as_bytes()).await?;
        to.write_all(&vec![b'x'; 1 << 20]).await?;
        to.write_all(b"\r\ncontent-length: 0\r\n\r\n").await
    };
    let receive = async {
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            match from.read(&mut part).await? {
                0 => break,
                count => answer.extend(part.iter().take(count)),
            }
        }
        anyhow::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    // how far the sending came is of no interest: the answer is
    let (_, answer) = tokio::join!(send, receive);
    answer
}

pub(crate) async fn an_unknown_model_is_refused_with_404(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let answer = pair.gateway.chat("no-such-model", "hello").await?;
    ensure!(answer.status == 404, "{}: {}", answer.status, answer.text());
    ensure!(answer.text().contains("no-such-model"), "{}", answer.text());
    Ok(())
}

pub(crate) async fn a_wrong_export_value_exports_nothing_and_says_so(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    isthmus::annotate(
        &pair.east,
        "inference.networking.x-k8s.io/export=cluster-set",
    )
    .await?;
    eventually("Exported says why not", SOON, async || {
        let exported = pool_condition(&pair.east, conditions::EXPORTED).await?;
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
    pair.no_import(SOON).await
}
