//! Command line and environment, with the exit codes of `sysexits`.

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use clap::Parser;

use crate::run::EX_USAGE;

/// Parses this process' command line and environment.
///
/// # Errors
/// The exit code to end with, after the message was printed: 64 for a wrong flag or value, 0 for `--help` and
/// `--version`.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    parse_from(std::env::args_os(), |name| std::env::var_os(name))
}

/// Parses the given command line; `env` gives the value of a variable.
///
/// A value such as `tcp://10.0.0.1:9002` in a `*_PORT` variable was put there by Kubernetes for a Service of that name
/// ("service links"): it is ignored with a warning, as if the variable were unset.
///
/// # Errors
/// As [`parse`].
pub fn parse_from<A: Parser>(
    args: impl IntoIterator<Item = OsString>,
    env: impl Fn(&OsStr) -> Option<OsString>,
) -> Result<A, ExitCode> {
    // clap reads the environment when an argument is built, so a variable is ignored by not telling clap of it
    let command = A::command().mut_args(|arg| {
        let linked = arg
            .get_env()
            .filter(|name| is_service_link(name, env(name).as_deref()))
            .map(OsStr::to_owned);
        match linked {
            Some(name) => {
                let name = name.to_string_lossy().into_owned();
                eprintln!(
                    "warning: ignoring {name}: its value is a Kubernetes service link, not a port \
                     (set enableServiceLinks: false in the pod to silence this)"
                );
                arg.env(None::<&'static str>)
            }
            None => arg,
        }
    });
    let parsed = command
        .try_get_matches_from(args)
        .and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // nobody is left to tell when stderr is gone
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::from(EX_USAGE)
        } else {
            ExitCode::SUCCESS
        }
    })
}

fn is_service_link(name: &OsStr, value: Option<&OsStr>) -> bool {
    name.to_string_lossy().ends_with("_PORT")
        && value.is_some_and(|value| value.to_string_lossy().contains("://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, default_value_t = 9002)]
        grpc_port: u16,
    }

    fn parse_words(words: &[&str]) -> Result<Args, ExitCode> {
        let words = words.iter().map(OsString::from);
        parse_from(std::iter::once("prog".into()).chain(words), |_| None)
    }

    #[test]
    fn a_bad_value_is_a_usage_error_and_help_is_not() {
        let code = |result: Result<Args, ExitCode>| format!("{:?}", result.expect_err("no args"));
        assert_eq!(
            code(parse_words(&["--grpc-port", "x"])),
            format!("{:?}", ExitCode::from(64))
        );
        assert_eq!(
            code(parse_words(&["--unknown"])),
            format!("{:?}", ExitCode::from(64))
        );
        assert_eq!(
            code(parse_words(&["--help"])),
            format!("{:?}", ExitCode::SUCCESS)
        );
    }

    #[test]
    fn a_good_value_is_taken() {
        assert_eq!(parse_words(&[]).expect("parses").grpc_port, 9002);
        let args = parse_words(&["--grpc-port", "1"]).expect("parses");
        assert_eq!(args.grpc_port, 1);
    }

    #[test]
    fn only_urls_in_port_variables_are_service_links() {
        let link = |name: &str, value: &str| is_service_link(name.as_ref(), Some(value.as_ref()));
        assert!(link("GRPC_PORT", "tcp://10.0.0.1:9002"));
        assert!(!link("GRPC_PORT", "9002"));
        assert!(!link("ADS_ADDRESS", "tcp://10.0.0.1:9002"));
        assert!(!is_service_link("GRPC_PORT".as_ref(), None));
    }
}
