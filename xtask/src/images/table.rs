//! What was made, as a table. Pure.

use std::fmt::Write;

pub(super) struct Row {
    pub(super) image: String,
    /// Bytes of its files.
    pub(super) size: u64,
    /// Bytes of its archive, in which they are compressed.
    pub(super) archive_size: u64,
    pub(super) digest: String,
}

pub(super) fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.image.len()).max().unwrap_or(0);
    let mut table = format!(
        "{:<width$}  {:>8}  {:>8}  DIGEST\n",
        "IMAGE", "FILES", "ARCHIVE"
    );
    for row in rows {
        let (files, archive) = (megabytes(row.size), megabytes(row.archive_size));
        // writing to a String cannot fail
        let _ = writeln!(
            table,
            "{:<width$}  {files:>8}  {archive:>8}  {}",
            row.image, row.digest
        );
    }
    table
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_the_longest_name() {
        let row = |image: &str, size| Row {
            image: image.to_owned(),
            size,
            archive_size: 5_000_000,
            digest: "sha256:00".to_owned(),
        };
        let rows = [
            row("isthmus/epp:1", 27_449_000),
            row("isthmus/gateway:1", 1),
        ];
        assert_eq!(
            render(&rows),
            "IMAGE                 FILES   ARCHIVE  DIGEST\n\
             isthmus/epp:1       27.4 MB    5.0 MB  sha256:00\n\
             isthmus/gateway:1    0.0 MB    5.0 MB  sha256:00\n"
        );
    }
}
