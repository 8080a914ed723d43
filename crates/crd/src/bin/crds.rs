//! Prints the CustomResourceDefinition of InferencePoolImport as YAML; `cargo xtask crds` puts it in its places.
#![expect(clippy::print_stdout, reason = "a terminal program")]

fn main() -> Result<(), serde_yaml::Error> {
    print!("{}", crd::crd_yaml()?);
    Ok(())
}
