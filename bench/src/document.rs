//! The table of `docs/figures.md`: written from figures and the rows that it has, goals from the code alone. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::{
    Figure,
    rows::{ROWS, Row},
};

/// The table stands between these lines.
const BEGIN: &str = "<!-- figures: written by cargo xtask bench --write-docs -->";
const END: &str = "<!-- figures: end -->";
const HEAD: &str = "| what | figure | goal | set by | | measured at |\n|---|---|---|---|---|---|\n";
const UNMEASURED: &str = "not measured";

/// What is known of a row.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    /// With its unit: `12.3 ms`.
    text: String,
    value: f64,
    /// Which state of the code it is of.
    state: String,
}

/// The document with these figures, measured at a state of the code; what was not measured now stays as it is.
/// # Errors
/// When it has no place for the table.
pub fn with_figures(document: &str, figures: &[Figure], state: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).context("no begin of figures")?;
    let (table, after) = rest.split_once(END).context("no end of figures")?;
    let mut known = read(table);
    for figure in figures {
        let measured = Measured {
            text: figure.text(),
            value: figure.value,
            state: state.to_owned(),
        };
        known.insert(figure.name.clone(), measured);
    }
    let rows: String = ROWS
        .iter()
        .map(|row| line(row, known.get(row.name)))
        .collect();
    Ok([before, BEGIN, "\n", HEAD, &rows, END, after].concat())
}

/// Rows by name; goals and verdicts are not read.
fn read(table: &str) -> BTreeMap<String, Measured> {
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim().split('|').map(str::trim).collect();
        let [_, name, text, .., state, _] = *cells else {
            return None;
        };
        let value = text.split(' ').next()?.parse().ok()?;
        let measured = Measured {
            text: text.to_owned(),
            value,
            state: state.to_owned(),
        };
        Some((name.to_owned(), measured))
    });
    rows.collect()
}

fn line(row: &Row, measured: Option<&Measured>) -> String {
    let text = measured.map_or(UNMEASURED, |one| &one.text);
    let state = measured.map_or("", |one| &one.state);
    let unit = text.split_once(' ').map_or("", |(_, unit)| unit);
    let goal = row.goal.map_or_else(String::new, |goal| {
        let unit = if measured.is_some() { unit } else { "" };
        let (sign, limit) = (goal.bound.sign(), goal.bound.limit());
        let limit = (limit * 100.0).round() / 100.0;
        format!("{sign} {limit} {unit}").trim_end().to_owned()
    });
    let set_by = row.goal.map_or("", |goal| goal.set_by.name());
    let verdict = match (row.goal, measured) {
        (Some(goal), Some(one)) if goal.bound.holds(one.value) => "reached",
        (Some(_), Some(_)) => "**missed**",
        _ => "",
    };
    let cells = [row.name, text, &goal, set_by, verdict, state];
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = "1000 members, 5 exporters, TLS: event to all sent, p99";
    const RSS: &str = "100 members x 50 exported pools: RSS";
    const SHARE: &str = "data path, pool: requests/s / without EPP";

    fn mk(rows: &str) -> String {
        format!("# Text\n{BEGIN}\n{HEAD}{rows}{END}\nMore\n")
    }

    fn row<'a>(document: &'a str, name: &str) -> &'a str {
        let start = format!("| {name} |");
        let found = document.lines().find(|line| line.starts_with(&start));
        found.unwrap_or_default()
    }

    #[test]
    fn what_was_measured_is_written_with_its_goal_and_what_was_not_stays() {
        let old = mk(&format!(
            "| {SENT} | 169 ms | ≤ 500 ms | ours | reached | abc |\n| {RSS} | 259 MB | | | | abc |\n| a row that is gone | 1 ms | | | | abc |\n"
        ));
        let figures = [
            Figure::new(RSS, 139.4, "MB"),
            Figure::new("of no row", 1.0, "s"),
        ];
        let new = with_figures(&old, &figures, "def").expect("a table");
        assert!(new.starts_with("# Text\n") && new.ends_with("\nMore\n"));
        assert_eq!(
            row(&new, RSS),
            format!("| {RSS} | 139 MB | ≤ 150 MB | design | reached | def |")
        );
        // goal and verdict are the code's, the figure and its state the document's
        assert_eq!(
            row(&new, SENT),
            format!("| {SENT} | 169 ms | ≤ 100 ms | design | **missed** | abc |")
        );
        assert_eq!(row(&new, "a row that is gone"), "");
        assert_eq!(row(&new, "of no row"), "");
        let lines = new.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(lines, 1 + ROWS.len());
        assert_eq!(with_figures(&new, &[], "ghi").expect("a table"), new);
    }

    #[test]
    fn a_figure_above_its_goal_is_missed_even_if_it_reads_the_same() {
        let figures = [Figure::new(SENT, 100.4, "ms")];
        let new = with_figures(&mk(""), &figures, "def").expect("a table");
        let expected = format!("| {SENT} | 100.4 ms | ≤ 100 ms | design | **missed** | def |");
        assert_eq!(row(&new, SENT), expected);
    }

    #[test]
    fn a_row_that_was_never_measured_says_so() {
        let new = with_figures(&mk(""), &[], "def").expect("a table");
        let expected = format!("| {SENT} | not measured | ≤ 100 | design |  |  |");
        assert_eq!(row(&new, SENT), expected);
        let expected = format!("| {SHARE} | not measured | ≥ 0.45 | design |  |  |");
        assert_eq!(row(&new, SHARE), expected);
        assert!(with_figures("no table", &[], "def").is_err());
    }

    /// Goals in the document are those of the code, and each has its row.
    #[test]
    fn the_document_has_the_goals_of_the_code() {
        let document = include_str!("../../docs/figures.md");
        let again = with_figures(document, &[], "").expect("a table");
        assert!(
            again == document,
            "docs/figures.md is older than bench/src/rows.rs: cargo xtask bench --write-docs"
        );
    }
}
