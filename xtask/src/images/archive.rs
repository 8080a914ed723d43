//! Images by crane: a layer on an empty base in a registry on loopback, out of it as an OCI layout, and that as an archive.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Map, Value};

use super::files::{Files, Tar};
use crate::{progress::Step, signals::Running};

/// What names without a registry stand for to containerd and the kubelet.
const DEFAULT_REGISTRY: &str = "docker.io";

/// A registry of our own while images are made: crane changes images nowhere else.
pub(super) struct Registry<'a> {
    crane: &'a Path,
    process: Child,
    _running: Running,
    address: String,
}

/// How an image is to be run, and what it says of itself.
pub(super) struct Settings<'a> {
    pub(super) name: &'a str,
    pub(super) tag: &'a str,
    pub(super) entry: String,
    pub(super) user: &'a str,
    /// Without the prefix that all have.
    pub(super) labels: Vec<(&'static str, String)>,
}

/// An image that is finished.
pub(super) struct Archive<'a> {
    crane: &'a Path,
    path: PathBuf,
    layout: Layout,
    digest: String,
}

/// A directory in the OCI image layout, removed when dropped.
struct Layout(PathBuf);

// === impl Registry ===

impl<'a> Registry<'a> {
    pub(super) fn start(crane: &'a Path) -> Result<Self> {
        let mut process = Command::new(crane)
            .args(["registry", "serve", "--address", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", crane.display()))?;
        let running = Running::new(&process);
        let Some(log) = process.stderr.take() else {
            bail!("crane's registry has no output");
        };
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let port = lines.find_map(|line| Some(line.split_once("serving on port ")?.1.to_owned()));
        // it logs each call, and would wait for somebody to read
        std::thread::spawn(move || lines.for_each(drop));
        let Some(port) = port else {
            let _ = process.kill();
            let status = process.wait().context("waiting for crane's registry")?;
            bail!("crane's registry did not start: it ended with {status}");
        };
        Ok(Self {
            crane,
            process,
            _running: running,
            address: format!("127.0.0.1:{port}"),
        })
    }

    /// Makes `NAME.tar` in the directory.
    pub(super) fn assemble(
        &self,
        settings: &Settings<'_>,
        files: &Files,
        directory: &Path,
    ) -> Result<Archive<'a>> {
        let step = Step::begin(&format!("packing {}", settings.name));
        let layout = Layout(directory.join(format!("{}.part", settings.name)));
        layout.clear()?;
        fs::create_dir_all(&layout.0)
            .with_context(|| format!("creating {}", layout.0.display()))?;
        let layer = layout.0.join("layer.tar.gz");
        fs::write(&layer, compressed(&files.layer()?)?)
            .with_context(|| format!("writing {}", layer.display()))?;

        let image = format!("{}/{}:{}", self.address, settings.name, settings.tag);
        let mut append = Command::new(self.crane);
        append.args(["append", "--oci-empty-base", "--new_tag", &image]);
        crane(append.arg("--new_layer").arg(&layer))?;
        fs::remove_file(&layer).with_context(|| format!("removing {}", layer.display()))?;
        crane(&mut mutate(self.crane, &image, settings)?)?;
        let mut pull = Command::new(self.crane);
        crane(
            pull.args(["pull", "--format", "oci", &image])
                .arg(&layout.0),
        )?;

        let digest = layout.name_it(settings)?;
        let path = directory.join(format!("{}.tar", settings.name));
        fs::write(&path, layout.archive()?)
            .with_context(|| format!("writing {}", path.display()))?;
        step.done();
        Ok(Archive {
            crane: self.crane,
            path,
            layout,
            digest,
        })
    }
}

impl Drop for Registry<'_> {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// By a compressor that `Cargo.lock` pins: crane's is that of the Go that it was built with, and the digest would depend on that.
fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let all = encoder.write_all(bytes);
    all.and_then(|()| encoder.finish())
        .context("compressing a layer")
}

