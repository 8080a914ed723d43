//! Prints the CustomResourceDefinition of one of our kinds as YAML; `cargo xtask crds` puts them in their places.
#![expect(clippy::print_stdout, reason = "a terminal program")]

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let made = match std::env::args().nth(1).as_deref() {
        Some("inferencepoolimports") => crd::crd_yaml()?,
        Some("clusterselectionpolicies") => crd::selection_policy_crd_yaml()?,
        _ => return Err("expected inferencepoolimports or clusterselectionpolicies".into()),
    };
    print!("{made}");
    Ok(())
}
