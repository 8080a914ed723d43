//! Finds a few values in a long metrics page, as its bytes arrive.
//!
//! ```text
//!  bytes ─► lines ─► Names: wanted? ─► Sample: labels, value ─► PageValues ─► Scraped
//! ```

use std::sync::Arc;

use memchr::memchr;
use scheduling::{CacheLayout, SAME_START, Scraped};

use super::{
    engine::{Engine, Role},
    lora::LoraReader,
    sample::{Sample, integer, number},
};

/// 256 KiB: a line with a thousand adapter names is far below. A longer one is passed over.
const MAX_LINE: usize = 256 * 1024;

/// Number of series of one metric that are kept apart; engines have one for each rank and model.
const MAX_SERIES: usize = 64;

/// A share above it is in percent. Shares of a full cache may be a little above 1.
const PERCENT: f64 = 1.5;

/// No engine has a trillion requests. Sums of such values, over a page and over a pool, stay finite.
const MAX_VALUE: f64 = 1e12;

/// Reads one page at a time. Keeps its buffers: it allocates only when a line grows beyond them or when the adapters
/// changed.
#[derive(Debug)]
pub struct Scanner {
    engine: Arc<Engine>,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// The rest of the current line does not matter.
    skipping: bool,
    page: PageValues,
}

/// What one page had so far.
#[derive(Debug)]
struct PageValues {
    waiting: Series,
    running: Series,
    /// One for each name.
    kv: Vec<Series>,
    lora: LoraReader,
    block_size: Series,
    blocks: Series,
    started: Series,
    /// The process start time of the last page that reported it.
    last_started: Option<f64>,
}

/// The series of one metric, one per rank or model. Of those that differ by a process alone the greatest counts.
#[derive(Debug, Default)]
struct Series {
    /// The values, each with the identity of its labels.
    values: Vec<(u64, f64)>,
    /// The sum of the series beyond [`MAX_SERIES`], each of which counts by itself.
    more: f64,
    more_count: f64,
    greatest: f64,
    /// Whether a value above [`PERCENT`] was read, on this page or an earlier one of the same process.
    is_percent: bool,
}

// === impl Scanner ===

impl Scanner {
    /// A scanner for pages of `engine`.
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self {
            page: PageValues {
                waiting: Series::default(),
                running: Series::default(),
                kv: engine.spec.kv.iter().map(|_| Series::default()).collect(),
                lora: LoraReader::default(),
                block_size: Series::default(),
                blocks: Series::default(),
                started: Series::default(),
                last_started: None,
            },
            engine,
            partial: Vec::new(),
            skipping: false,
        }
    }

    /// Starts a page that is requested at this time, in seconds since 1970; later values on it are not times.
    pub(super) fn begin(&mut self, now: f64) {
        self.page.lora.begin(now);
    }

    /// Takes the next bytes of the page, cut anywhere.
    pub fn feed(&mut self, mut bytes: &[u8]) {
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
        let head = if self.partial.is_empty() {
            bytes
        } else {
            &self.partial
        };
        let fits = self.partial.len().saturating_add(bytes.len()) <= MAX_LINE;
        if fits && self.engine.may_begin(head) {
            self.partial.extend_from_slice(bytes);
        } else {
            self.partial.clear();
            self.skipping = true;
        }
    }

    /// The values of the page; ready for the next one. LoRA adapters are only there when they are not those of the last page,
    /// unless [`Scanner::reset`] was called since.
    pub fn finish(&mut self) -> Scraped {
        self.end_line(&[]);
        self.page.take()
    }

    /// Forgets the page: it broke off, or nobody wanted it. The next one reports all it has.
    pub fn reset(&mut self) {
        let _ = self.finish();
        self.page.lora.reset();
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
        let Some((wanted, rest)) = self.engine.names.find(line) else {
            if self.engine.declares_lora(line) {
                self.page.lora.declared();
            }
            return;
        };
        if line.len() > MAX_LINE {
            return;
        }
        let Some(sample) = Sample::parse(rest) else {
            return;
        };
        for wanted in wanted {
            if sample.has(&wanted.labels) {
                self.page.read(&wanted.role, sample);
            }
        }
    }
}

