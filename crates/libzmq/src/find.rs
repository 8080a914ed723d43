//! Where the library is.

use std::{
    env,
    path::{Path, PathBuf},
};

/// Where the library is, whatever else could be found.
const VARIABLE: &str = "LIBZMQ";
/// Where `cargo xtask tools` puts it, under `target`.
const CACHED: &str = "tools/libzmq/libzmq.so";

/// There is no library.
#[derive(Debug, thiserror::Error)]
pub enum MissingLibrary {
    /// The variable names something else.
    #[error("{VARIABLE} is set, but {} is not there: correct or unset it", .0.display())]
    NotThere(PathBuf),
    /// It is nowhere.
    #[error("no libzmq: looked in {VARIABLE} (not set) and at {}; run `cargo xtask tools --only libzmq`", .0.display())]
    Nowhere(PathBuf),
}

/// The one that `LIBZMQ` names, else the one that `cargo xtask tools` keeps under `target/tools`.
///
/// # Errors
/// Says what to do.
pub fn find() -> Result<PathBuf, MissingLibrary> {
    if let Some(named) = env::var_os(VARIABLE).filter(|it| !it.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(named)
        } else {
            Err(MissingLibrary::NotThere(named))
        };
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = crates.and_then(Path::parent).unwrap_or(Path::new("."));
    let cached = root.join("target").join(CACHED);
    if cached.is_file() {
        Ok(cached)
    } else {
        Err(MissingLibrary::Nowhere(cached))
    }
}
