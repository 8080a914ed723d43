//! Where the real binaries are, and what a container image stands for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where Envoy is, whatever else could be found.
const ENVOY_BIN: &str = "ENVOY_BIN";

/// The binaries a testbed runs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// etcd 3.6.
    pub etcd: PathBuf,
    /// kube-apiserver 1.34.
    pub kube_apiserver: PathBuf,
    /// kube-controller-manager 1.34.
    pub kube_controller_manager: PathBuf,
    /// kubectl, for [`Cluster::kubectl`](crate::Cluster::kubectl).
    pub kubectl: PathBuf,
    /// Envoy; also what the image `envoyproxy/envoy` stands for.
    pub envoy: PathBuf,
}

/// Binaries that are nowhere to be found.
#[derive(Debug, thiserror::Error)]
#[error("missing {}: looked in {looked_in}; run `cargo xtask tools`", .missing.join(", "))]
pub struct MissingTools {
    missing: Vec<&'static str>,
    looked_in: String,
}

/// What an image runs: the executable and the arguments that stand before the container's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entrypoint {
    pub(crate) executable: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Whether it only waits, whatever the container says, and nobody asks for its state.
    pub(crate) idle: bool,
}

/// Image repository → entrypoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Images {
    entrypoints: BTreeMap<String, Entrypoint>,
    /// Runs for an image that is not among them.
    other: Option<Entrypoint>,
}

/// The directories to look in, in this order.
struct Places {
    kubebuilder_assets: Option<PathBuf>,
    path: Vec<PathBuf>,
    cache: PathBuf,
}

/// Looks for Envoy alone, where [`Tools::find`] does.
///
/// # Errors
/// When it is in none of these places.
pub fn find_envoy() -> Result<PathBuf, MissingTools> {
    let places = Places::of_environment();
    let given = std::env::var_os(ENVOY_BIN).map(PathBuf::from);
    given
        .or_else(|| places.find("envoy"))
        .ok_or_else(|| MissingTools {
            missing: vec!["envoy"],
            looked_in: places.describe(),
        })
}

/// Looks for kubectl alone, where [`Tools::find`] does.
///
/// # Errors
/// When it is in none of these places.
pub fn find_kubectl() -> Result<PathBuf, MissingTools> {
    let places = Places::of_environment();
    places.find("kubectl").ok_or_else(|| MissingTools {
        missing: vec!["kubectl"],
        looked_in: places.describe(),
    })
}

// === impl Tools ===

impl Tools {
    /// Looks in `KUBEBUILDER_ASSETS`, then `PATH`, then `target/tools`; for Envoy in `ENVOY_BIN` first.
    ///
    /// # Errors
    /// Names every binary that is in none of them.
    pub fn find() -> Result<Self, MissingTools> {
        Self::find_in(&Places::of_environment(), std::env::var_os(ENVOY_BIN))
    }

    fn find_in(places: &Places, envoy_bin: Option<OsString>) -> Result<Self, MissingTools> {
        let mut missing = Vec::new();
        let mut find = |name: &'static str| {
            places.find(name).unwrap_or_else(|| {
                missing.push(name);
                PathBuf::new()
            })
        };
        let envoy = match envoy_bin {
            Some(path) => PathBuf::from(path),
            None => find("envoy"),
        };
        let tools = Self {
            etcd: find("etcd"),
            kube_apiserver: find("kube-apiserver"),
            kube_controller_manager: find("kube-controller-manager"),
            kubectl: find("kubectl"),
            envoy,
        };
        if missing.is_empty() {
            Ok(tools)
        } else {
            Err(MissingTools {
                missing,
                looked_in: places.describe(),
            })
        }
    }
}

// === impl Images ===

impl Images {
    /// `repository` is a name like `isthmus/epp`: without registry and tag.
    pub(crate) fn insert(&mut self, repository: &str, executable: PathBuf, arguments: Vec<String>) {
        let entrypoint = Entrypoint {
            executable,
            arguments,
            idle: false,
        };
        self.entrypoints.insert(repository.to_owned(), entrypoint);
    }

    /// From now on an image that is not named runs a process that only waits.
    pub(crate) fn idle_for_others(&mut self) {
        self.other = Some(Entrypoint {
            executable: "sleep".into(),
            arguments: vec!["infinity".to_owned()],
            idle: true,
        });
    }

    /// The entrypoint of `image`, whatever its registry, tag and digest.
    pub(crate) fn find(&self, image: &str) -> Option<&Entrypoint> {
        let repository = repository_of(image);
        let named = self.entrypoints.iter().find_map(|(name, entrypoint)| {
            let before = repository.strip_suffix(name.as_str())?;
            (before.is_empty() || before.ends_with('/')).then_some(entrypoint)
        });
        named.or(self.other.as_ref())
    }

    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.entrypoints.keys().map(String::as_str).collect();
        names.join(", ")
    }
}

// === impl Entrypoint ===

