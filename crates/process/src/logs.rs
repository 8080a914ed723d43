//! Logs: one subscriber, on standard error, as text or JSON.

use std::{
    fmt,
    io::{self, IsTerminal},
    str::FromStr,
};

use clap::{Args, ValueEnum};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    filter::{ParseError, filter_fn},
    fmt::MakeWriter,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Flags of every program for its logs; flatten them.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// What to log: a level (error, warn, info, debug, trace) or a filter such as `info,mci_controller=debug`. The
    /// Kubernetes client's own lines are never written: they may quote Secrets, and the programs say it better
    #[arg(
        long,
        // as Go programs of the ecosystem call it, and as their charts set it
        short_alias = 'v',
        aliases = ["v", "zap-log-level"],
        overrides_with = "log_level",
        env = "LOG_LEVEL",
        default_value = "info",
        value_name = "FILTER"
    )]
    pub log_level: LogFilter,
    /// How to write logs: text or json
    #[arg(
        long,
        alias = "zap-encoder",
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
    #[value(alias = "console")]
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
        let ansi = io::stderr().is_terminal();
        let installed = self.subscriber(io::stderr, ansi).try_init();
        if installed.is_err() {
            tracing::debug!("a log subscriber was installed already");
        }
    }

    fn subscriber<W>(&self, writer: W, ansi: bool) -> Box<dyn Subscriber + Send + Sync>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        // a parsed filter parses again
        let filter =
            EnvFilter::try_new(&self.log_level.0).unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(writer)
            .with_ansi(ansi);
        let fit = filter_fn(is_fit);
        match self.log_format {
            LogFormat::Text => Box::new(builder.finish().with(fit)),
            LogFormat::Json => Box::new(builder.json().flatten_event(true).finish().with(fit)),
        }
    }
}

/// Whether a line may be written at all. The Kubernetes client quotes answers that it cannot decode, in full, and a
/// Secret may be one of them; its watcher does so in detail below a warning.
fn is_fit(line: &Metadata<'_>) -> bool {
    let part = line.target().split("::").next();
    match part {
        Some("kube_client") => false,
        Some("kube_runtime") => *line.level() <= Level::WARN,
        _ => true,
    }
}

// === impl LogFilter ===

impl FromStr for LogFilter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // a number is the verbosity of a Go program: 4 is its debug level
        let text = match text.parse::<u8>() {
            Ok(0..=3) => "info",
            Ok(4) => "debug",
            Ok(_) => "trace",
            Err(_) if text == "panic" => "error",
            Err(_) => text,
        };
        EnvFilter::try_new(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        log: LogArgs,
    }

    #[test]
    fn flags_of_go_programs_are_understood() {
        let cases: [(&[&str], &str, LogFormat); 5] = [
            (&[], "info", LogFormat::Text),
            (
                &["--zap-encoder", "json", "--v=4"],
                "debug",
                LogFormat::Json,
            ),
            (
                &["-v", "2", "--zap-encoder=console"],
                "info",
                LogFormat::Text,
            ),
            (
                &["--zap-log-level", "error", "-v=9"],
                "trace",
                LogFormat::Text,
            ),
            (&["--zap-log-level", "panic"], "error", LogFormat::Text),
        ];
        for (flags, level, format) in cases {
            let words = ["program"].iter().chain(flags);
            let log = Flags::try_parse_from(words).expect("flags").log;
            let got = (log.log_level.to_string(), log.log_format);
            assert_eq!(got, (level.to_owned(), format), "{flags:?}");
        }
    }

    #[test]
    fn no_filter_brings_out_what_the_kubernetes_client_quotes() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let args = LogArgs {
                log_level: "trace,kube_client=trace,kube_client::client=trace"
                    .parse()
                    .expect("a filter"),
                log_format: format,
            };
            let (mut reader, writer) = io::pipe().expect("a pipe");
            let writer = move || writer.try_clone().expect("a writer");
            tracing::subscriber::with_default(args.subscriber(writer, false), || {
                tracing::warn!(target: "kube_client::client", "body: t0ps3cr3t");
                tracing::error!(target: "kube_client", "body: t0ps3cr3t");
                tracing::debug!(target: "kube_runtime::watcher", "error: t0ps3cr3t");
                tracing::warn!(target: "kube_runtime::watcher", "forbidden");
                tracing::trace!("ours");
            });
            let mut seen = String::new();
            reader.read_to_string(&mut seen).expect("what was written");
            assert!(!seen.contains("t0ps3cr3t"), "{seen}");
            assert!(
                seen.contains("forbidden") && seen.contains("ours"),
                "{seen}"
            );
        }
    }
}
