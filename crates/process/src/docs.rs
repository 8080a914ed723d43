//! Parts of documents that are made from a program, for its tests to compare.
//!
//! With `UPDATE_DOCS` in the environment they write these parts instead.

use std::{fs, path::Path};

use clap::Arg;

/// Compares or writes what stands between `<!-- part: made by a test -->` and `<!-- /part -->` in a file.
///
/// # Errors
/// When it differs, naming the command `again` that writes it, or when the file or its part is not there.
pub fn check_part(file: &Path, part: &str, made: &str, again: &str) -> Result<(), String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    let begin = format!("<!-- {part}: made by a test -->\n");
    let end = format!("<!-- /{part} -->");
    let found = text
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let Some((before, (found, after))) = found else {
        return Err(format!("{name} has no part {part}"));
    };
    if found == made {
        return Ok(());
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}{begin}{made}{end}{after}");
        return fs::write(file, text).map_err(|error| format!("{name}: {error}"));
    }
    Err(format!(
        "{name} is outdated: {part}: run\n  {again}\nfound:\n{found}\nmade:\n{made}"
    ))
}

/// Text for a cell of a table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A table of flags with their defaults and help. Hidden ones are left out.
pub fn flags<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = "| flag | default | |\n|---|---|---|\n".to_owned();
    text.extend(args.filter(|arg| !arg.is_hide_set()).filter_map(flag_row));
    text
}

/// A row of such a table; none for an argument without a name, and for help.
pub fn flag_row(arg: &Arg) -> Option<String> {
    let long = arg
        .get_long()
        .filter(|long| !["help", "version"].contains(long))?;
    let values = arg.get_default_values().iter();
    let defaults: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    let value = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .and_then(|names| names.first())
        .map(|name| format!(" {name}"))
        .unwrap_or_default();
    let default = if defaults.is_empty() {
        String::new()
    } else {
        format!("`{}`", defaults.join(","))
    };
    let help = arg.get_long_help().or(arg.get_help())?.to_string();
    Some(format!(
        "| `--{long}{}` | {default} | {} |\n",
        cell(&value),
        cell(&help)
    ))
}
