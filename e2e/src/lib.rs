//! What the end-to-end tests share: see `tests/suite`, `tests/conformance` and `tests/crd_facts`, and `README.md`.
//! Run them with `cargo xtask test --only e2e`.

pub mod watching;

use libtest_mimic::Arguments;

/// Whether the runner would run the test of this name: what nobody looks at needs no clusters.
#[must_use]
pub fn is_chosen(arguments: &Arguments, name: &str) -> bool {
    let hits = |filter: &String| {
        if arguments.exact {
            name == filter
        } else {
            name.contains(filter.as_str())
        }
    };
    arguments.filter.as_ref().is_none_or(hits) && !arguments.skip.iter().any(hits)
}
