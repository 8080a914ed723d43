//! The LoRA adapters of a page, and whether they changed.

use std::collections::HashMap;

use scheduling::{Lora, PageLora};

use super::sample::{Sample, integer, number, unescape};

const RUNNING: &[u8] = b"running_lora_adapters";
const WAITING: &[u8] = b"waiting_lora_adapters";
const MAX: &[u8] = b"max_lora";

/// Adapters of one list; ten times what a server loads. Those past it are left out.
const MAX_ADAPTERS: usize = 1024;

/// Bytes of one name, as long as a file's. A longer one is left out.
const MAX_NAME: usize = 256;

/// Series whose values are remembered, where these are sums. An engine has one for each set of adapters that ran together.
const MAX_SUMS: usize = 1024;

/// The most that the clock of an engine may be ahead, in seconds: one day.
const TOLERANCE: f64 = 86_400.0;

/// Keeps the newest series of a page. The engine makes one for each combination of adapters it ever ran, with the time
/// as its value, and removes none.
///
/// Where the engine's processes share a page, their times of a series are added up. Such a sum is no time; there the series
/// is the newest whose value changed last.
#[derive(Debug)]
pub(super) struct LoraReader {
    /// Labels of this page's newest series.
    labels: Vec<u8>,
    at: Option<f64>,
    /// The latest valid time, in seconds since 1970; later values are not times.
    latest: f64,
    has_series: bool,
    /// Whether the value of the newest series changed.
    is_changed: bool,
    /// Whether the page declares the metric, with or without series.
    is_declared: bool,
    /// The sums of times; present once a value was read that is not a time.
    sums: Option<Sums>,
    /// Labels of the adapters reported last. The value is not compared: it changes while the adapters stay.
    reported: Option<Vec<u8>>,
}

/// The last values of series.
#[derive(Debug, Default)]
struct Sums {
    known: HashMap<u64, f64>,
    /// Number of pages since the first one, of which a part may have been read before.
    pages: u64,
}

/// How the value of a series compares with its value on the last page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The value is the same, or there is no earlier value.
    None,
    /// A process updated the value, or the series is new.
    Newer,
    /// The value is smaller. Times of a process only grow, so other processes run now and earlier values no longer
    /// count.
    Smaller,
}

// === impl LoraReader ===

impl LoraReader {
    /// Starts a page that is requested at this time, in seconds since 1970. Before the first call every time is
    /// accepted.
    pub(super) fn begin(&mut self, now: f64) {
        self.latest = now + TOLERANCE;
    }

    /// One series. Of two with the same time the first counts.
    pub(super) fn read(&mut self, sample: Sample<'_>) {
        let Some(at) = sample.value() else { return };
        self.has_series = true;
        let is_time = at <= self.latest;
        if !is_time {
            self.sums.get_or_insert_default();
        }
        let sums = self.sums.as_mut();
        let change = sums.map(|sums| sums.change(sample.identity(), at));
        if change == Some(Change::Smaller) {
            self.is_changed = false;
            self.reported = None;
        }
        let is_changed = change == Some(Change::Newer);
        self.is_changed |= is_changed;
        let is_newest = is_time && self.at.is_none_or(|newest| at > newest);
        if is_newest {
            self.at = Some(at);
        }
        if is_changed || (is_newest && !self.is_changed) {
            self.labels.clear();
            self.labels.extend_from_slice(sample.labels);
        }
    }

    /// The page declares the metric: an engine that has run no request with an adapter yet has no series of it.
    pub(super) fn declared(&mut self) {
        self.is_declared = true;
    }

    /// Returns what the page reported, at its end.
    pub(super) fn finish(&mut self) -> PageLora {
        let has_series = std::mem::take(&mut self.has_series);
        let is_declared = std::mem::take(&mut self.is_declared);
        let is_changed = std::mem::take(&mut self.is_changed);
        let has_time = self.at.take().is_some();
        if let Some(sums) = &mut self.sums {
            sums.pages = sums.pages.saturating_add(1);
        }
        if !has_series {
            self.sums = None;
            if !is_declared {
                self.reported = None;
                return PageLora::Absent;
            }
            self.labels.clear();
        } else if self.sums.is_some() && !is_changed {
            if self.reported.is_some() {
                return PageLora::Unchanged;
            }
            if !has_time {
                return PageLora::Absent;
            }
        }
        if self.reported.as_ref() == Some(&self.labels) {
            return PageLora::Unchanged;
        }
        let reported = self.reported.get_or_insert_default();
        std::mem::swap(reported, &mut self.labels);
        PageLora::Now(parse(Sample::of_labels(reported)))
    }

    /// Nobody took what was reported last.
    pub(super) fn reset(&mut self) {
        self.at = None;
        self.has_series = false;
        self.is_changed = false;
        self.is_declared = false;
        self.reported = None;
    }
}

impl Default for LoraReader {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            at: None,
            latest: f64::INFINITY,
            has_series: false,
            is_changed: false,
            is_declared: false,
            sums: None,
            reported: None,
        }
    }
}

// === impl Sums ===

impl Sums {
    /// Records the value. The sums start again with the first value that is smaller than on the last page.
    fn change(&mut self, series: u64, value: f64) -> Change {
        if let Some(known) = self.known.get_mut(&series) {
            let former = std::mem::replace(known, value);
            if former > value {
                *self = Self::default();
                self.known.insert(series, value);
                return Change::Smaller;
            }
            return if former < value {
                Change::Newer
            } else {
                Change::None
            };
        }
        let has_room = self.known.len() < MAX_SUMS;
        if has_room {
            self.known.insert(series, value);
        }
        if has_room && self.pages > 1 {
            Change::Newer
        } else {
            Change::None
        }
    }
}

fn parse(sample: Sample<'_>) -> Lora {
    if sample.labels.is_empty() {
        // There is a place at least, or the engine would not have the metric.
        return Lora {
            max: 1,
            ..Lora::default()
        };
    }
    let max = sample.label(MAX).and_then(number);
    Lora {
        running: sample.label(RUNNING).map(adapters).unwrap_or_default(),
        waiting: sample.label(WAITING).map(adapters).unwrap_or_default(),
        max: max.map(integer).unwrap_or_default(),
    }
}

/// The names of a comma list. A comma has no escape, so the list is split as it is written.
fn adapters(list: &[u8]) -> Vec<Box<str>> {
    list.split(|byte| *byte == b',')
        .filter_map(|written| {
            let written = written.trim_ascii();
            // An escape halves at most; checked before anything is copied.
            let short = !written.is_empty() && written.len() <= MAX_NAME.saturating_mul(2);
            let name = short.then(|| unescape(written).collect())?;
            let name = String::from_utf8(name).ok()?;
            (name.len() <= MAX_NAME).then(|| name.into_boxed_str())
        })
        .take(MAX_ADAPTERS)
        .collect()
}

#[cfg(test)]
mod tests;
