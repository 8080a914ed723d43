//! Completion: scripts for shells, and the answers that kubectl asks its plugins for.
//!
//! For `kubectl mci …` kubectl runs `kubectl_complete-mci` with the words so far, and expects a candidate a line and a last
//! line with a colon and a number: 4 says that files are none.

use std::{io::Write, path::Path};

use clap::{Arg, Command, CommandFactory};

use crate::{
    args::{Args, shell_of},
    contexts::Contexts,
};

/// What is called kubectl_complete-mci.
const SCRIPT: &str = "#!/bin/sh\nexec kubectl-mci __complete \"$@\"\n";
const NO_FILES: &str = ":4";
/// Value names of flags and arguments that are contexts; a member mostly has the name of its own.
const CONTEXTS: [&str; 2] = ["CONTEXT", "CLUSTER"];

/// Prints the script of a shell, or that of kubectl.
pub(crate) fn print(shell: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(shell) = shell_of(shell) else {
        return Ok(out.write_all(SCRIPT.as_bytes())?);
    };
    // into memory first: it panics where it cannot write
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kubectl-mci", &mut text);
    Ok(out.write_all(&text)?)
}

/// Answers kubectl.
pub(crate) fn complete(
    words: &[String],
    kubeconfig: Option<&Path>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let contexts = Contexts::read(kubeconfig).map(|contexts| contexts.names());
    for candidate in candidates(words, &contexts.unwrap_or_default()) {
        writeln!(out, "{candidate}")?;
    }
    writeln!(out, "{NO_FILES}")?;
    Ok(())
}

/// What the last word may become. Pure.
fn candidates(words: &[String], contexts: &[String]) -> Vec<String> {
    let mut root = Args::command();
    root.build();
    let (last, before) = words
        .split_last()
        .map_or(("", &words[..0]), |(last, before)| (last.as_str(), before));
    let mut command = &root;
    for word in before {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let previous = before.last().and_then(|word| flag(command, word));
    let all: Vec<String> = if let Some(flag) = previous.filter(|flag| takes_value(flag)) {
        values(flag, contexts)
    } else if last.starts_with('-') {
        let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let long = visible.filter_map(|arg| arg.get_long());
        long.map(|name| format!("--{name}")).collect()
    } else if command.has_subcommands() {
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        visible.map(|one| one.get_name().to_owned()).collect()
    } else {
        let first = command.get_positionals().next();
        first.map(|arg| values(arg, contexts)).unwrap_or_default()
    };
    all.into_iter()
        .filter(|candidate| candidate.starts_with(last))
        .collect()
}

fn flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let long = word.strip_prefix("--");
    let short = word.strip_prefix('-').filter(|rest| rest.len() == 1);
    let short = short.and_then(|rest| rest.chars().next());
    command.get_arguments().find(|arg| {
        long.is_some() && arg.get_long() == long || short.is_some() && arg.get_short() == short
    })
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn values(arg: &Arg, contexts: &[String]) -> Vec<String> {
    let names = arg.get_value_names().unwrap_or_default();
    if names
        .iter()
        .any(|name| CONTEXTS.iter().any(|context| name.contains(context)))
    {
        return contexts.to_vec();
    }
    let values = arg.get_possible_values();
    values
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", &["check", "join", "leave", "export", "unexport", "status", "explain", "route", "completion", "help"])]
    #[case("st", &["status"])]
    #[case("join ", &["east", "west"])]
    #[case("join e", &["east"])]
    #[case("join east --cont", &["--context"])]
    #[case("join east --context w", &["west"])]
    #[case("status -o ", &["text", "json", "yaml"])]
    #[case("export llama --mode ", &["EndpointMode", "ParentMode"])]
    #[case("status --contexts ", &["east", "west"])]
    #[case("export llama --wait --", &["--kubeconfig", "--namespace", "--context", "--mode", "--contexts", "--home-context", "--home-namespace", "--clusterset", "--wait", "--timeout", "--help"])]
    fn words_are_completed_by_what_may_follow(#[case] line: &str, #[case] expected: &[&str]) {
        let words: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
        let contexts = ["east".to_owned(), "west".to_owned()];
        let mut found = candidates(&words, &contexts);
        let mut expected: Vec<String> = expected.iter().map(|one| (*one).to_owned()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in ["kubectl", "bash", "elvish", "fish", "powershell", "zsh"] {
            let mut text = Vec::new();
            print(shell, &mut text).expect("a script");
            assert!(!text.is_empty(), "{shell}");
        }
    }
}
