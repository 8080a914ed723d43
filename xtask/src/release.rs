//! `cargo xtask release`: all that a version consists of, in one folder with its checksums.
//!
//! The version is `workspace.package.version`; charts and CHANGELOG are checked against it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{output, run_as_step},
    demo::PLUGIN,
    images::{self, VERSION},
    tools, workspace,
};

/// Read by people, and copied as they are.
const TEXTS: [&str; 3] = ["CHANGELOG.md", "LICENSE", "README.md"];
const CHECKSUMS: &str = "SHA256SUMS";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For a trial, also of files that are not committed, and of programs that are not built here in the profile `release`
    #[arg(long)]
    allow_dirty: bool,
    #[command(flatten)]
    build: images::BuildArgs,
}

/// Makes `target/release-VERSION`; what stood there is gone.
pub(crate) fn make_release(args: &Args) -> Result<()> {
    let root = workspace::root();
    let charts = charts(&root)?;
    for chart in &charts {
        check_chart(chart)?;
    }
    check_changelog(&read(&root.join("CHANGELOG.md"))?)?;
    if !args.allow_dirty {
        refuse_trials(&args.build)?;
        if images::is_dirty()? {
            bail!("files differ from the commit: commit them, or try with --allow-dirty");
        }
    }
    let helm = tools::helm()?;

    let folder = workspace::target().join(format!("release-{VERSION}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("clearing {}", folder.display()))?;
    }
    images::make_into(&args.build, &create(&folder.join("images"))?)?;
    let binaries = create(&folder.join("bin"))?;
    let platform = images::platform()?.replace('/', "-");
    let licences = create(&folder.join("licenses"))?;
    let mut requirements = Vec::new();
    for program in images::released(&args.build, PLUGIN)? {
        let file = format!("{}-{platform}", program.name);
        copy(&program.binary, &binaries.join(&file))?;
        write(
            &licences.join(format!("{}.txt", program.name)),
            program.notices,
        )?;
        for (name, text) in program.licences {
            write(&licences.join(name), text)?;
        }
        if let Some(version) = program.c_library {
            requirements.push(format!(
                "bin/{file} runs with the GNU C library {version} or newer"
            ));
        }
    }
    let packages = create(&folder.join("charts"))?;
    for chart in &charts {
        let mut package = Command::new(&helm);
        package
            .arg("package")
            .arg(chart)
            .arg("--destination")
            .arg(&packages);
        run_as_step(&format!("packing {}", chart.display()), &mut package)?;
    }
    let crds = crds(&root.join("config/crd"))?;
    write(&folder.join("crds.yaml"), crds)?;
    for text in TEXTS {
        copy(&root.join(text), &folder.join(text))?;
    }
    write_checksums(&folder)?;
    for requirement in requirements {
        println!("{requirement}");
    }
    println!("{}", folder.display());
    Ok(())
}

/// What others get is of this commit, and built for them.
fn refuse_trials(build: &images::BuildArgs) -> Result<()> {
    if let Some(option) = build.for_trials() {
        bail!("{option} is for trials: leave it out, or try with --allow-dirty");
    }
    Ok(())
}

/// The charts that are there, in the order of their names.
fn charts(root: &Path) -> Result<Vec<PathBuf>> {
    let mut charts = listed(&root.join("charts"))?;
    charts.retain(|path| path.join("Chart.yaml").is_file());
    if charts.is_empty() {
        bail!("no chart in {}", root.join("charts").display());
    }
    Ok(charts)
}

/// A chart has the version of the programs that it installs.
fn check_chart(chart: &Path) -> Result<()> {
    let file = chart.join("Chart.yaml");
    let text = read(&file)?;
    for field in ["version", "appVersion"] {
        let found = text.lines().find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            Some(value.trim().trim_matches('"'))
        });
        if found != Some(VERSION) {
            bail!(
                "{field} in {} is {found:?}, and the workspace's is {VERSION}",
                file.display()
            );
        }
    }
    Ok(())
}

