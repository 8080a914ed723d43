//! The demo of the endpoint picker alone: simulated model servers, a file of them, `epp` and Envoy, without Kubernetes.

mod show;

use anyhow::{Context, Result};
use testbed::standalone::{Ports, Setup};
use tokio::time::Instant;

use crate::place::Place;

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!("Isthmus: an endpoint picker in front of model servers, without Kubernetes.\n");
    let mut place = Place::make("demo-epp")?;
    let begin = Instant::now();
    let setup = Setup::sample(Ports::free().context("looking for free ports")?);
    let logs = place.path.join("logs");
    let shown = async {
        let standalone = setup.start(&place.path, &logs).await?;
        show::parts(&standalone, begin.elapsed());
        Box::pin(show::requests(&standalone)).await?;
        anyhow::Ok(standalone)
    };
    let standalone = match shown.await {
        Ok(standalone) => standalone,
        Err(error) => {
            place.stays = true;
            return Err(error.context(format!("the demo failed; logs: {}", logs.display())));
        }
    };
    println!("\nDone in {:.1} s.", begin.elapsed().as_secs_f64());
    if keep {
        show::kept(&standalone);
        // until a signal ends the other branch of main
        std::future::pending::<()>().await;
    }
    standalone.stop().await;
    Ok(())
}
