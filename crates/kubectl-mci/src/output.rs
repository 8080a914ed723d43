//! What goes to the terminal: tables, colours, JSON and YAML.

use std::{fmt::Write as _, io::IsTerminal};

use clap::ValueEnum;
use serde::Serialize;

/// How to print what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// The same facts as JSON
    Json,
    /// The same facts as YAML
    Yaml,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Coloured,
}

/// What a colour stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Warning,
    Bad,
    Faint,
}

// === impl Format ===

impl Format {
    /// The facts in this format; `text` makes that for people.
    pub(crate) fn render<T: Serialize>(
        self,
        facts: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Text => text(),
            Self::Json => format!("{}\n", serde_json::to_string_pretty(facts)?),
            Self::Yaml => serde_yaml::to_string(facts)?,
        })
    }
}

// === impl Paint ===

impl Paint {
    /// Colours on a terminal alone, and not where `NO_COLOR` says something (no-color.org).
    pub(crate) fn of_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if !refused && std::io::stdout().is_terminal() {
            Self::Coloured
        } else {
            Self::Plain
        }
    }

    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }
}

/// Characters of a cell. A name may have 253, and one tenant's must not make the rows of all others wider than a terminal;
/// `-o json` has it whole.
const MAX_CELL: usize = 48;
/// Number of characters kept at the end of a cut cell: names of one tenant mostly have the same beginning.
const CELL_END: usize = 16;

/// A table with columns as wide as they need, three spaces apart as in kubectl; the last one is not padded, and is the
/// only one of which long cells are not cut. Cells may hold text from a cluster.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns = head.len();
    let shown = |(column, cell): (usize, &str)| {
        let cell = plain(cell);
        if column + 1 == columns {
            cell
        } else {
            cut(cell)
        }
    };
    let head = head.iter().copied().enumerate().map(shown).collect();
    let rows = rows.iter().map(|row| {
        let cells = row.iter().map(String::as_str).enumerate();
        cells.map(shown).collect()
    });
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width_of = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            // writing to a String cannot fail
            let _ = write!(row, "{cell:<width$}   ");
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// Cuts a long text in its middle.
fn cut(text: String) -> String {
    let length = text.chars().count();
    if length <= MAX_CELL {
        return text;
    }
    let begin = text.chars().take(MAX_CELL - CELL_END - 1);
    let end = text.chars().skip(length - CELL_END);
    begin.chain(std::iter::once('…')).chain(end).collect()
}

/// A text that may come from a cluster, without what would move the cursor of a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if moves(c) { ' ' } else { c })
        .collect()
}

/// Controls, and characters without width that turn or hide what is beside them.
fn moves(c: char) -> bool {
    let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    hidden || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["llm/llama".to_owned(), "ä".to_owned()],
            vec!["x".to_owned(), String::new()],
        ];
        let text = table(&["POOL", "EAST"], &rows);
        assert_eq!(text, "POOL        EAST\nllm/llama   ä\nx\n");
    }

    #[test]
    fn a_long_name_is_cut_and_its_end_stays() {
        let name = format!("llm/{}-blue", "a".repeat(253));
        let rows = [
            vec![name, "exports".to_owned()],
            vec!["llm/llama".to_owned(), "x".repeat(300)],
        ];
        let text = table(&["POOL", "EAST"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        let first: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(first[0].chars().count(), MAX_CELL);
        assert!(first[0].starts_with("llm/aaa") && first[0].ends_with("-blue"));
        assert!(
            lines[2].ends_with(&"x".repeat(300)),
            "the last column is whole"
        );
    }

    #[test]
    fn nothing_is_coloured_where_it_is_plain() {
        assert_eq!(Paint::Plain.paint(Tone::Bad, "x"), "x");
        assert_eq!(
            Paint::Coloured.paint(Tone::Bad, "x"),
            "\u{1b}[31mx\u{1b}[0m"
        );
    }

    #[test]
    fn text_of_a_cluster_cannot_move_the_cursor() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}d\u{200b}"), "a [2Jb c d ");
    }
}
