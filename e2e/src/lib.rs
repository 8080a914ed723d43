//! End-to-end tests of Isthmus: see `tests/suite` and `tests/crd_facts`. Run them with `cargo xtask test --only e2e`.
