//! The LoRA adapters of a page, and whether they changed.

use scheduling::{Lora, PageLora};

use super::sample::{Sample, integer, number, unescape};

const RUNNING: &[u8] = b"running_lora_adapters";
const WAITING: &[u8] = b"waiting_lora_adapters";
const MAX: &[u8] = b"max_lora";

/// Adapters of one list; ten times what a server loads. Those past it are left out.
const MAX_ADAPTERS: usize = 1024;

/// Bytes of one name, as long as a file's. A longer one is left out.
const MAX_NAME: usize = 256;

/// A day, by which the clock of an engine may be ahead.
const TOLERANCE: f64 = 86_400.0;

/// Keeps the newest series of a page. The engine makes one for each combination of adapters it ever ran, with the time
/// as its value, and removes none.
///
/// Where the engine's processes share a page, their times of a series are added up: such a sum is no time, and says nothing.
#[derive(Debug)]
pub(super) struct LoraReader {
    /// Labels of this page's newest series.
    labels: Vec<u8>,
    at: Option<f64>,
    /// Times after this one, in seconds since 1970, are none.
    latest: f64,
    /// A series has a time that is none.
    is_odd: bool,
    /// The page declares the metric, with or without series.
    is_declared: bool,
    /// Labels of the adapters reported last. The value is not compared: it changes while the adapters stay.
    reported: Option<Vec<u8>>,
}

// === impl LoraReader ===

impl LoraReader {
    /// The next page is asked for at this time, in seconds since 1970. Until then any time is believed.
    pub(super) fn begin(&mut self, now: f64) {
        self.latest = now + TOLERANCE;
    }

    /// One series. Of two with the same time the first counts.
    pub(super) fn read(&mut self, sample: Sample<'_>) {
        let Some(at) = sample.value() else { return };
        if at > self.latest {
            self.is_odd = true;
            return;
        }
        if self.at.is_none_or(|newest| at > newest) {
            self.at = Some(at);
            self.labels.clear();
            self.labels.extend_from_slice(sample.labels);
        }
    }

    /// The page declares the metric: an engine that has run no request with an adapter yet has no series of it.
    pub(super) fn declared(&mut self) {
        self.is_declared = true;
    }

    /// What the page said, at its end.
    pub(super) fn finish(&mut self) -> PageLora {
        let is_odd = std::mem::take(&mut self.is_odd);
        let is_declared = std::mem::take(&mut self.is_declared) && !is_odd;
        if self.at.take().is_none() {
            if !is_declared {
                self.reported = None;
                return PageLora::Absent;
            }
            self.labels.clear();
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
        self.is_declared = false;
        self.is_odd = false;
        self.reported = None;
    }
}

impl Default for LoraReader {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            at: None,
            latest: f64::INFINITY,
            is_odd: false,
            is_declared: false,
            reported: None,
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
