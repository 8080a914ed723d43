//! Reading the ends of logs.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// How far back to read: enough for some hundred lines.
const WINDOW: u64 = 64 * 1024;

/// The last `lines` lines, from at most the last 64 KiB; says so when the file cannot be read.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
        let mut bytes = Vec::new();
        file.take(WINDOW).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    match read() {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            let (_, last) = all.split_at(all.len().saturating_sub(lines));
            last.join("\n")
        }
        Err(error) => format!("({}: {error})", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_gives_the_last_lines_of_a_long_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let text: Vec<String> = (0..20_000).map(|nth| format!("line {nth}")).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
        assert_eq!(tail(&path, 2), "line 19998\nline 19999");
        assert!(tail(&directory.path().join("none"), 2).contains("none"));
    }
}
