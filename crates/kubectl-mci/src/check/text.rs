//! The report for people.

use std::fmt::Write as _;

use super::{Level, Report};
use crate::output::{Paint, Tone, plain};

/// Groups of lines, each with a mark and, where something is to be done, what; a summary at the end.
pub(super) fn render(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    for group in &report.groups {
        // writing to a String cannot fail
        let _ = writeln!(text, "{}", group.title);
        for line in &group.lines {
            let (mark, tone) = match line.level {
                Level::Good => ("✓", Tone::Good),
                Level::Warning => ("!", Tone::Warning),
                Level::Unknown => ("?", Tone::Warning),
                Level::Bad => ("✗", Tone::Bad),
            };
            let _ = writeln!(text, "  {} {}", paint.paint(tone, mark), plain(&line.text));
            if let Some(next) = &line.next {
                let _ = writeln!(text, "      {}", paint.paint(Tone::Faint, &plain(next)));
            }
        }
        text.push('\n');
    }
    let counts = [
        (Level::Bad, "wrong"),
        (Level::Unknown, "not seen"),
        (Level::Warning, "to know"),
    ];
    let counts = counts.map(|(level, word)| (report.count(level), word));
    let words = counts.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = words
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let summary = if words.is_empty() {
        "nothing is wrong".to_owned()
    } else {
        words.join(", ")
    };
    let _ = writeln!(text, "{summary}");
    text
}
