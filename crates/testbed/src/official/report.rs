//! What a suite's report counts.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Why a report cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// It is not there.
    #[error("report {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// It is no report.
    #[error("report {path}: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_yaml::Error,
    },
}

/// Tests of all profiles and levels of support.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that passed.
    pub passed: usize,
    /// Those that failed.
    pub failed: usize,
    /// Those that the suite wants and that were not run.
    pub skipped: Vec<String>,
}

#[derive(Deserialize)]
struct Report {
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    core: Level,
    extended: Option<Level>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Level {
    statistics: Statistics,
    #[serde(default)]
    skipped_tests: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statistics {
    passed: usize,
    failed: usize,
}

pub(super) fn read(path: &Path) -> Result<Counts, ReportError> {
    let text = fs::read_to_string(path).map_err(|source| ReportError::File {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|source| ReportError::Format {
        path: path.to_owned(),
        source,
    })
}

fn parse(text: &str) -> Result<Counts, serde_yaml::Error> {
    let report: Report = serde_yaml::from_str(text)?;
    let mut counts = Counts::default();
    for Profile { core, extended } in report.profiles {
        for level in [Some(core), extended].into_iter().flatten() {
            counts.passed += level.statistics.passed;
            counts.failed += level.statistics.failed;
            counts.skipped.extend(level.skipped_tests);
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_of_all_profiles_are_counted_and_skipped_tests_are_named() {
        let text = "apiVersion: gateway.networking.k8s.io/v1\nprofiles:\n\
            - name: GATEWAY-HTTP\n  core:\n    result: failure\n    failedTests: [A]\n    \
            statistics: {Failed: 1, Passed: 36, Skipped: 0}\n  extended:\n    result: partial\n    \
            skippedTests: [B]\n    statistics: {Failed: 0, Passed: 8, Skipped: 1}\n\
            - name: Gateway\n  core: {result: success, statistics: {Failed: 0, Passed: 14, Skipped: 0}}\n";
        let expected = Counts {
            passed: 58,
            failed: 1,
            skipped: vec!["B".to_owned()],
        };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn a_report_without_counts_is_none() {
        for text in ["", "profiles: [{name: Gateway, core: {result: success}}]"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
