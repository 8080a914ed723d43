//! Flags for what is kept, for how long, and the content of imports.

use std::{str::FromStr, time::Duration};

use clap::{ArgAction, Args};
use process::ConfigError;

use super::Span;
use crate::{
    index::{drain::MAX_DRAIN, rules::Rules},
    plan::ImportInExporter,
};

/// These flags.
#[derive(Clone, Debug, Args)]
pub(super) struct CautionArgs {
    /// Silence of a member after which what it exports is withdrawn from the others; `never`: it stays as last known.
    #[arg(
        long,
        env = "WITHDRAW_AFTER",
        default_value = "never",
        value_name = "DURATION|never"
    )]
    withdraw_after: DurationOrNever,

    /// How long the entry of an export that ended stays in imports, marked as draining, in seconds (0 to 3600); a pool's
    /// annotation isthmus.dev/drain-seconds overrides it.
    #[arg(
        long,
        env = "DRAIN_SECONDS",
        default_value_t = 0,
        value_name = "SECONDS"
    )]
    drain_seconds: u16,

    /// Take it for a fault of our own when more than half of the members (2 or more) fall silent or leave the inventory
    /// within 10 s: until most are back, nothing is withdrawn for absence or silence. A removal then counts after 10 s.
    #[arg(
        long,
        env = "ISOLATION_GUARD",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    isolation_guard: bool,

    /// Whether a cluster that exports a pool has an import of it when no other cluster exports it: `when-remote` (no) or
    /// `always` (one that names itself alone and is not ready).
    #[arg(
        long,
        env = "IMPORT_IN_EXPORTER",
        default_value = "when-remote",
        value_name = "WHEN"
    )]
    pub(super) import_in_exporter: ImportInExporter,

    /// Name the addresses of ready endpoint picker pods, up to 100, in imports.
    #[arg(long, env = "EPP_ENDPOINTS")]
    pub(super) epp_endpoints: bool,
}

/// A duration, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DurationOrNever(Option<Duration>);

// === impl CautionArgs ===

impl CautionArgs {
    /// # Errors
    /// A value out of its range.
    pub(super) fn rules(
        &self,
        stale_after: Duration,
        removal_hold: Duration,
    ) -> Result<Rules, ConfigError> {
        let drain = Duration::from_secs(self.drain_seconds.into());
        if drain > MAX_DRAIN {
            return Err(ConfigError::new(
                format!("--drain-seconds {}", self.drain_seconds),
                "0 to 3600",
                "--drain-seconds 30",
            ));
        }
        let patience = self.withdraw_after.0;
        if patience.is_some_and(|patience| patience < stale_after) {
            return Err(ConfigError::new(
                "--withdraw-after",
                "never, or at least --stale-after: readiness turns unknown before an entry goes",
                "--withdraw-after 24h",
            ));
        }
        Ok(Rules {
            stale_after,
            withdraw_after: patience,
            drain,
            isolation_guard: self.isolation_guard,
            removal_hold,
        })
    }
}

// === impl DurationOrNever ===

impl FromStr for DurationOrNever {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" {
            return Ok(Self(None));
        }
        let span: Result<Span, String> = text.parse();
        span.map(|span| Self(Some(span.0)))
            .map_err(|error| format!("{error}, or never"))
    }
}
