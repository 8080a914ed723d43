//! The demo of the LLM filter: three endpoint pickers of one pool that share load and prompt caches through a
//! Metadata-Center and Redis.

mod show;

use std::time::Duration;

use anyhow::{Context, Result};
use testbed::standalone::{MODEL, Ports, Setup, Standalone};

use crate::place::Place;

/// Enough that chance would not spread requests evenly.
const SERVERS: u8 = 10;
/// The endpoint pickers' LLM filter configuration.
const RULES: &str = "llm.yaml";
/// The name under which load and caches are shared.
const CLUSTER: &str = "demo/llama";

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!(
        "Isthmus: three endpoint pickers of one pool, which share load and prompt caches through a Metadata-Center.\n"
    );
    let place = Place::make("demo-llm")?;
    let rules = place.path.join(RULES);
    std::fs::write(&rules, self::rules()).context("writing the rules")?;
    let mut setup = Setup {
        servers: SERVERS,
        pickers: 3,
        center: true,
        ..Setup::sample(Ports::free().context("looking for free ports")?)
    };
    setup
        .epp_flags
        .extend(["--llm-filter-config", RULES].map(str::to_owned));
    let show = async |standalone: &Standalone, took| {
        show::parts(standalone, took);
        Box::pin(show::all(standalone)).await
    };
    place.run(setup, show, keep.then_some(show::kept)).await
}

/// One rule for the one model: the score alone decides.
fn rules() -> String {
    format!(
        "protocol: openai\n\
         algorithm: inference_lb\n\
         model_mapping_rule:\n  \
           {MODEL}:\n    \
             rules:\n    \
             - {{scene_name: demo, cluster: {CLUSTER}, backend: vllm}}\n"
    )
}

/// The state is right again so soon after any fault.
const REPAIRED: Duration = Duration::from_secs(5);
