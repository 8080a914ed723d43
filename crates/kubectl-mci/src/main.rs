//! `kubectl-mci`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_mci::main()
}
