//! Variables of the caller's environment that tests must not see. Pure.

use std::ffi::{OsStr, OsString};

/// By these tests look at something else, skip what isolates them, or rewrite what they are to compare with.
const NAMES: [&str; 11] = [
    "ISTHMUS_E2E_GATEWAY",
    "ISTHMUS_E2E_KUBECONFIG",
    "ISTHMUS_GATEWAY",
    "ISTHMUS_IMPLEMENTATION",
    "ISTHMUS_IMPORT_IN_EXPORTER",
    "ISTHMUS_KUBECONFIGS",
    "ISTHMUS_MODEL",
    "ISTHMUS_POOL",
    "ISTHMUS_TESTBED_ROLE",
    "ISTHMUS_TESTBED_RUN",
    "UPDATE_DOCS",
];
/// Of the libraries proptest (how many cases, which seed) and insta (accept snapshots, pass in any case).
const PREFIXES: [&str; 2] = ["PROPTEST_", "INSTA_"];

/// Which of these variables are to be removed, in order.
pub(super) fn weakening(names: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut found: Vec<OsString> = names.into_iter().filter(|name| weakens(name)).collect();
    found.sort_unstable();
    found
}

fn weakens(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// The line that names what was removed; none where there was nothing.
pub(super) fn notice(removed: &[OsString]) -> Option<String> {
    let names: Vec<_> = removed.iter().map(|name| name.to_string_lossy()).collect();
    (!names.is_empty()).then(|| format!("not passed on to the tests: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// They say where programs and logs are, or what a program shows as its version, not what is tested.
    const HARMLESS: [&str; 4] = [
        "ISTHMUS_BIN_DIR",
        "ISTHMUS_BUILD_REF",
        "ISTHMUS_COMMIT",
        "ISTHMUS_TESTBED_KEEP",
    ];

    fn found(names: &[&str]) -> Vec<OsString> {
        weakening(names.iter().map(OsString::from))
    }

    #[test]
    fn what_weakens_tests_is_found_and_named_and_the_rest_is_not() {
        let all = [
            "UPDATE_DOCS",
            "PATH",
            "PROPTEST_CASES",
            "INSTA_UPDATE",
            "ISTHMUS_KUBECONFIGS",
            "ISTHMUS_BIN_DIR",
            "RUST_BACKTRACE",
        ];
        let found = found(&all);
        assert_eq!(
            notice(&found).unwrap(),
            "not passed on to the tests: INSTA_UPDATE, ISTHMUS_KUBECONFIGS, PROPTEST_CASES, UPDATE_DOCS"
        );
    }

    #[test]
    fn nothing_found_is_nothing_said() {
        assert_eq!(notice(&found(&["PATH", "HOME"])), None);
    }

    #[test]
    fn each_variable_of_ours_that_the_sources_read_is_known() {
        let mut unknown = Vec::new();
        for directory in ["crates", "e2e", "bench"] {
            search(&crate::workspace::root().join(directory), &mut unknown);
        }
        assert!(
            unknown.is_empty(),
            "{unknown:?}: harmless, or to be removed?"
        );
    }

    fn search(directory: &Path, unknown: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                search(&path, unknown);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let strings = text.split('"');
                let names = strings.filter(|string| {
                    let ours = string.starts_with("ISTHMUS_") || string.starts_with("UPDATE_");
                    ours && string.bytes().all(|b| b == b'_' || b.is_ascii_uppercase())
                });
                let news =
                    names.filter(|name| !weakens(OsStr::new(name)) && !HARMLESS.contains(name));
                unknown.extend(news.map(|name| format!("{name} in {}", path.display())));
            }
        }
    }
}
