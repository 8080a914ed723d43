//! Packages of Debian, unpacked into the cache, and Redis from there: nothing is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{find, keep, wheel::make_executable};
use crate::{
    command::{on_path, output, run_as_step},
    workspace,
};

const NAME: &str = "redis-server";
/// The one that also a Valkey of the system stands for.
const OTHER_NAME: &str = "valkey-server";
const VARIABLE: &str = "REDIS_SERVER_BIN";
/// The program is in the second; the first has its name. Both, though the system may have one of them.
const PACKAGES: [&str; 2] = ["redis-server", "redis-tools"];
/// How the cache is laid out; changes when [`START`] does.
const LAYOUT: &str = "debian 1";
/// Stands in for the program, which needs its libraries beside it. Called by a link too.
const START: &str = r#"#!/bin/sh
dir=$(dirname "$(readlink -f "$0")")/redis
libraries=$(cat "$dir/libraries")
LD_LIBRARY_PATH=$(echo "$libraries" | sed "s#^#$dir/#" | paste -s -d :)
export LD_LIBRARY_PATH
exec "$dir/usr/bin/redis-server" "$@"
"#;

/// Finds or fetches it. Order: `REDIS_SERVER_BIN`, `redis-server` or `valkey-server` on `PATH`, `target/tools`, Debian's
/// package.
pub(super) fn redis() -> Result<PathBuf> {
    if std::env::var_os(VARIABLE).is_none_or(|it| it.is_empty())
        && on_path(NAME).is_none()
        && let Some(valkey) = on_path(OTHER_NAME)
    {
        eprintln!("  using {OTHER_NAME} from PATH: {}", valkey.display());
        return Ok(valkey);
    }
    match find(NAME, VARIABLE, LAYOUT)? {
        Some(path) => Ok(path),
        None => fetch(),
    }
}

fn fetch() -> Result<PathBuf> {
    if on_path("apt-get").is_none() || on_path("dpkg").is_none() {
        bail!("no Redis: install {NAME} or {OTHER_NAME}, or set {VARIABLE}");
    }
    let part = workspace::tools().join("redis.part");
    let root = unpack("Redis", &PACKAGES, &part).with_context(|| {
        format!("fetching Redis from Debian: install {NAME} or {OTHER_NAME}, or set {VARIABLE}")
    })?;
    let libraries = library_directories(&root)?.join("\n");
    fs::write(root.join("libraries"), libraries).context("noting where the libraries are")?;
    let target = workspace::tools().join("redis");
    clear(&target)?;
    fs::rename(&root, &target).with_context(|| format!("placing {}", target.display()))?;
    let start = part.join(NAME);
    fs::write(&start, START).with_context(|| format!("writing {}", start.display()))?;
    make_executable(&start)?;
    let kept = keep(NAME, &start, LAYOUT)?;
    clear(&part)?;
    output(Command::new(&kept).arg("--version")).context("the Redis that was fetched")?;
    Ok(kept)
}

/// Fetches packages into `part` and unpacks them into the directory below it that is given back.
pub(super) fn unpack(what: &str, packages: &[&str], part: &Path) -> Result<PathBuf> {
    clear(part)?;
    fs::create_dir_all(part).with_context(|| format!("creating {}", part.display()))?;
    let apt = Apt::new(part.join("apt"));
    // the lists of the system may be absent, or name packages that are gone
    if apt.download(what, packages, part).is_err() {
        let apt = apt.with_own_lists()?;
        apt.download(what, packages, part)?;
    }
    let root = part.join("root");
    for package in packages_in(part)? {
        let mut unpack = Command::new("dpkg");
        unpack.arg("-x").arg(&package).arg(&root);
        output(&mut unpack).with_context(|| format!("unpacking {}", package.display()))?;
    }
    Ok(root)
}

pub(super) fn clear(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("clearing {}", directory.display()))?;
    }
    Ok(())
}

pub(super) fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|it| it == "deb"))
        .collect())
}

/// The directories of shared libraries among what was unpacked, as seen from there.
fn library_directories(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                open.push(entry.path());
            } else if name.to_string_lossy().contains(".so.")
                && let Ok(inside) = directory.strip_prefix(root)
            {
                found.push(inside.to_string_lossy().into_owned());
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// `apt-get`, with the lists of the system or with some of our own, which takes no root.
struct Apt {
    state: PathBuf,
    own_lists: bool,
}

impl Apt {
    fn new(state: PathBuf) -> Self {
        Self {
            state,
            own_lists: false,
        }
    }

    fn with_own_lists(self) -> Result<Self> {
        let apt = Self {
            own_lists: true,
            ..self
        };
        for directory in ["lists/partial", "cache/archives/partial"] {
            let directory = apt.state.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("creating {}", directory.display()))?;
        }
        run_as_step(
            "reading Debian's lists of packages",
            apt.get().arg("update"),
        )?;
        Ok(apt)
    }

    /// Fetches the packages, and what of their dependencies the system does not have.
    fn download(&self, what: &str, packages: &[&str], to: &Path) -> Result<()> {
        let mut plan = self.get();
        plan.args(["--simulate", "--no-install-recommends", "install"]);
        let plan = output(plan.args(packages))?;
        let plan = String::from_utf8_lossy(&plan);
        let mut download = self.get();
        download.arg("download").args(needed(&plan, packages));
        run_as_step(&format!("fetching {what} (once)"), download.current_dir(to))
    }

    fn get(&self) -> Command {
        let mut get = Command::new("apt-get");
        // unpacked by us, in a directory that no other user may read
        get.args(["--quiet", "-o", "APT::Sandbox::User="]);
        if self.own_lists {
            for (option, place) in [("Dir::State::lists", "lists"), ("Dir::Cache", "cache")] {
                let place = self.state.join(place);
                get.arg("-o").arg(format!("{option}={}", place.display()));
            }
        }
        get
    }
}

/// What a simulated installation would install, and the packages themselves in any case.
fn needed(plan: &str, packages: &[&str]) -> Vec<String> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let named = lines.filter_map(|line| line.split_whitespace().next());
    let mut needed: Vec<_> = named
        .chain(packages.iter().copied())
        .map(ToOwned::to_owned)
        .collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_lacks_is_fetched_too() {
        let plan = "Reading package lists...\nInst libjemalloc2 (5.3.0-1 Debian:12.11/stable [amd64])\nInst redis-tools \
                    (5:7.0.15-1 Debian:12.11/stable [amd64])\nConf libjemalloc2 (5.3.0-1)\n";
        assert_eq!(
            needed(plan, &PACKAGES),
            ["libjemalloc2", "redis-server", "redis-tools"]
        );
    }

    #[test]
    fn libraries_are_found_where_packages_have_them() {
        let root = tempfile();
        let place = root.join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("liblzf.so.1.5"), "").unwrap();
        fs::write(root.join("usr/README"), "").unwrap();
        let found = library_directories(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["usr/lib/x86_64-linux-gnu"]);
    }

    fn tempfile() -> PathBuf {
        std::env::temp_dir().join(format!("xtask-debian-{}", std::process::id()))
    }
}
