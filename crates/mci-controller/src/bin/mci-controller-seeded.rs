//! `mci-controller --seeded-fault NAME`: the controller with a bug, for `cargo xtask soak --prove`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::run(mci_controller::run)
}
