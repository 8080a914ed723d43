//! A demo without Kubernetes: where it has its files, and its way from start to end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::standalone::{Setup, Standalone};
use tokio::time::Instant;

/// The directory of the files and logs; it goes with this value, but where the demo failed.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    stays: bool,
}

// === impl Place ===

impl Place {
    /// Below `target`, in a directory of this name.
    pub(crate) fn make(name: &str) -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| workspace.join("target"), PathBuf::from);
        let path = target.join(name).join(std::process::id().to_string());
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        let path = path.canonicalize().context("the demo's directory")?;
        Ok(Self { path, stays: false })
    }

    /// Starts the programs and shows what they do, from how long that took on; then ends them. With `keep` they stay up,
    /// as `kept` tells. Where something fails the files stay.
    pub(crate) async fn run(
        mut self,
        setup: Setup,
        show: impl AsyncFnOnce(&Standalone, Duration) -> Result<()>,
        kept: Option<fn(&Standalone)>,
    ) -> Result<()> {
        let begin = Instant::now();
        let logs = self.path.join("logs");
        let shown = async {
            let standalone = setup.start(&self.path, &logs).await?;
            show(&standalone, begin.elapsed()).await?;
            anyhow::Ok(standalone)
        };
        let standalone = match shown.await {
            Ok(standalone) => standalone,
            Err(error) => {
                self.stays = true;
                return Err(error.context(format!("the demo failed; logs: {}", logs.display())));
            }
        };
        println!("\nDone in {:.1} s.", begin.elapsed().as_secs_f64());
        if let Some(kept) = kept {
            kept(&standalone);
            // until a signal ends the other branch of main
            std::future::pending::<()>().await;
        }
        standalone.stop().await;
        Ok(())
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