fn mutate(program: &Path, image: &str, settings: &Settings<'_>) -> Result<Command> {
    let mut mutate = Command::new(program);
    mutate.args(["mutate", image, "--tag", image]);
    mutate.args(["--entrypoint", &settings.entry, "--user", settings.user]);
    mutate.args(["--workdir", "/", "--set-platform", &platform()?]);
    for (label, value) in &settings.labels {
        let label = format!("org.opencontainers.image.{label}={value}");
        // labels are what `docker inspect` shows, annotations what registries do
        mutate.args(["--label", &label, "--annotation", &label]);
    }
    Ok(mutate)
}

/// What images are for: the machine that makes them.
pub(crate) fn platform() -> Result<String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("linux/amd64".to_owned()),
        "aarch64" => Ok("linux/arm64".to_owned()),
        other => bail!("no images for {other}: only for x86_64 and aarch64"),
    }
}

/// Runs crane and gives its answer; what it says of its steps is shown only where it fails.
fn crane(command: &mut Command) -> Result<String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting crane")?;
    let running = Running::new(&child);
    let output = child.wait_with_output().context("waiting for crane")?;
    drop(running);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("crane ended with {}:\n{said}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

// === impl Layout ===

impl Layout {
    /// Names the image in the index, by which `ctr`, `kind` and others know it when they load it. Gives its digest.
    fn name_it(&self, settings: &Settings<'_>) -> Result<String> {
        let path = self.0.join("index.json");
        let mut index: Value = serde_json::from_slice(&super::read(&path)?)
            .with_context(|| format!("reading {}", path.display()))?;
        let manifest = index
            .pointer_mut("/manifests/0")
            .and_then(Value::as_object_mut)
            .with_context(|| format!("no image in {}", path.display()))?;
        let (name, tag) = (settings.name, settings.tag);
        let mut names = Map::new();
        for (key, value) in [
            (
                "io.containerd.image.name",
                format!("{DEFAULT_REGISTRY}/isthmus/{name}:{tag}"),
            ),
            ("org.opencontainers.image.ref.name", tag.to_owned()),
        ] {
            names.insert(key.to_owned(), value.into());
        }
        manifest.insert("annotations".to_owned(), names.into());
        let digest = manifest.get("digest").and_then(Value::as_str);
        let digest = digest.context("an image without a digest")?.to_owned();
        fs::write(&path, index.to_string())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(digest)
    }

    fn archive(&self) -> Result<Vec<u8>> {
        let mut found = BTreeMap::new();
        list(&self.0, "", &mut found)?;
        let mut tar = Tar::default();
        for (path, from) in found {
            match from {
                Some(from) => tar.file(&path, 0o644, &super::read(&from)?)?,
                None => tar.directory(&path)?,
            }
        }
        tar.finish()
    }

    fn clear(&self) -> Result<()> {
        if self.0.exists() {
            fs::remove_dir_all(&self.0)
                .with_context(|| format!("clearing {}", self.0.display()))?;
        }
        Ok(())
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // the next run clears it
        let _ = self.clear();
    }
}

/// Files with where they are, and directories, by their paths below `directory`.
fn list(
    directory: &Path,
    below: &str,
    found: &mut BTreeMap<String, Option<PathBuf>>,
) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", directory.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            let inside = format!("{below}{name}/");
            list(&path, &inside, found)?;
            found.insert(inside, None);
        } else {
            found.insert(format!("{below}{name}"), Some(path));
        }
    }
    Ok(())
}

// === impl Archive ===

impl Archive<'_> {
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Bytes of the archive.
    pub(super) fn size(&self) -> Result<u64> {
        let about = fs::metadata(&self.path);
        let about = about.with_context(|| format!("reading {}", self.path.display()))?;
        Ok(about.len())
    }

    /// Pushes the image; what the registry has afterwards is this very one.
    pub(super) fn push(&self, to: &str) -> Result<()> {
        let step = Step::begin(&format!("pushing {to}"));
        let mut push = Command::new(self.crane);
        let pushed = crane(push.arg("push").arg(&self.layout.0).arg(to))?;
        if !pushed.ends_with(&self.digest) {
            bail!("pushed {pushed}, but the image is {}", self.digest);
        }
        step.done();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
