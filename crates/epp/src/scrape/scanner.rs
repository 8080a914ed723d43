//! Finds a few values in a long metrics page, as its bytes arrive.

use memchr::memchr;
use scheduling::Scraped;

use super::engine::{Engine, Metric};

/// 256 KiB: a line with a thousand adapter names is far below. A longer one is passed over.
const MAX_LINE: usize = 256 * 1024;

/// No engine has a trillion requests. Sums of such values, over a page and over a pool, stay finite.
const MAX_VALUE: f64 = 1e12;

/// Reads one page at a time; allocates only for a line cut in two, in a buffer that is kept.
#[derive(Debug)]
pub(crate) struct Scanner {
    engine: Engine,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// The rest of the current line does not matter.
    skipping: bool,
    waiting: Series,
    running: Series,
    kv: Series,
    former_kv: Series,
}

/// The series of one metric, one per rank or model.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    sum: f64,
    count: f64,
}

// === impl Scanner ===

impl Scanner {
    /// A scanner for pages of `engine`.
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            partial: Vec::new(),
            skipping: false,
            waiting: Series::default(),
            running: Series::default(),
            kv: Series::default(),
            former_kv: Series::default(),
        }
    }

    /// Takes the next bytes of the page, cut anywhere.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr(b'\n', bytes) {
            let Some((line, rest)) = bytes.split_at_checked(end) else {
                return;
            };
            self.end_line(line);
            bytes = rest.get(1..).unwrap_or_default();
        }
        if self.skipping || bytes.is_empty() {
            return;
        }
        let decided = self.partial.is_empty() && bytes.len() >= self.engine.prefix.len();
        let wanted = !decided || bytes.starts_with(self.engine.prefix.as_bytes());
        if wanted && self.partial.len().saturating_add(bytes.len()) <= MAX_LINE {
            self.partial.extend_from_slice(bytes);
        } else {
            self.partial.clear();
            self.skipping = true;
        }
    }

    /// The values of the page; ready for the next one. A page that broke off gives what it had, which
    /// the caller does not use.
    pub(crate) fn finish(&mut self) -> Scraped {
        self.end_line(&[]);
        let kv = self.kv.mean().or(self.former_kv.mean());
        let scraped = Scraped {
            waiting: self.waiting.sum(),
            running: self.running.sum(),
            kv,
            ..Scraped::default()
        };
        for series in [
            &mut self.waiting,
            &mut self.running,
            &mut self.kv,
            &mut self.former_kv,
        ] {
            *series = Series::default();
        }
        scraped
    }

    fn end_line(&mut self, rest: &[u8]) {
        if std::mem::take(&mut self.skipping) {
            return;
        }
        if self.partial.is_empty() {
            return self.line(rest);
        }
        let mut line = std::mem::take(&mut self.partial);
        if line.len().saturating_add(rest.len()) <= MAX_LINE {
            line.extend_from_slice(rest);
            self.line(&line);
        }
        line.clear();
        self.partial = line;
    }

    fn line(&mut self, line: &[u8]) {
        let Some(line) = line.strip_prefix(self.engine.prefix.as_bytes()) else {
            return;
        };
        let Engine {
            prefix: _,
            waiting,
            running,
            kv,
            former_kv,
        } = self.engine;
        let wanted = [
            (Some(waiting), &mut self.waiting),
            (Some(running), &mut self.running),
            (Some(kv), &mut self.kv),
            (former_kv, &mut self.former_kv),
        ];
        for (metric, series) in wanted {
            if let Some(value) = metric.and_then(|metric| metric.value(line)) {
                series.add(value);
            }
        }
    }
}

// === impl Metric ===

impl Metric {
    /// The value of a line of this metric, given without the engine's prefix. What is no plausible number of
    /// requests counts as missing, NaN too.
    fn value(self, line: &[u8]) -> Option<f64> {
        let rest = line.strip_prefix(self.name.as_bytes())?;
        let (labels, rest) = match rest.first()? {
            b'{' => split_labels(rest.get(1..)?)?,
            b' ' | b'\t' => (&b""[..], rest),
            _ => return None,
        };
        if let Some(label) = self.label {
            let found = labels
                .windows(label.len())
                .any(|window| window == label.as_bytes());
            found.then_some(())?;
        }
        let text = std::str::from_utf8(rest).ok()?;
        let value: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
        (0.0..=MAX_VALUE).contains(&value).then_some(value)
    }
}

/// Splits `a="b",c="d"} 1` at the closing brace, which may also stand inside a value.
fn split_labels(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut quoted, mut escaped) = (false, false);
    let end = rest.iter().position(|&byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            b'}' if !quoted => return true,
            _ => {}
        }
        false
    })?;
    let (labels, rest) = rest.split_at_checked(end)?;
    Some((labels, rest.get(1..)?))
}

// === impl Series ===

impl Series {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn sum(self) -> Option<f64> {
        (self.count > 0.0).then_some(self.sum)
    }

    /// The mean share. Engines name it "perc" and publish a fraction; above 1 it is percent indeed.
    fn mean(self) -> Option<f64> {
        let mean = self.sum().map(|sum| sum / self.count)?;
        Some(if mean > 1.0 {
            (mean / 100.0).min(1.0)
        } else {
            mean
        })
    }
}

#[cfg(test)]
mod tests;
