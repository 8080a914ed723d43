//! The demo of the endpoint picker alone: simulated model servers, a file of them, `epp` and Envoy, without Kubernetes.

mod show;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testbed::standalone::{Ports, Setup};
use tokio::time::Instant;

/// Starts everything, shows what it does, and ends it; with `keep` leaves it up.
pub(crate) async fn run(keep: bool) -> Result<()> {
    println!("Isthmus: an endpoint picker in front of model servers, without Kubernetes.\n");
    let mut place = Place::make()?;
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

/// The directory of the files and logs; it goes with this value, but where the demo failed.
struct Place {
    path: PathBuf,
    stays: bool,
}

// === impl Place ===

impl Place {
    fn make() -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| workspace.join("target"), PathBuf::from);
        let path = target.join("demo-epp").join(std::process::id().to_string());
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        let path = path.canonicalize().context("the demo's directory")?;
        Ok(Self { path, stays: false })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.stays {
            // what cannot be removed is below `target`
            let _gone = std::fs::remove_dir_all(&self.path);
        }
    }
}
