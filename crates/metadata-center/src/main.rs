//! The `metadata-center` program; see the crate `metadata_center`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::run(metadata_center::run)
}
