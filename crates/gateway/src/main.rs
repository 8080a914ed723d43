//! The importing gateway of one cluster; see the crate `gateway`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // One crypto provider for the program; that another was first is all that can go wrong.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    process::run(gateway::run)
}
