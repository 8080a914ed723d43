//! The demo of the endpoint picker alone: simulated model servers, a file of them, `epp` and Envoy, without Kubernetes.

mod show;

use anyhow::{Context, Result};
use testbed::standalone::{Ports, Setup, Standalone};

use crate::place::Place;

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!("Isthmus: an endpoint picker in front of model servers, without Kubernetes.\n");
    let place = Place::make("demo-epp")?;
    let setup = Setup::sample(Ports::free().context("looking for free ports")?);
    let show = async |standalone: &Standalone, took| {
        show::parts(standalone, took);
        Box::pin(show::requests(standalone)).await
    };
    place.run(setup, show, keep.then_some(show::kept)).await
}
