//! `cargo xtask mutants`: breaks the code that decides, one place at a time, and shows what no test notices.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{output, run},
    tools, workspace,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these source files, or those whose path holds this text; default: all that decide
    files: Vec<String>,
    /// Only what differs from this commit, in any crate
    #[arg(long, value_name = "COMMIT", conflicts_with = "files")]
    in_diff: Option<String>,
    /// List the mutants, run nothing
    #[arg(long)]
    list: bool,
}

/// The files that decide what the ClusterSet controller removes, keeps and writes, by package. Some hundred mutants, a few
/// seconds each.
const DECIDING: &[(&str, &[&str])] = &[
    (
        "mci-model",
        &[
            "crates/mci-model/src/evidence.rs",
            "crates/mci-model/src/export.rs",
            "crates/mci-model/src/index/absence.rs",
            "crates/mci-model/src/index/guard.rs",
            "crates/mci-model/src/index/kinds.rs",
            "crates/mci-model/src/index/member.rs",
            "crates/mci-model/src/plan.rs",
            "crates/mci-model/src/plan/carry_over.rs",
            "crates/mci-model/src/plan/cover.rs",
            "crates/mci-model/src/plan/decision.rs",
            "crates/mci-model/src/plan/diff.rs",
            "crates/mci-model/src/plan/exported.rs",
            "crates/mci-model/src/plan/known.rs",
        ],
    ),
    (
        "mci-controller",
        &[
            "crates/mci-controller/src/write/lane.rs",
            "crates/mci-controller/src/write/queue.rs",
        ],
    ),
    (
        "lease",
        &[
            "crates/lease/src/claim.rs",
            "crates/lease/src/contender.rs",
            "crates/lease/src/evaluate.rs",
        ],
    ),
];

/// Fails if a mutant survives. What survives for a reason is listed in `.cargo/mutants.toml`, with the reason.
pub(crate) fn run_mutants(args: &Args) -> Result<()> {
    let tool = tools::cargo_mutants()?;
    let directory = directory();
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    if let Some(base) = &args.in_diff {
        let diff = workspace::target().join("mutants.diff");
        let mut git = Command::new("git");
        git.args(["diff", base, "--", "*.rs"])
            .current_dir(workspace::root());
        std::fs::write(&diff, output(&mut git)?)
            .with_context(|| format!("writing {}", diff.display()))?;
        let mut mutants = command(&tool, args.list, "diff");
        mutants.arg("--in-diff").arg(&diff);
        return run(mutants.args(["--", "--lib"]));
    }
    let chosen = chosen(&args.files);
    if chosen.is_empty() {
        bail!("no file that decides is called so: see DECIDING in xtask/src/mutants.rs");
    }
    let mut failed = Vec::new();
    for (package, files) in chosen {
        let mut mutants = command(&tool, args.list, package);
        mutants.args(["--package", package]);
        for file in files {
            mutants.args(["--file", file]);
        }
        if let Err(error) = run(mutants.args(["--", "--lib"])) {
            eprintln!("{error:#}");
            failed.push(package);
        }
    }
    if !failed.is_empty() {
        bail!(
            "mutants survived in {}: add the test that fails, or a line with the reason to .cargo/mutants.toml",
            failed.join(", ")
        );
    }
    Ok(())
}

/// The files that decide and hold one of these texts in their paths, by package.
fn chosen(texts: &[String]) -> Vec<(&'static str, Vec<&'static str>)> {
    let packages = DECIDING.iter().map(|(package, files)| {
        let files = files.iter().copied().filter(|file| {
            let mut texts = texts.iter();
            texts.len() == 0 || texts.any(|text| file.contains(text.as_str()))
        });
        (*package, files.collect::<Vec<_>>())
    });
    packages.filter(|(_, files)| !files.is_empty()).collect()
}

/// Of reports and of what is built.
fn directory() -> PathBuf {
    workspace::target().join("mutants")
}

/// It copies the checkout and builds there, in a target directory that stays for the next run.
fn command(tool: &Path, list: bool, name: &str) -> Command {
    let directory = directory();
    let mut command = Command::new(tool);
    command
        .arg("mutants")
        .args([
            "--no-shuffle",
            "--jobs",
            "1",
            "--minimum-test-timeout",
            "60",
        ])
        .arg("--output")
        .arg(directory.join(name))
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", directory.join("build"));
    if list {
        command.arg("--list");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deciding_file_exists() {
        for (_, files) in DECIDING {
            for file in *files {
                assert!(workspace::root().join(file).is_file(), "{file}");
            }
        }
    }

    #[test]
    fn files_are_chosen_by_a_part_of_their_path() {
        let chosen = chosen(&["lease".to_owned(), "plan/diff".to_owned()]);
        let packages: Vec<&str> = chosen.iter().map(|(package, _)| *package).collect();
        assert_eq!(packages, ["mci-model", "lease"]);
        assert_eq!(chosen[0].1, ["crates/mci-model/src/plan/diff.rs"]);
    }
}
