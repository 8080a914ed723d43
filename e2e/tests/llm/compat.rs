//! Endpoint pickers that make the calls of the former Metadata-Center, over TLS and with a token.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use testbed::pki::Authority;
use testbed::standalone::{MODEL, Ports, Setup, Standalone};
use testbed::{Requests, eventually};

use crate::stand::{
    LONG, PATIENT, RULES, SERVER, SOON, Stand, had_requests, prompt, several_had_more, write_rules,
};

const OPEN: usize = 9;
/// Of many requests one is answered in time, on any machine.
const ANSWERED: Duration = Duration::from_secs(30);

pub(crate) async fn the_calls_of_the_former_service_serve_over_tls_with_a_token(
    stand: &Stand,
) -> Result<()> {
    let files = stand.standalone.files().join("compat");
    fs::create_dir_all(&files).context("making a directory")?;
    write_rules(&files)?;
    write_secrets(&files)?;
    let mut setup = Setup {
        servers: 3,
        pickers: 2,
        center: true,
        server_flags: words(SERVER),
        center_flags: words("--cert-path . --token-file tokens"),
        ..Setup::sample(Ports::free()?)
    };
    setup.epp_flags.extend(words(&format!(
        "--llm-filter-config {RULES} --metadata-center-api compat --metadata-center-tls \
         --metadata-center-ca-file ca.crt --metadata-center-token-file token {PATIENT}"
    )));
    let compat = setup.start(&files, &stand.logs).await?;
    let result = serve(&compat).await;
    compat.stop().await;
    result
}

async fn serve(compat: &Standalone) -> Result<()> {
    let requests = Requests::new(compat.url());
    let text = prompt("a lighthouse keeper", 60);
    let first = requests.chat(MODEL, &text).await?;
    ensure!(first.status == 200, "{}", first.text());
    // No request waits for its prompt to be saved.
    eventually("the prompt is saved", SOON, async || {
        match compat.metric(&answered("cache_save")).await? {
            Some(saved) if saved > 0.0 => Ok(()),
            saved => Err(format!("{saved:?}")),
        }
    })
    .await?;
    // Only the service knows what the other picker sent.
    let before = had_requests(compat).await?;
    for nth in 0..9 {
        let again = requests.chat(MODEL, &text).await?;
        ensure!(
            again.pod() == first.pod(),
            "{nth}: {:?}, not {:?}",
            again.pod(),
            first.pod()
        );
    }
    several_had_more(compat, &before).await?;
    let open = (0..OPEN).map(|nth| {
        let text = prompt(&format!("the long number {nth}"), 1);
        let requests = &requests;
        async move { requests.chat_stream(MODEL, &text, LONG).await }
    });
    let streams = try_join_all(open).await?;
    counts(compat, OPEN as u64).await?;
    drop(streams);
    counts(compat, 0).await?;
    for call in ["load", "cache_query", "add", "remove", "cache_save"] {
        let count = compat
            .metric(&answered(call))
            .await
            .map_err(anyhow::Error::msg)?;
        ensure!(count.is_some_and(|it| it > 0.0), "{call}: {count:?}");
    }
    // A busy machine answers late now and then: what counts is the last answer to each picker.
    eventually("both pickers are answered", ANSWERED, async || {
        let again = requests.chat(MODEL, &text).await;
        again.map_err(|error| error.to_string())?;
        match compat.metric("llm_degraded").await? {
            Some(0.0) => Ok(()),
            degraded => Err(format!("llm_degraded: {degraded:?}")),
        }
    })
    .await?;
    compat.kill_center().await;
    let without = requests.chat(MODEL, &text).await?;
    ensure!(without.status == 200, "without it: {}", without.text());
    Ok(())
}

/// The count of answers to a call.
fn answered(call: &str) -> String {
    format!("epp_metadata_request_duration_seconds_count{{call=\"{call}\",outcome=\"ok\"}}")
}

/// Waits until the service counts so many requests.
async fn counts(compat: &Standalone, wanted: u64) -> Result<()> {
    let center = Requests::new(compat.center_admin_url());
    let what = format!("{wanted} requests at the Metadata-Center");
    eventually(&what, SOON, async || {
        let page = center.get("/metrics").await;
        let page = page.map_err(|error| error.to_string())?.text();
        let lines = page.lines().filter(|line| line.starts_with("queued_num{"));
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        let sum: u64 = counts.sum();
        if sum == wanted {
            Ok(())
        } else {
            Err(sum.to_string())
        }
    })
    .await?;
    Ok(())
}

/// The service's certificate and tokens, the CA and the token of its callers.
fn write_secrets(files: &Path) -> Result<()> {
    let authority = Authority::make("metadata-center")?;
    let server = authority.server(&[Ipv4Addr::LOCALHOST], &["metadata-center"])?;
    for (name, text) in [
        ("tls.crt", server.certificate),
        ("tls.key", server.key),
        ("ca.crt", authority.pem()),
        ("tokens", "of-another\ns3cret\n".to_owned()),
        ("token", "s3cret\n".to_owned()),
    ] {
        fs::write(files.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