impl Entrypoint {
    /// The program and its arguments for a container's `command` and `args`.
    ///
    /// Without a command: the entrypoint, then `args`. A command that names the entrypoint's own program (by file name,
    /// wherever the image has it) means the same with its arguments between; any other command is run as it is. One that
    /// only waits takes neither.
    pub(crate) fn command_line(
        &self,
        command: &[String],
        args: &[String],
    ) -> (PathBuf, Vec<String>) {
        if self.idle {
            return (self.executable.clone(), self.arguments.clone());
        }
        let Some((program, own)) = command.split_first() else {
            return (self.executable.clone(), [&self.arguments, args].concat());
        };
        if Path::new(program).file_name() == self.executable.file_name() {
            (
                self.executable.clone(),
                [&self.arguments, own, args].concat(),
            )
        } else {
            (PathBuf::from(program), [own, args].concat())
        }
    }
}

// === impl Places ===

impl Places {
    fn of_environment() -> Self {
        Self {
            kubebuilder_assets: std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from),
            path: std::env::var_os("PATH")
                .map(|path| std::env::split_paths(&path).collect())
                .unwrap_or_default(),
            cache: crate::workspace().join("target/tools"),
        }
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        let executable = |path: &PathBuf| {
            std::fs::metadata(path)
                .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        };
        let places = self
            .kubebuilder_assets
            .iter()
            .chain(&self.path)
            .chain([&self.cache]);
        places.map(|place| place.join(name)).find(executable)
    }

    fn describe(&self) -> String {
        let assets = match &self.kubebuilder_assets {
            Some(path) => path.display().to_string(),
            None => "KUBEBUILDER_ASSETS (not set)".to_owned(),
        };
        format!("{assets}, PATH, {}", self.cache.display())
    }
}

/// `ghcr.io:443/isthmus/epp:v1@sha256:…` → `ghcr.io:443/isthmus/epp`.
fn repository_of(image: &str) -> &str {
    let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
    match without_digest.rsplit_once(':') {
        // a colon before the last slash belongs to the registry's port
        Some((name, tag)) if !tag.contains('/') => name,
        _ => without_digest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_images() -> Images {
        let mut images = Images::default();
        images.insert("isthmus/epp", "/bin/epp".into(), vec!["--fast".to_owned()]);
        images
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn registry_tag_and_digest_do_not_matter() {
        let images = mk_images();
        for image in [
            "isthmus/epp",
            "isthmus/epp:v1",
            "ghcr.io:443/isthmus/epp:v1@sha256:00",
            "ghcr.io/isthmus/epp",
        ] {
            assert!(images.find(image).is_some(), "{image}");
        }
    }

    #[test]
    fn a_name_that_only_ends_alike_is_another_image() {
        assert_eq!(mk_images().find("notisthmus/epp"), None);
        assert_eq!(mk_images().find("isthmus/epp-extra"), None);
    }

    #[test]
    fn args_follow_the_entrypoints_own() {
        let images = mk_images();
        let entrypoint = images.find("isthmus/epp").unwrap();
        let line = entrypoint.command_line(&[], &strings(&["-v"]));
        assert_eq!(
            line,
            (PathBuf::from("/bin/epp"), strings(&["--fast", "-v"]))
        );
    }

    #[test]
    fn a_command_naming_the_program_elsewhere_means_the_entrypoint() {
        let images = mk_images();
        let entrypoint = images.find("isthmus/epp").unwrap();
        let line =
            entrypoint.command_line(&strings(&["/usr/local/bin/epp", "-a"]), &strings(&["-b"]));
        assert_eq!(
            line,
            (PathBuf::from("/bin/epp"), strings(&["--fast", "-a", "-b"]))
        );
    }

    #[test]
    fn another_command_is_run_as_it_is() {
        let images = mk_images();
        let entrypoint = images.find("isthmus/epp").unwrap();
        let line = entrypoint.command_line(&strings(&["/bin/sh", "-c"]), &strings(&["true"]));
        assert_eq!(line, (PathBuf::from("/bin/sh"), strings(&["-c", "true"])));
    }

    #[test]
    fn other_images_only_wait_where_that_is_asked_for() {
        let mut images = mk_images();
        assert_eq!(images.find("coredns/coredns:v1"), None);
        images.idle_for_others();
        let line = images.find("coredns/coredns:v1").unwrap();
        let line = line.command_line(&strings(&["/coredns"]), &strings(&["-conf", "/etc/c"]));
        assert_eq!(line, (PathBuf::from("sleep"), strings(&["infinity"])));
        let named = images.find("isthmus/epp:v1").unwrap();
        assert_eq!(named.executable, PathBuf::from("/bin/epp"));
    }

    #[test]
    fn the_assets_directory_wins_and_an_error_names_all_that_is_missing() {
        let (assets, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (place, name) in [(&assets, "etcd"), (&cache, "etcd"), (&cache, "kubectl")] {
            let path = place.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let places = Places {
            kubebuilder_assets: Some(assets.path().to_owned()),
            path: Vec::new(),
            cache: cache.path().to_owned(),
        };
        assert_eq!(places.find("etcd"), Some(assets.path().join("etcd")));

        let text = Tools::find_in(&places, Some("/envoy".into()))
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("missing kube-apiserver, kube-controller-manager: "),
            "{text}"
        );
        assert!(text.contains("cargo xtask tools"), "{text}");
    }
}
