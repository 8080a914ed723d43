//! A container's own view of the file system: directories and files shown at the paths it asked for.
//! Names of hosts are its own too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Below these a mount point can be made without touching the machine: an empty file system is laid over them first.
const COVERED: [&str; 2] = ["/run", "/tmp"];
/// Containers do not share it; Envoy keeps counters there under a name all Envoys use.
const SHARED_MEMORY: &str = "/dev/shm";

/// Below it a mount point can be made beside what the machine has there.
const ETC: &str = "/etc";
/// Where a container that mounts something below [`ETC`] sees what the machine has there.
const MACHINE: &str = ".machine";

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
#[error(
    "mountPath {0}: only paths below /run, /var/run and /tmp, and below directories of /etc that this machine has not, can be \
     mounted here"
)]
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
        if !COVERED.iter().any(|root| plain.starts_with(root)) && !is_new_in_etc(&plain) {
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
        if self.sources.keys().any(|path| path.starts_with(ETC)) {
            extend_etc()?;
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
            bind(Path::new(&source), path)?;
        }
        // a link to /run on almost every machine
        if fs::symlink_metadata("/var/run").is_ok_and(|data| data.is_dir()) {
            bind(Path::new("/run"), Path::new("/var/run"))?;
        }
        Ok(())
    }
}

/// Whether this is below a directory of [`ETC`] that the machine does not have.
fn is_new_in_etc(path: &Path) -> bool {
    let rest = path.strip_prefix(ETC).ok();
    let first = rest.and_then(|rest| rest.components().next());
    first.is_some_and(|first| fs::symlink_metadata(Path::new(ETC).join(first)).is_err())
}

/// Lays a directory over [`ETC`] that has links to all that was there, so that more can be made beside them.
fn extend_etc() -> io::Result<()> {
    // in the container's own shared memory
    let extended = Path::new(SHARED_MEMORY).join(".etc");
    let machine = extended.join(MACHINE);
    fs::create_dir_all(&machine)?;
    bind(Path::new(ETC), &machine)?;
    for entry in fs::read_dir(ETC)? {
        let entry = entry?;
        let name = entry.file_name();
        // a relative link leads from where it stands
        let target = fs::read_link(entry.path()).unwrap_or_else(|_| Path::new(MACHINE).join(&name));
        symlink(target, extended.join(name))?;
    }
    bind(&extended, Path::new(ETC))?;
    Ok(())
}

/// Shows `source`, with what is mounted in it, at `path`.
fn bind(source: &Path, path: &Path) -> nix::Result<()> {
    let nothing: Option<&str> = None;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), path, nothing, flags, nothing)
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
    }

    #[test]
    fn of_etc_only_what_the_machine_has_not_can_be_mounted() {
        let mut mounts = Mounts::of_container(Path::new("/hosts"));
        for (path, good) in [
            ("/etc/isthmus-of-a-test", true),
            ("/etc/isthmus-of-a-test/certificates", true),
            ("/etc", false),
            ("/etc/passwd", false),
            ("/etc/ssl/isthmus-of-a-test", false),
            ("/etcetera/isthmus-of-a-test", false),
        ] {
            let done = mounts.insert(Path::new(path), "/x".into());
            assert_eq!(done.is_ok(), good, "{path}");
        }
    }
}
