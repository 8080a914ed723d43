//! Which suite, and which of its tests.

use std::path::PathBuf;

use clap::Parser;
use libtest_mimic::Arguments;
use testbed::official::Suite;

/// Runs an official conformance suite against our gateway
#[derive(Debug, Parser)]
#[command(name = "official")]
pub(crate) struct Args {
    /// The suite: inference or gateway
    #[arg(long, default_value = "inference")]
    pub(crate) suite: Suite,

    /// Where the report of a whole run is put
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tests: Arguments,
}

/// What is run. The suites can run all their tests or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Nothing,
    One(String),
    /// Some of them: all are run, and the others are left out of the result.
    Some,
    All,
}

/// Reads the command line.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    Args::try_parse()
}

// === impl Args ===

impl Args {
    pub(crate) fn choice(&self) -> Choice {
        let Arguments {
            filter,
            exact,
            skip,
            ..
        } = &self.tests;
        if filter.is_none() && skip.is_empty() {
            return Choice::All;
        }
        let known = self.suite.tests();
        let chosen: Vec<&str> = known
            .iter()
            .copied()
            .filter(|name| self.chosen(name))
            .collect();
        match (&chosen[..], filter) {
            // the suite itself refuses a name that none of its tests has
            ([], Some(name)) if known.is_empty() && *exact => Choice::One(name.clone()),
            ([], _) if known.is_empty() => Choice::Some,
            ([], _) => Choice::Nothing,
            ([one], _) => Choice::One((*one).to_owned()),
            (some, _) if some.len() == known.len() => Choice::All,
            _ => Choice::Some,
        }
    }

    pub(crate) fn chosen(&self, name: &str) -> bool {
        e2e::is_chosen(&self.tests, name)
    }
}
