//! Logs: one subscriber, on standard error, as text or JSON.

use std::{fmt, io::IsTerminal, str::FromStr};

use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Flags of every program for its logs; flatten them.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// What to log: a level (error, warn, info, debug, trace) or a filter such as `debug,kube_client=off`. The Kubernetes
    /// client logs each failed request as an error of its own, which the programs say better
    #[arg(
        long,
        env = "LOG_LEVEL",
        default_value = "info,kube_client=off",
        value_name = "FILTER"
    )]
    pub log_level: LogFilter,
    /// How to write logs: text or json
    #[arg(
        long,
        env = "LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A filter that is known to parse.
#[derive(Clone, Debug)]
pub struct LogFilter(String);

// === impl LogArgs ===

impl LogArgs {
    /// Installs the subscriber for this process; a second call does nothing.
    pub fn init(&self) {
        // a parsed filter parses again
        let filter =
            EnvFilter::try_new(&self.log_level.0).unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let installed = match self.log_format {
            LogFormat::Text => builder.try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        };
        if installed.is_err() {
            tracing::debug!("a log subscriber was installed already");
        }
    }
}

// === impl LogFilter ===

impl FromStr for LogFilter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        EnvFilter::try_new(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
