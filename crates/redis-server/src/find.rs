//! Where the program is.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Where the program is, whatever else could be found.
const VARIABLE: &str = "REDIS_SERVER_BIN";
/// The first that is found is used.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// There is no Redis.
#[derive(Debug, thiserror::Error)]
pub enum MissingRedis {
    /// The variable names something else.
    #[error("{VARIABLE} is set, but {} is no program: correct or unset it", .0.display())]
    NotThere(PathBuf),
    /// It is nowhere.
    #[error(
        "no Redis: looked in {VARIABLE} (not set), for redis-server and valkey-server on PATH, and in {}; run `cargo \
         xtask tools --only redis`, or install one of them", .0.display()
    )]
    Nowhere(PathBuf),
}

/// The program that `REDIS_SERVER_BIN` names, else `redis-server` or `valkey-server` on `PATH`, else the one that
/// `cargo xtask tools` keeps under `target/tools`.
///
/// # Errors
/// Says what to do.
pub fn find() -> Result<PathBuf, MissingRedis> {
    let named = env::var_os(VARIABLE).filter(|it| !it.is_empty());
    let path = env::var_os("PATH").unwrap_or_default();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = crates.and_then(Path::parent).unwrap_or(Path::new("."));
    find_in(named, path, root.join("target/tools"))
}

fn find_in(
    named: Option<OsString>,
    path: OsString,
    cache: PathBuf,
) -> Result<PathBuf, MissingRedis> {
    if let Some(named) = named.map(PathBuf::from) {
        let found = is_program(&named);
        return if found {
            Ok(named)
        } else {
            Err(MissingRedis::NotThere(named))
        };
    }
    let in_place = |place: PathBuf| NAMES.map(|name| place.join(name));
    let mut all = env::split_paths(&path)
        .chain([cache.clone()])
        .flat_map(in_place);
    all.find(|it| is_program(it))
        .ok_or(MissingRedis::Nowhere(cache))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_program(place: &Path, name: &str) -> PathBuf {
        let path = place.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_variable_wins_over_the_path_and_the_path_over_the_cache() {
        let (on_path, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let look = |named: Option<&Path>| {
            let named = named.map(|it| it.as_os_str().to_owned());
            find_in(named, on_path.path().into(), cache.path().to_owned())
        };
        let text = look(None).unwrap_err().to_string();
        assert!(text.contains("cargo xtask tools"), "{text}");
        let cached = mk_program(cache.path(), "redis-server");
        assert_eq!(look(None).unwrap(), cached);
        let found = mk_program(on_path.path(), "valkey-server");
        assert_eq!(look(None).unwrap(), found);
        assert_eq!(look(Some(&cached)).unwrap(), cached);
        let text = look(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(text.contains("/nowhere is no program"), "{text}");
    }
}
