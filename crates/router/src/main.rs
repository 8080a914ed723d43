//! The `router` program; see the crate `router`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Fails only if a provider is there already, which is then as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    process::run(router::run)
}
