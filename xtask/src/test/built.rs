//! Builds programs and tests by cargo with one set of features, whichever of them are requested.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::runs::Run;
use crate::{command::cargo, demo, signals::Running, workspace};

/// Which tests are built.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tests<'a> {
    /// All tests that a plain `cargo test` of the workspace runs.
    Unit,
    /// Targets in `tests/` by their names.
    Targets(&'a [&'a str]),
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    /// The package's directory, which the tests run in.
    directory: PathBuf,
    /// Name of the target: of the library, the program, or the file in `tests/`.
    pub(crate) target: String,
    /// Its main file, relative to the package's directory.
    source: String,
    executable: PathBuf,
    /// Whether it is run by a runner of its own, which takes fewer flags than the one of the standard library.
    own_runner: bool,
}

/// A line that cargo prints for programs.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the programs that tests start, and these tests. The whole workspace is selected each time, and only targets are
/// chosen: so features of dependencies are the same in each part, and each dependency is compiled once.
pub(crate) fn build(tests: Tests<'_>) -> Result<Vec<TestProgram>> {
    let mut command = cargo(&[
        "build",
        "--workspace",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
    for program in demo::PROGRAMS.iter().chain([&demo::PLUGIN]) {
        command.args(["--bin", program]);
    }
    match tests {
        Tests::Unit => {
            command.arg("--tests");
        }
        Tests::Targets(targets) => {
            for target in targets {
                command.args(["--test", target]);
            }
        }
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo build")?;
    let running = Running::new(&child);
    let output = child
        .wait_with_output()
        .context("waiting for cargo build")?;
    drop(running);
    if !output.status.success() {
        bail!("cargo build of the workspace ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs = Vec::new();
    for line in text.lines() {
        programs.extend(test_program(line)?);
    }
    // cargo reports them as they are ready
    programs.sort_unstable_by(|a, b| (&a.package, &a.source).cmp(&(&b.package, &b.source)));
    Ok(programs)
}

/// The test program that this line of cargo's output announces, if it does.
fn test_program(line: &str) -> Result<Option<TestProgram>> {
    let message: Message =
        serde_json::from_str(line).with_context(|| format!("reading cargo's message {line}"))?;
    let Message::CompilerArtifact {
        manifest_path,
        target,
        profile: Profile { test: true },
        executable: Some(executable),
    } = message
    else {
        return Ok(None);
    };
    let directory = manifest_path
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let source = target
        .src_path
        .strip_prefix(&directory)
        .unwrap_or(&target.src_path);
    let manifest = std::fs::read_to_string(&manifest_path)
        .with_context(|| format!("reading {}", manifest_path.display()))?;
    Ok(Some(TestProgram {
        package: directory
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        source: source.to_string_lossy().into_owned(),
        own_runner: has_own_runner(&manifest, &target.name),
        target: target.name,
        executable,
        directory,
    }))
}

/// Whether the manifest has `harness = false` for this target in `tests/`.
fn has_own_runner(manifest: &str, target: &str) -> bool {
    manifest.split("\n[").any(|section| {
        section.starts_with("[test]]")
            && section.contains(&format!("name = \"{target}\"\n"))
            && section.contains("harness = false")
    })
}

// === impl TestProgram ===

impl TestProgram {
    /// Runs the program as `cargo test` does.
    pub(crate) fn run(&self, name: &str, rest: &[String]) -> Run {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("CARGO_PKG_NAME", &self.package);
        if !self.own_runner {
            // how long each test takes: the standard library's runner reports it on nightly, and where this variable is
            // set
            command
                .args(["-Z", "unstable-options", "--report-time"])
                .env("RUSTC_BOOTSTRAP", "1");
        }
        command.args(rest);
        Run {
            name: name.to_owned(),
            heading: Some(format!(
                "     Running {} ({}: {})",
                self.source,
                self.package,
                self.shown_executable()
            )),
            command,
        }
    }

    fn shown_executable(&self) -> String {
        let root = workspace::root();
        let path = self.executable.strip_prefix(&root);
        path.unwrap_or(&self.executable).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"one\"\n\n[[test]]\nname = \"faults\"\nharness = false\n\n[[test]]\nname = \"plain\"\ntest = false\n\n[dependencies]\n";

    #[test]
    fn a_runner_of_its_own_is_what_the_manifest_says_of_that_target() {
        assert!(has_own_runner(MANIFEST, "faults"));
        assert!(!has_own_runner(MANIFEST, "plain"));
        assert!(!has_own_runner(MANIFEST, "fault"));
    }

    #[test]
    fn test_programs_are_found_among_the_messages_of_cargo() {
        let root = workspace::root().join("xtask");
        let manifest = root.join("Cargo.toml");
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"x","manifest_path":{:?},"target":{{"kind":["bin"],"crate_types":["bin"],"name":"xtask","src_path":{:?},"edition":"2024"}},"profile":{{"opt_level":"0","test":{test}}},"features":[],"filenames":[],"executable":{executable},"fresh":true}}"#,
                manifest,
                root.join("src/main.rs"),
            )
        };
        let found = test_program(&message(true, "\"/x/deps/xtask-01\"")).unwrap();
        let expected = TestProgram {
            package: "xtask".to_owned(),
            directory: root.clone(),
            target: "xtask".to_owned(),
            source: "src/main.rs".to_owned(),
            executable: "/x/deps/xtask-01".into(),
            own_runner: false,
        };
        assert_eq!(found, Some(expected));
        for line in [
            &*message(false, "\"/x/xtask\""),
            &message(true, "null"),
            r#"{"reason":"build-finished","success":true}"#,
        ] {
            assert_eq!(test_program(line).unwrap(), None, "{line}");
        }
        test_program("warning: no JSON").unwrap_err();
    }
}
