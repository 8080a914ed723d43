//! HTTP/1.1 messages as bytes: where one ends. Pure.

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;

/// A whole message at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The first line and the headers, without the empty line after them.
    pub head: &'a str,
    /// Number of bytes of the head and the body together.
    pub length: usize,
    /// Whether the sender closes the connection after it.
    pub closes: bool,
}

/// Limits in bytes. The messages of this benchmark have a kilobyte; a broken one must not fill the memory.
const MAX_HEAD: usize = 64 << 10;
const MAX_BODY: usize = 1 << 20;
const MAX_CHUNK_LINE: usize = 1 << 10;

const LINE_END: &[u8] = b"\r\n";
const EMPTY_LINE: &[u8] = b"\r\n\r\n";

// === impl Message ===

impl<'a> Message<'a> {
    /// The message that these bytes begin with; none while some of it is missing.
    /// # Errors
    /// When the bytes are no message, or it is too large.
    pub fn read(bytes: &'a [u8]) -> Result<Option<Self>> {
        let Some(end) = memmem::find(bytes, EMPTY_LINE) else {
            ensure!(bytes.len() <= MAX_HEAD, "a head above {MAX_HEAD} bytes");
            return Ok(None);
        };
        let (head, rest) = bytes.split_at(end);
        let head = std::str::from_utf8(head).context("a head that is not UTF-8")?;
        let rest = rest.get(EMPTY_LINE.len()..).unwrap_or_default();
        let (mut length, mut is_chunked, mut closes) = (None, false, false);
        for (name, value) in headers(head) {
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse::<usize>().context("content-length")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = value.eq_ignore_ascii_case("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                closes = value.eq_ignore_ascii_case("close");
            }
        }
        let body = match (is_chunked, length) {
            (true, _) => chunks(rest)?,
            (false, Some(length)) => {
                ensure!(length <= MAX_BODY, "a body of {length} bytes");
                (rest.len() >= length).then_some(length)
            }
            (false, None) if head.starts_with("HTTP/") => {
                bail!("a response without a length: {head}")
            }
            (false, None) => Some(0),
        };
        Ok(body.map(|body| Self {
            head,
            length: end + EMPTY_LINE.len() + body,
            closes,
        }))
    }

    /// The status of a response; none where it has no number in its place.
    pub fn status(&self) -> Option<u16> {
        self.head.split(' ').nth(1)?.parse().ok()
    }

    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let mut all = headers(self.head);
        all.find_map(|(one, value)| one.eq_ignore_ascii_case(name).then_some(value))
    }
}

fn headers(head: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = head.lines().skip(1);
    lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name, value.trim()))
    })
}

/// Number of bytes of a body in chunks, trailers included; none while some of it is missing.
fn chunks(bytes: &[u8]) -> Result<Option<usize>> {
    let mut at = 0;
    loop {
        ensure!(at <= MAX_BODY, "a body above {MAX_BODY} bytes");
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(line) = memmem::find(rest, LINE_END) else {
            ensure!(rest.len() <= MAX_CHUNK_LINE, "a chunk without a size");
            return Ok(None);
        };
        let (size, after_size) = rest.split_at(line);
        let size = std::str::from_utf8(size).context("a chunk's size")?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16)
            .with_context(|| format!("{size:?} is no size of a chunk"))?;
        if size == 0 {
            // Trailers, of which there are seldom any, end with an empty line.
            let end = memmem::find(after_size, EMPTY_LINE);
            return Ok(end.map(|end| at + line + end + EMPTY_LINE.len()));
        }
        ensure!(size <= MAX_BODY, "a chunk of {size} bytes");
        let end = LINE_END.len() + size;
        let Some(separator) = after_size.get(end..end + LINE_END.len()) else {
            return Ok(None);
        };
        ensure!(
            separator == LINE_END,
            "a chunk that is not {size} bytes long"
        );
        at += line + end + LINE_END.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(text: &str) -> Option<usize> {
        let message = Message::read(text.as_bytes()).unwrap();
        message.map(|message| message.length)
    }

    /// Of a whole message, and of each part of it.
    #[test]
    fn message_ends_where_its_length_or_its_last_chunk_says() {
        for (text, what) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "no body"),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
                "a length",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n10;a=b\r\n0123456789abcdef\r\n0\r\n\r\n",
                "chunks",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\na: b\r\nc: d\r\n\r\n",
                "trailers",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
                "an empty body",
            ),
        ] {
            assert_eq!(length(text), Some(text.len()), "{what}");
            let more = format!("{text}HTTP/1.1 200 OK\r\n");
            assert_eq!(length(&more), Some(text.len()), "{what}, and another one");
            for end in 0..text.len() {
                let part = &text.as_bytes()[..end];
                assert_eq!(Message::read(part).unwrap(), None, "{what}, {end} bytes");
            }
        }
    }

    #[test]
    fn status_headers_and_the_end_of_the_connection_are_read() {
        let text = "HTTP/1.1 503 Service Unavailable\r\nX-Served-By: east\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let message = Message::read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(message.status(), Some(503));
        assert_eq!(message.header("x-served-by"), Some("east"));
        assert_eq!(message.header("served-by"), None);
        assert!(message.closes);
        let text = text.replace("close", "keep-alive");
        let message = Message::read(text.as_bytes()).unwrap().unwrap();
        assert!(!message.closes);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let endless = "a".repeat(MAX_HEAD + 1);
        let chunked =
            |body: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
        let large = format!(
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n",
            MAX_BODY + 1
        );
        for (text, part) in [
            (endless, "a head above"),
            (large, "a body of"),
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "without a length"),
            (
                "POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n".to_owned(),
                "content-length",
            ),
            (chunked("five\r\nhello\r\n"), "no size of a chunk"),
            (chunked("3\r\nhello\r\n"), "not 3 bytes long"),
            (chunked("fffffff\r\n"), "a chunk of"),
            (chunked(&"1".repeat(MAX_CHUNK_LINE + 1)), "without a size"),
            (
                chunked(&"1\r\na\r\n".repeat(MAX_BODY / 6 + 2)),
                "a body above",
            ),
        ] {
            let error = Message::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