/// `## [0.1.0] - 2026-01-31` or without a date, as long as it is not released.
fn check_changelog(text: &str) -> Result<()> {
    let heading = format!("## [{VERSION}]");
    if !text.lines().any(|line| line.starts_with(&heading)) {
        bail!("CHANGELOG.md has no section {heading}: say there what is new");
    }
    Ok(())
}

/// All CRDs in one file, as `kubectl apply -f` takes it.
fn crds(directory: &Path) -> Result<String> {
    let mut all = String::new();
    for file in listed(directory)? {
        let text = read(&file)?;
        if !text.starts_with("---\n") {
            all.push_str("---\n");
        }
        all.push_str(&text);
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
    Ok(all)
}

/// As `sha256sum --check` reads it.
fn write_checksums(folder: &Path) -> Result<()> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(directory) = open.pop() {
        for path in listed(&directory)? {
            if path.is_dir() {
                open.push(path);
            } else {
                files.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    files.sort_unstable();
    let mut sums = Command::new("sha256sum");
    let sums = output(sums.arg("--").args(&files).current_dir(folder))?;
    fs::write(folder.join(CHECKSUMS), sums).context("writing the checksums")
}

/// What is in a directory, in the order of the names.
fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

fn write(file: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

fn create(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    Ok(directory.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        build: images::BuildArgs,
    }

    #[test]
    fn charts_and_changelog_have_the_version_of_the_workspace() {
        let root = workspace::root();
        for chart in charts(&root).unwrap() {
            check_chart(&chart).unwrap();
        }
        check_changelog(&read(&root.join("CHANGELOG.md")).unwrap()).unwrap();
    }

    #[test]
    fn another_version_is_refused() {
        let directory = tempfile::TempDir::new().unwrap();
        let chart = |text: String| {
            fs::write(directory.path().join("Chart.yaml"), text).unwrap();
            check_chart(directory.path()).map_err(|error| error.to_string())
        };
        chart(format!("version: {VERSION}\nappVersion: \"{VERSION}\"\n")).unwrap();
        let error = chart(format!("version: {VERSION}\nappVersion: 0.0.9\n")).unwrap_err();
        assert!(error.starts_with("appVersion in "), "{error}");
        check_changelog("## [0.0.9]\n").unwrap_err();
    }

    #[test]
    fn programs_for_trials_are_not_released() {
        let refused = |options: &[&str]| {
            let options = [&["release"], options].concat();
            let args = Options::parse_from(options).build;
            refuse_trials(&args).map_err(|error| error.to_string())
        };
        refused(&[]).unwrap();
        for (options, option) in [
            (
                &["--profile", "quick-release"][..],
                "--profile quick-release",
            ),
            (&["--binaries", "target/debug"], "--binaries"),
        ] {
            let error = refused(options).unwrap_err();
            assert!(error.starts_with(option), "{error}");
        }
    }

    #[test]
    fn crds_become_documents_of_one_file() {
        let directory = tempfile::TempDir::new().unwrap();
        fs::write(directory.path().join("b.yaml"), "kind: B").unwrap();
        fs::write(directory.path().join("a.yaml"), "---\nkind: A\n").unwrap();
        let crds = crds(directory.path()).unwrap();
        assert_eq!(crds, "---\nkind: A\n---\nkind: B\n");
    }

    #[test]
    fn checksums_name_every_file_by_its_path_in_the_folder() {
        let folder = tempfile::TempDir::new().unwrap();
        create(&folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/epp"), "").unwrap();
        fs::write(folder.path().join("LICENSE"), "").unwrap();
        write_checksums(folder.path()).unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let sums = fs::read_to_string(folder.path().join(CHECKSUMS)).unwrap();
        assert_eq!(sums, format!("{empty}  LICENSE\n{empty}  bin/epp\n"));
    }
}
