//! A container's own view of the file system: directories and files shown at the paths it asked for.
//! Names of hosts are its own too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Below these a mount point can be made without touching the machine: an empty file system is laid over them first.
const COVERED: [&str; 2] = ["/run", "/tmp"];
/// Containers do not share it; Envoy keeps counters there under a name all Envoys use.
const SHARED_MEMORY: &str = "/dev/shm";

/// Where names of hosts are looked up; shown over the machine's.
const HOSTS: &str = "/etc/hosts";

/// What a process sees of the file system. The default is the machine's view, unchanged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounts {
    own: bool,
    hosts: Option<PathBuf>,
    /// Mount path → what is shown there.
    sources: BTreeMap<PathBuf, PathBuf>,
}

/// A mount path the testbed cannot serve without changing the machine's own directories.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("mountPath {0}: only paths below /run, /var/run and /tmp can be mounted here")]
pub(crate) struct UnsupportedMount(PathBuf);

// === impl Mounts ===

impl Mounts {
    /// A view of its own, with shared memory of its own and these names of hosts, and nothing mounted yet.
    pub(crate) fn of_container(hosts: &Path) -> Self {
        Self {
            own: true,
            hosts: Some(hosts.to_owned()),
            ..Self::default()
        }
    }

    /// Shows `source` at `path`.
    pub(crate) fn insert(&mut self, path: &Path, source: PathBuf) -> Result<(), UnsupportedMount> {
        let plain = normalize(path);
        if !COVERED.iter().any(|root| plain.starts_with(root)) {
            return Err(UnsupportedMount(path.to_owned()));
        }
        self.sources.insert(plain, source);
        Ok(())
    }

    /// Gives the calling thread, and what it starts, a mount namespace of its own with these mounts in it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        if !self.own {
            return Ok(());
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        let nothing: Option<&str> = None;
        // Opened before anything is covered: a source may lie below a covered directory itself.
        let mut open = Vec::with_capacity(self.sources.len());
        for (path, source) in &self.sources {
            open.push((path, File::open(source)?, source.is_dir()));
        }
        if let Some(hosts) = &self.hosts
            && Path::new(HOSTS).is_file()
        {
            mount(Some(hosts), HOSTS, nothing, MsFlags::MS_BIND, nothing)?;
        }
        if Path::new(SHARED_MEMORY).is_dir() {
            cover(SHARED_MEMORY)?;
        }
        for root in COVERED {
            if self.sources.keys().any(|path| path.starts_with(root)) {
                cover(root)?;
            }
        }
        // parents sort before children, so that a nested mount is not covered by the outer one
        for (path, source, is_directory) in open {
            if is_directory {
                fs::create_dir_all(path)?;
            } else {
                fs::create_dir_all(path.parent().unwrap_or(path))?;
                File::create(path)?;
            }
            let source = format!("/proc/self/fd/{}", source.as_raw_fd());
            mount(
                Some(source.as_str()),
                path,
                nothing,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                nothing,
            )?;
        }
        // a link to /run on almost every machine
        if fs::symlink_metadata("/var/run").is_ok_and(|data| data.is_dir()) {
            mount(
                Some("/run"),
                "/var/run",
                nothing,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                nothing,
            )?;
        }
        Ok(())
    }
}

/// Lays an empty file system over a directory.
fn cover(directory: &str) -> nix::Result<()> {
    let tmpfs = Some("tmpfs");
    mount(tmpfs, directory, tmpfs, MsFlags::empty(), Some("mode=1777"))
}

/// `/var/run/x` → `/run/x`, without `.`, `..` and doubled slashes.
fn normalize(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    match plain.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn var_run_and_run_are_one() {
        assert_eq!(
            normalize(Path::new("/var/run/secrets/")),
            PathBuf::from("/run/secrets")
        );
        assert_eq!(
            normalize(Path::new("/run//a/./b")),
            PathBuf::from("/run/a/b")
        );
    }

    #[test]
    fn a_path_cannot_climb_out_of_what_is_covered() {
        let mut mounts = Mounts::of_container(Path::new("/hosts"));
        assert!(
            mounts
                .insert(Path::new("/run/isthmus"), "/x".into())
                .is_ok()
        );
        assert!(
            mounts
                .insert(Path::new("/run/../etc"), "/x".into())
                .is_err()
        );
        assert!(mounts.insert(Path::new("/running"), "/x".into()).is_err());
        assert!(
            mounts
                .insert(Path::new("/etc/isthmus"), "/x".into())
                .is_err()
        );
    }
}
