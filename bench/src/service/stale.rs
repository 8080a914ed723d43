//! How long what one replica of a Metadata-Center acknowledged is not seen at another.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use memchr::memmem;
use tokio::time::Instant;

use super::{Wire, calls::Request};

/// What was seen of many writes.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    /// Charges that the first look at another replica did not show.
    pub loads_missed: usize,
    /// Of each saved prompt: from its acknowledgement until another replica knew it.
    pub caches: Vec<Duration>,
}

/// Endpoints of a cluster: a page of loads stays small.
const ENDPOINTS: usize = 100;
/// Past every promise.
const NEVER: Duration = Duration::from_secs(5);

/// Writes at one replica and looks at the other, in turn.
/// # Errors
/// When a call fails, or a prompt does not come within 5 s.
pub async fn stale(replicas: [SocketAddr; 2], writes: usize) -> Result<Stale> {
    let [one, other] = replicas;
    let mut wires = [Wire::connect(one).await?, Wire::connect(other).await?];
    let (mut request, mut stale) = (Request::default(), Stale::default());
    for nth in 0..writes {
        wires.reverse();
        let [writer, reader] = &mut wires;
        let cluster = format!("bench-{}", nth / ENDPOINTS);
        let ip = format!("10.0.0.{}", nth % ENDPOINTS + 1);
        let named = format!(r#""cluster":"{cluster}""#);
        let charge = format!(r#"{{{named},"request_id":"stale-{nth}","ip":"{ip}"}}"#);
        writer
            .call(request.json("POST", "/v1/load/stats", &charge))
            .await?;
        let page = format!("/v1/load/stats?cluster={cluster}");
        let loads = reader.call(request.json("GET", &page, "")).await?;
        let of_it = format!(r#""ip":"{ip}""#);
        if memmem::find(loads, of_it.as_bytes()).is_none() {
            stale.loads_missed += 1;
        }
        let prompt = format!(r#"{named},"prompt_hash":[{}]"#, nth + 1);
        let save = format!(r#"{{{prompt},"ip":"{ip}"}}"#);
        writer
            .call(request.json("POST", "/v1/cache/save", &save))
            .await?;
        let query = format!("{{{prompt}}}");
        let since = Instant::now();
        loop {
            let found = reader
                .call(request.json("POST", "/v1/cache/query", &query))
                .await?;
            if memmem::find(found, of_it.as_bytes()).is_some() {
                break;
            }
            ensure!(
                since.elapsed() < NEVER,
                "the other replica does not know it: {}",
                String::from_utf8_lossy(found)
            );
        }
        stale.caches.push(since.elapsed());
    }
    Ok(stale)
}