// === impl PageValues ===

impl PageValues {
    fn read(&mut self, role: &Role, sample: Sample<'_>) {
        let series = match role {
            Role::Waiting => &mut self.waiting,
            Role::Running => &mut self.running,
            Role::Kv(index) => match self.kv.get_mut(*index) {
                Some(series) => series,
                None => return,
            },
            Role::Lora => return self.lora.read(sample),
            Role::CacheInfo { block_size, blocks } => {
                // A label may be "None".
                let value = |label: &str| sample.label(label.as_bytes()).and_then(number);
                let identity = sample.identity();
                self.block_size.add(identity, value(block_size));
                self.blocks.add(identity, value(blocks));
                return;
            }
            Role::BlockSize => &mut self.block_size,
            Role::Blocks => &mut self.blocks,
            Role::Started => &mut self.started,
        };
        series.add(sample.identity(), sample.value());
    }

    /// The values, and none for the next page.
    fn take(&mut self) -> Scraped {
        let started = self.started.greatest();
        let former = self.last_started;
        self.last_started = started.or(former);
        let is_same = |now: f64| former.is_none_or(|former| (now - former).abs() <= SAME_START);
        let is_other_process = started.is_some_and(|now| !is_same(now));
        let mut kv = None;
        for series in &mut self.kv {
            // The new process may be of a version that publishes fractions.
            series.is_percent &= !is_other_process;
            let share = series.share();
            kv = kv.or(share);
        }
        let scraped = Scraped {
            waiting: self.waiting.sum(),
            running: self.running.sum(),
            kv,
            lora: self.lora.finish(),
            cache: layout(self.block_size.greatest(), self.blocks.sum()),
            started,
        };
        let Self {
            waiting,
            running,
            kv,
            lora: _,
            block_size,
            blocks,
            started,
            last_started: _,
        } = self;
        for series in [waiting, running, block_size, blocks, started] {
            series.clear();
        }
        kv.iter_mut().for_each(Series::clear);
        scraped
    }
}

/// Absent unless both are there and not zero.
fn layout(block_tokens: Option<f64>, blocks: Option<f64>) -> Option<CacheLayout> {
    let layout = CacheLayout {
        block_tokens: integer(block_tokens?),
        blocks: integer(blocks?),
    };
    (layout.block_tokens > 0 && layout.blocks > 0).then_some(layout)
}

// === impl Series ===

impl Series {
    /// One more, unless it is missing or too great to be true.
    fn add(&mut self, identity: u64, value: Option<f64>) {
        let Some(value) = value.filter(|value| *value <= MAX_VALUE) else {
            return;
        };
        self.greatest = self.greatest.max(value);
        if let Some((_, known)) = self.values.iter_mut().find(|(one, _)| *one == identity) {
            *known = known.max(value);
        } else if self.values.len() < MAX_SERIES {
            self.values.push((identity, value));
        } else {
            self.more += value;
            self.more_count += 1.0;
        }
    }

    /// Removes the values, before the next page.
    fn clear(&mut self) {
        self.values.clear();
        self.more = 0.0;
        self.more_count = 0.0;
        self.greatest = 0.0;
    }

    fn sum(&self) -> Option<f64> {
        let sum: f64 = self.values.iter().map(|(_, value)| value).sum();
        (!self.values.is_empty()).then_some(sum + self.more)
    }

    fn greatest(&self) -> Option<f64> {
        (!self.values.is_empty()).then_some(self.greatest)
    }

    /// The mean share. Engines name it "perc" and publish a fraction; where one of a process was clearly above 1, all of that
    /// process are percent indeed.
    fn share(&mut self) -> Option<f64> {
        self.is_percent |= self.greatest > PERCENT;
        let count = self.values.len() as f64 + self.more_count;
        let mean = self.sum().map(|sum| sum / count)?;
        let unit = if self.is_percent { 100.0 } else { 1.0 };
        Some((mean / unit).min(1.0))
    }
}

#[cfg(test)]
mod tests;
