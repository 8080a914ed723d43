//! The demo of the external stage: a Processor that makes token ids of prompts, a Router that knows what the model servers'
//! KV caches hold, and an endpoint picker that asks them.

mod show;

use anyhow::{Context, Result};
use testbed::standalone::{ExternalSetup, Ports, Setup, Standalone};

use crate::place::Place;

/// A prompt of some pages goes by key. A machine that does much else must not make the token cache late.
const PROCESSOR: &str = "--token-transfer-threshold 2KiB --token-store-timeout 2s";
const SERVER: &str = "--token-fetch-timeout 2s";

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!(
        "Isthmus: prompts become token ids in a Processor, and a Router chooses by the workers' KV caches.\n"
    );
    let place = Place::make("demo-dynamo")?;
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let mut setup = Setup {
        servers: 4,
        external: Some(ExternalSetup {
            processor_flags: words(PROCESSOR),
            ..ExternalSetup::default()
        }),
        ..Setup::sample(Ports::free().context("looking for free ports")?)
    };
    setup.server_flags.extend(words(SERVER));
    let show = async |standalone: &Standalone, took| {
        show::parts(standalone, took)?;
        Box::pin(show::all(standalone)).await
    };
    place.run(setup, show, keep.then_some(show::kept)).await
}
