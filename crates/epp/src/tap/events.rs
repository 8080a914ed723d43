//! The lines of an event stream: finds the data of each event.

use memchr::{memchr, memmem, memrchr};

use super::{
    scanner::{Mark, Scanner},
    usage::Usage,
};

/// The beginning of a line that matters.
const DATA: &[u8] = b"data:";

/// Reads events as their bytes arrive.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Line,
    /// Whether the current event has data.
    has_data: bool,
    /// Events without usage are read too.
    all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// As many bytes of [`DATA`], and nothing else.
    Begun(usize),
    /// Nothing but a carriage return.
    Return,
    Data,
    /// A comment, or another field.
    Other,
}

// === impl Events ===

impl Events {
    /// A reader that shows every event to the scanner.
    pub(super) fn reading_all() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// Takes the next bytes of the stream, cut anywhere.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        scanner: &mut Scanner,
        usage: &mut Usage,
        mark: &mut impl FnMut(usize, Mark),
    ) {
        let mut rest = bytes;
        // No "usage" begins before this place, once the search was there.
        let mut searched: usize = 0;
        while !rest.is_empty() {
            let at = bytes.len().saturating_sub(rest.len());
            if self.line == Line::Begun(0) && !self.has_data && !self.all && at >= searched {
                let found = memmem::find(rest, b"usage").unwrap_or(rest.len());
                searched = at.saturating_add(found).saturating_add(1);
                let skipped = rest.get(..found).map_or(0, last_event_end);
                rest = rest.get(skipped..).unwrap_or_default();
                if skipped > 0 {
                    continue;
                }
            }
            rest = match self.line {
                Line::Begun(_) | Line::Return => {
                    let Some((byte, after)) = rest.split_first() else {
                        return;
                    };
                    let blank = matches!(self.line, Line::Begun(0) | Line::Return);
                    self.line = self.line.followed_by(*byte);
                    if blank && *byte == b'\n' {
                        self.end_event(scanner, usage);
                    }
                    after
                }
                Line::Other => match memchr(b'\n', rest).and_then(|end| rest.get(end..)) {
                    Some([_, after @ ..]) => {
                        self.line = Line::Begun(0);
                        after
                    }
                    _ => return,
                },
                Line::Data => self.read_data(rest, at, scanner, mark),
            };
        }
    }

    /// Reads a line's data from `rest`, which begins at `at`; gives what follows the line.
    fn read_data<'a>(
        &mut self,
        rest: &'a [u8],
        at: usize,
        scanner: &mut Scanner,
        mark: &mut impl FnMut(usize, Mark),
    ) -> &'a [u8] {
        let newline = memchr(b'\n', rest);
        let end = newline.unwrap_or(rest.len());
        let (data, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        // However long it is: the scanner keeps nothing of it.
        self.has_data = true;
        scanner.feed(data, at, mark);
        if newline.is_some() {
            self.line = Line::Begun(0);
            scanner.end_line(at.saturating_add(end), mark);
        }
        after.get(1..).unwrap_or_default()
    }

    fn end_event(&mut self, scanner: &mut Scanner, usage: &mut Usage) {
        self.has_data = false;
        if let Some(said) = scanner.finish() {
            usage.merge(said);
        }
    }
}

// === impl Line ===

impl Line {
    fn followed_by(self, byte: u8) -> Self {
        match self {
            _ if byte == b'\n' => Self::Begun(0),
            Self::Begun(0) if byte == b'\r' => Self::Return,
            Self::Begun(count) if DATA.get(count) == Some(&byte) => {
                let count = count.saturating_add(1);
                if count == DATA.len() {
                    Self::Data
                } else {
                    Self::Begun(count)
                }
            }
            _ => Self::Other,
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::Begun(0)
    }
}

/// Bytes up to the end of the last event that is complete; 0: none is.
fn last_event_end(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    while let Some(newline) = bytes.get(..end).and_then(|bytes| memrchr(b'\n', bytes)) {
        let before = bytes.get(..newline).unwrap_or_default();
        let before = before.strip_suffix(b"\r").unwrap_or(before);
        if before.ends_with(b"\n") {
            return newline.saturating_add(1);
        }
        end = newline;
    }
    0
}
