//! The demo of the external stage: a Processor that makes token ids of prompts, a Router that knows what the model servers'
//! KV caches hold, and an endpoint picker that asks them.

mod show;

use anyhow::{Context, Result};
use testbed::standalone::{ExternalSetup, Ports, Setup, Standalone};

use crate::place::Place;

/// From so many bytes of ids on they go by key, so that a prompt of some pages does.
const BY_KEY: &str = "2KiB";

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!(
        "Isthmus: prompts become token ids in a Processor, and a Router chooses by the workers' KV caches.\n"
    );
    let place = Place::make("demo-dynamo")?;
    let flags = ["--token-transfer-threshold", BY_KEY];
    let setup = Setup {
        servers: 4,
        external: Some(ExternalSetup {
            processor_flags: flags.map(str::to_owned).into(),
            ..ExternalSetup::default()
        }),
        ..Setup::sample(Ports::free().context("looking for free ports")?)
    };
    let show = async |standalone: &Standalone, took| {
        show::parts(standalone, took)?;
        Box::pin(show::all(standalone)).await
    };
    place.run(setup, show, keep.then_some(show::kept)).await
}
