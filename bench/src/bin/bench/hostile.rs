//! Members that hold more than is kept of one.

use std::time::Duration;

use anyhow::{Context, Result};
use apiserver_sim::{POOLS, Server, exported_pool};
use bench::{Figure, NS};
use serde_json::json;
use tokio::time::sleep;

use crate::{PATIENCE, Run, megabytes};

const MEMBERS: usize = 10;
const HOSTILE: usize = 2;
/// Of one hostile member: with their parents some 130 MB, twice of what is kept.
const POOLS_EACH: usize = 6000;
/// As many as the CRD admits.
const PARENTS: usize = 32;
/// Lists that do not fit are begun again within this.
const REST: Duration = Duration::from_mins(1);

// === impl Run ===

impl Run {
    pub(crate) async fn hostile(&mut self) -> Result<()> {
        let fleet = self.fleet(MEMBERS, true)?;
        fleet.export(1, 1);
        let hostile = fleet
            .servers()
            .get(MEMBERS - HOSTILE..)
            .context("members")?;
        for server in hostile {
            flood(server);
        }
        let (controller, _) = Self::start(&fleet, "hostile").await?;
        fleet.settled(1, 1, PATIENCE).await?;
        sleep(REST).await;
        let label = format!("{MEMBERS} members, {HOSTILE} hostile");
        let peak = controller.usage()?.peak_rss;
        let what = format!("{label}: most RSS ever");
        self.note(Figure::new(what, megabytes(peak), "MB"));
        let missing = fleet.missing(1, 1);
        let what = format!("{label}: imports lost or short");
        self.note(Figure::new(what, missing as f64, ""));
        controller.stop().await?;
        Ok(())
    }
}

/// Fills a server with exported pools that many Gateways have accepted.
fn flood(server: &Server) {
    let parents: Vec<_> = (0..PARENTS)
        .map(|number| {
            json!({
                "parentRef": {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "namespace": "n".repeat(63),
                    "name": format!("{}-{number}", "g".repeat(250)),
                },
                "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            })
        })
        .collect();
    for number in 0..POOLS_EACH {
        let mut pool = exported_pool(NS, &format!("flood-{number:05}"));
        pool["status"] = json!({"parents": parents});
        server.put(&POOLS, pool);
    }
}
