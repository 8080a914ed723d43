//! Runs one simulated vLLM server until SIGTERM.

use std::process::ExitCode;

use anyhow::Context;
use mimalloc::MiMalloc;
use model_server_sim::{Args, serve};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    process::run(async |args: Args, shutdown| {
        let settings = args.settings()?;
        let address = settings.address;
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}: see --bind and --port"))?;
        let address = listener
            .local_addr()
            .context("the listening socket has no address")?;
        tracing::info!(%address, model = settings.model, "serving");
        Ok(serve(listener, settings, shutdown).await?)
    })
}
