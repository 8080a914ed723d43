//! What is wrong. Pure.

mod cluster;
mod home;
mod pools;

use super::{
    Level, Line, Report,
    facts::{Facts, Workload},
};

/// CRDs that are looked at.
pub(super) fn definition_names() -> impl Iterator<Item = &'static str> {
    let ours = [cluster::POOL_CRD, crate::join::IMPORT_CRD];
    ours.into_iter().chain(cluster::GATEWAY_CRDS)
}

/// What to do where the controller is probably in another cluster.
const ELSEWHERE: &str = "say where home is: --home-context CONTEXT, and --home-namespace and --clusterset where these are not the usual ones";

/// Home, then each cluster, then the pools.
pub(super) fn judge(facts: &Facts) -> Report {
    let mut groups = vec![home::group(facts)];
    groups.extend(
        facts
            .clusters
            .iter()
            .map(|cluster| cluster::group(facts, cluster)),
    );
    groups.extend(pools::group(facts));
    Report { groups }
}

// === impl Line ===

impl Line {
    fn good(text: impl Into<String>) -> Self {
        Self::of(Level::Good, text, None)
    }

    fn warning(text: impl Into<String>, next: impl Into<String>) -> Self {
        Self::of(Level::Warning, text, Some(next.into()))
    }

    fn bad(text: impl Into<String>, next: impl Into<String>) -> Self {
        Self::of(Level::Bad, text, Some(next.into()))
    }

    /// What could not be read; the problem says what to do.
    fn unknown(problem: &str) -> Self {
        Self::of(Level::Unknown, problem, None)
    }

    fn of(level: Level, text: impl Into<String>, next: Option<String>) -> Self {
        Self {
            level,
            text: text.into(),
            next,
        }
    }
}

/// A Deployment that is there: whether it runs, and whether it is of this version.
fn workload(what: &str, workload: &Workload, look: String) -> Vec<Line> {
    let Workload {
        available,
        wanted,
        version,
    } = workload;
    let mut lines = vec![if available >= wanted && *wanted > 0 {
        Line::good(format!("{what} runs: {available} of {wanted} available"))
    } else {
        Line::bad(format!("{what}: {available} of {wanted} available"), look)
    }];
    let ours = env!("CARGO_PKG_VERSION");
    if !version.is_empty() && version.trim_start_matches('v') != ours {
        lines.push(Line::warning(
            format!("{what} is of version {version}, this plugin of {ours}"),
            "use the same version: what they say of each other may differ",
        ));
    }
    lines
}
