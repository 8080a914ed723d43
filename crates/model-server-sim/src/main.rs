//! Runs simulated model servers until SIGTERM.

use std::process::ExitCode;

use anyhow::Context;
use mimalloc::MiMalloc;
use model_server_sim::{Args, serve_all};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    process::run(async |args: Args, shutdown| {
        let mut servers = Vec::new();
        for settings in args.settings()? {
            let address = settings.address;
            let listener = process::listen(address).with_context(|| {
                format!("cannot listen on {address}: see --bind, --port and --bind-base")
            })?;
            let address = listener
                .local_addr()
                .context("the listening socket has no address")?;
            tracing::info!(%address, model = settings.model, rank = settings.rank, "serving");
            servers.push((listener, settings));
        }
        Ok(serve_all(servers, shutdown).await?)
    })
}
