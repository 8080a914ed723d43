//! `kubectl mci check`: what is missing or wrong in each cluster, one line each, before and after installing.
//!
//! [`gather`] asks the clusters, [`judge`] says what of it is wrong, and knows no client.

mod facts;
mod gather;
mod judge;
mod mode;
mod text;
mod tokens;

use std::{io::Write, process::ExitCode};

use serde::Serialize;

use crate::{
    args::CheckArgs,
    contexts::Contexts,
    fleet::Fleet,
    output::{Paint, plain},
};

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Level {
    Good,
    /// Works, and may surprise.
    Warning,
    /// Could not be looked at.
    Unknown,
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// What belongs together: home, a cluster, the pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

/// All that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    pub(crate) groups: Vec<Group>,
}

/// Something is wrong.
const WRONG: u8 = 1;
/// Nothing that was seen is wrong, and not all could be seen.
const NOT_SEEN: u8 = 2;

pub(crate) async fn check(
    args: CheckArgs,
    contexts: anyhow::Result<Contexts>,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let CheckArgs { fleet: args } = args;
    let found = async { Fleet::of(&args, &contexts?).await };
    let fleet = match found.await {
        Ok(fleet) => fleet,
        Err(error) => {
            eprintln!("error: {}", plain(&format!("{error:#}")));
            return Ok(ExitCode::from(NOT_SEEN));
        }
    };
    let facts = gather::gather(&fleet, &args.home).await?;
    let report = judge::judge(&facts);
    let paint = Paint::of_stdout();
    let text = args
        .output
        .render(&report, || text::render(&report, paint))?;
    out.write_all(text.as_bytes())?;
    Ok(match report.worst() {
        Level::Good | Level::Warning => ExitCode::SUCCESS,
        Level::Bad => ExitCode::from(WRONG),
        Level::Unknown => ExitCode::from(NOT_SEEN),
    })
}

// === impl Report ===

impl Report {
    fn worst(&self) -> Level {
        let lines = self.groups.iter().flat_map(|group| &group.lines);
        lines.map(|line| line.level).max().unwrap_or(Level::Good)
    }

    fn count(&self, level: Level) -> usize {
        let lines = self.groups.iter().flat_map(|group| &group.lines);
        lines.filter(|line| line.level == level).count()
    }
}

#[cfg(test)]
mod tests;
