//! Server-sent events from bytes that are cut anywhere.

use memchr::memchr2;

/// 64 KiB of data in one event: a chunk of a stream is a thousandth of it.
pub(crate) const MAX_EVENT: usize = 64 * 1024;

/// The name of the only field that matters.
const DATA: &[u8] = b"data";

/// Collects the data of events.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    line: Line,
    /// The last line ended with a carriage return: a newline belongs to it.
    returned: bool,
    /// Of the current event, each line with a newline behind it.
    data: Vec<u8>,
}

/// An event has more than [`MAX_EVENT`] bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {MAX_EVENT} bytes")]
pub(crate) struct TooLong;

/// How far the current line has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// As many bytes of [`DATA`], and nothing else.
    Begun(usize),
    /// The colon has been: a space may follow that does not count.
    Colon,
    Data,
    /// A comment, or another field.
    Other,
}

// === impl EventReader ===

impl EventReader {
    /// Takes the next bytes, and calls `on_event` with the data of each event that ends in them. Events without data
    /// are none.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(&[u8]),
    ) -> Result<(), TooLong> {
        while let Some((&first, after)) = bytes.split_first() {
            if std::mem::take(&mut self.returned) && first == b'\n' {
                bytes = after;
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.read_line(line)?;
            let Some((terminator, rest)) = rest.split_first() else {
                return Ok(());
            };
            self.returned = *terminator == b'\r';
            self.end_line(on_event)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Nothing follows: a last event may lack its empty line.
    pub(crate) fn finish(&mut self, on_event: &mut impl FnMut(&[u8])) -> Result<(), TooLong> {
        self.end_line(on_event)?;
        self.end_event(on_event);
        Ok(())
    }

    /// Reads a part of a line, without its end.
    fn read_line(&mut self, part: &[u8]) -> Result<(), TooLong> {
        let mut rest = part;
        while let Some((&byte, after)) = rest.split_first() {
            match self.line {
                Line::Other => return Ok(()),
                Line::Data => return self.add(rest),
                Line::Colon => {
                    self.line = Line::Data;
                    if byte == b' ' {
                        rest = after;
                    }
                }
                Line::Begun(count) => {
                    self.line = match DATA.get(count) {
                        Some(expected) if *expected == byte => Line::Begun(count.saturating_add(1)),
                        None if byte == b':' => Line::Colon,
                        _ => Line::Other,
                    };
                    rest = after;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.data.len().saturating_add(bytes.len()) > MAX_EVENT {
            return Err(TooLong);
        }
        self.data.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(&[u8])) -> Result<(), TooLong> {
        let has_data = match std::mem::take(&mut self.line) {
            Line::Colon | Line::Data => true,
            Line::Begun(0) => {
                self.end_event(on_event);
                false
            }
            // The whole name without a colon is a line of no bytes.
            Line::Begun(count) => count == DATA.len(),
            Line::Other => false,
        };
        if has_data && self.data.len() > MAX_EVENT {
            return Err(TooLong);
        }
        self.data.extend(has_data.then_some(b'\n'));
        Ok(())
    }

    fn end_event(&mut self, on_event: &mut impl FnMut(&[u8])) {
        if let Some(data) = self.data.strip_suffix(b"\n") {
            on_event(data);
        }
        self.data.clear();
    }
}

// === impl Line ===

impl Default for Line {
    fn default() -> Self {
        Self::Begun(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// The events of a stream in parts, and whether one of them was too long.
    fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, bool) {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        let mut on_event = |data: &[u8]| events.push(String::from_utf8_lossy(data).into_owned());
        for part in parts {
            if reader.feed(part, &mut on_event).is_err() {
                return (events, true);
            }
        }
        let too_long = reader.finish(&mut on_event).is_err();
        (events, too_long)
    }

    #[rstest]
    #[case("data: a\n\ndata: b\n\n", &["a", "b"])]
    #[case("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"])]
    #[case("data: a\r\rdata: b\r\r", &["a", "b"])]
    #[case("data: a\r\n\ndata: b\n\r\n", &["a", "b"])]
    #[case("data:a\ndata:  b\n\n", &["a\n b"])]
    #[case(": comment\nevent: x\nid: 1\nretry: 5\ndata: a\n: data: b\n\n", &["a"])]
    #[case("event: x\n\n\n\n: y\n\n", &[])]
    #[case("data\ndata:\n\n", &["\n"])]
    #[case("dat: a\ndatas: b\nDATA: c\n\n", &[])]
    #[case("data: a", &["a"])]
    #[case("data: a\n", &["a"])]
    fn lines_are_read_as_the_standard_has_them(#[case] stream: &str, #[case] events: &[&str]) {
        let bytes = stream.as_bytes();
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            let (read, _) = read([head, tail]);
            assert_eq!(read, events, "cut at {cut}");
        }
        assert_eq!(read(bytes.chunks(1)).0, events, "byte by byte");
    }

    #[test]
    fn an_event_has_at_most_64_kib_of_data_but_comments_have_no_limit() {
        for (more, too_long) in [(0, false), (1, true)] {
            let data = "x".repeat(MAX_EVENT - 4 + more);
            let stream = format!(":{data}{data}\ndata: abc\ndata: {data}\n\n");
            for cut in [0, 3, stream.len() - 5] {
                let (head, tail) = stream.as_bytes().split_at(cut);
                assert_eq!(read([head, tail]).1, too_long, "{more} more, cut at {cut}");
            }
        }
        let lines = "data\n".repeat(MAX_EVENT + 2);
        assert!(read([lines.as_bytes()]).1, "empty lines count too");
    }

    proptest! {
        #[test]
        fn any_bytes_are_the_same_events_however_they_are_cut(
            pieces in prop::collection::vec(prop_oneof![
                prop::sample::select(vec!["data:", "data: ", "\n", "\r", "\r\n", "\n\n", ":", "event: x", "d"])
                    .prop_map(|text: &str| text.as_bytes().to_vec()),
                prop::collection::vec(any::<u8>(), 0..4),
            ], 0..30),
            size in 1usize..7,
        ) {
            let bytes = pieces.concat();
            prop_assert_eq!(read(bytes.chunks(size)), read([bytes.as_slice()]));
        }
    }
}
