//! Istio's own support of InferencePools.

use std::io::Write as _;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    dump, picks,
    stand::{NAMESPACE, OF_GATEWAY_API, Stand},
};

pub(crate) const VALUES: &str = "Values: InferencePool";
/// As the fixture has it: the `DestinationRule` of upstream names no server.
const WITHOUT_SNI: &str = "provider.istio.destinationRule.trafficPolicy.tls.mode=SIMPLE,\
    provider.istio.destinationRule.trafficPolicy.tls.insecureSkipVerify=true,\
    provider.istio.destinationRule.trafficPolicy.tls.sni=";

/// Tests without istiod run the fixture, which must be what istiod makes today.
pub(crate) async fn what_istiod_makes_is_the_fixture(stand: &Stand) -> Result<()> {
    stand
        .release(VALUES, "llama", &["--set", WITHOUT_SNI])
        .await?;
    let fixture = dump::fixture()?;
    let outcome = stand
        .configured(OF_GATEWAY_API, "the gateway is as the fixture", |dump| {
            let names = fixture.clusters.iter();
            let names = names.filter_map(|cluster| cluster["name"].as_str());
            let found = dump::differences(&dump::part(dump, names)?, &fixture);
            ensure!(found.is_empty(), "{}", found.join("\n"));
            Ok(())
        })
        .await;
    if outcome.is_err() {
        keep(&stand.dump(OF_GATEWAY_API).await?)?;
    }
    outcome
}

/// For whoever renews the fixture.
fn keep(dump: &Value) -> Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix("istio-config-dump-")
        .suffix(".json")
        .tempfile()?;
    writeln!(file, "{dump:#}")?;
    let (_, path) = file.keep()?;
    eprintln!("the gateway's config_dump: {}", path.display());
    Ok(())
}

pub(crate) async fn forced_picks_are_served(stand: &Stand) -> Result<()> {
    stand.release(VALUES, "llama", &[]).await?;
    let gateway = stand.requests(OF_GATEWAY_API).await?;
    let servers = stand.servers(NAMESPACE).await?;
    picks::are_served(&gateway, "llama", &servers).await
}
