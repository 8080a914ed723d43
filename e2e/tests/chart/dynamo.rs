//! A release with Processor and Router: each part finds the others by what the chart gives it.

use std::{collections::BTreeMap, io::Write as _};

use anyhow::Result;
use serde_json::json;
use testbed::{Cluster, Requests, eventually};

use crate::{
    helm::chart,
    release::answered,
    stand::{SOON, Stand},
};

pub(crate) const NAMESPACE: &str = "dynamo";

const VALUES: &str = "
image: {hub: registry.example.com/isthmus}
processor:
  enabled: true
  models: [{name: llama, path: llama}]
  modelsVolume:
    configMap:
      name: tokenizers
      items:
      - {key: tokenizer.json, path: llama/tokenizer.json}
      - {key: tokenizer_config.json, path: llama/tokenizer_config.json}
  tokenTransfer: cache
router:
  enabled: true
worker:
  kind: sim
  replicas: 2
  model: llama
httpRoute:
  create: true
  inferenceGatewayNamespace: gateways
";

pub(crate) async fn ids_reach_a_worker_by_key_and_the_router_chooses_it(
    stand: &Stand,
) -> Result<()> {
    let wait = ["--wait", "--timeout", "2m"];
    with_release(stand, &wait, async || {
        let requests = Requests::new(&stand.gateway);
        eventually("a worker gets ids by key", SOON, async || {
            let answer = answered(&requests).await;
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            let source = answer.headers.get("x-inference-token-source");
            if source.is_some_and(|source| source == "key") {
                Ok(())
            } else {
                Err(format!("{:?}", answer.headers))
            }
        })
        .await?;
        // what a worker published of a prompt leads the next one there
        eventually(
            "a prompt is found in a worker's KV cache",
            SOON,
            async || {
                let answer = answered(&requests).await;
                answer.map_err(|error| format!("{error:#}"))?;
                let page = router_page(&stand.cluster).await?;
                let decisions = page
                    .lines()
                    .filter(|line| line.starts_with("router_decisions"));
                let decisions: Vec<&str> = decisions.collect();
                let exact = decisions
                    .iter()
                    .find_map(|line| line.split_once("exact\"} "));
                if exact.is_some_and(|(_, count)| count != "0") {
                    Ok(())
                } else {
                    Err(format!("{decisions:?}"))
                }
            },
        )
        .await?;
        Ok(())
    })
    .await
}

/// Does something with a release of [`VALUES`], installed with these arguments besides.
pub(crate) async fn with_release(
    stand: &Stand,
    arguments: &[&str],
    test: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let (helm, cluster) = (&stand.helm, &stand.cluster);
    add_tokenizer(cluster).await?;
    let mut values = tempfile::NamedTempFile::new()?;
    values.write_all(VALUES.as_bytes())?;
    let (chart, values) = (chart(), values.into_temp_path());
    let install = [
        "install",
        "pool",
        &*chart.to_string_lossy(),
        "--namespace",
        NAMESPACE,
        "--values",
        &*values.to_string_lossy(),
    ];
    helm.run(cluster, &[&install, arguments].concat()).await?;
    let outcome = test().await;
    helm.run(
        cluster,
        &["uninstall", "pool", "--namespace", NAMESPACE, "--wait"],
    )
    .await?;
    outcome
}

/// The Router's metrics.
async fn router_page(cluster: &Cluster) -> Result<String, String> {
    let page = "services/pool-router:http-metrics/proxy/metrics";
    let page = format!("/api/v1/namespaces/{NAMESPACE}/{page}");
    let page = cluster.kubectl(&["get", "--raw", &page]).await;
    page.map_err(|error| error.to_string())
}

/// Of which each byte of text is a token, and a template for chats.
async fn add_tokenizer(cluster: &Cluster) -> Result<()> {
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": bytes,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": byte_tokens(), "merges": []},
    });
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tokenizers", "namespace": NAMESPACE},
        "data": {
            "tokenizer.json": tokenizer.to_string(),
            "tokenizer_config.json": json!({"chat_template": template}).to_string(),
        },
    });
    Ok(cluster.apply_yaml(&object.to_string()).await?)
}

/// Each byte's sign in a vocabulary of bytes: its own if it can be printed, else one above them.
fn byte_tokens() -> BTreeMap<char, u32> {
    let mut others = (256..).filter_map(char::from_u32);
    (0..=u8::MAX)
        .map(|byte| {
            let sign = match byte {
                33..=126 | 161..=172 | 174..=255 => char::from(byte),
                _ => others.next().unwrap_or_default(),
            };
            (sign, u32::from(byte))
        })
        .collect()
}
