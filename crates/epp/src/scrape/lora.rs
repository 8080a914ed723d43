//! The LoRA adapters of a page, and whether they changed.

use scheduling::Lora;

use super::sample::{Sample, integer, number, unescape};

const RUNNING: &[u8] = b"running_lora_adapters";
const WAITING: &[u8] = b"waiting_lora_adapters";
const MAX: &[u8] = b"max_lora";

/// Adapters of one list; ten times what a server loads. Those past it are left out.
const MAX_ADAPTERS: usize = 1024;

/// Bytes of one name, as long as a file's. A longer one is left out.
const MAX_NAME: usize = 256;

/// Keeps the newest series of a page. The engine makes one for each combination of adapters it ever ran, with the time
/// as its value, and removes none.
#[derive(Debug, Default)]
pub(super) struct LoraReader {
    /// Labels of this page's newest series.
    labels: Vec<u8>,
    at: Option<f64>,
    /// Labels of the adapters reported last. The value is not compared: it changes while the adapters stay.
    reported: Option<Vec<u8>>,
}

// === impl LoraReader ===

impl LoraReader {
    /// One series. Of two with the same time the first counts.
    pub(super) fn read(&mut self, sample: Sample<'_>) {
        let Some(at) = sample.value() else { return };
        if self.at.is_none_or(|newest| at > newest) {
            self.at = Some(at);
            self.labels.clear();
            self.labels.extend_from_slice(sample.labels);
        }
    }

    /// The adapters at the end of a page; absent when the page has none, or the same as reported last.
    pub(super) fn finish(&mut self) -> Option<Lora> {
        self.at.take()?;
        if self.reported.as_ref() == Some(&self.labels) {
            return None;
        }
        let reported = self.reported.get_or_insert_default();
        std::mem::swap(reported, &mut self.labels);
        Some(parse(Sample::of_labels(reported)))
    }

    /// Nobody took what was reported last.
    pub(super) fn reset(&mut self) {
        self.at = None;
        self.reported = None;
    }
}

fn parse(sample: Sample<'_>) -> Lora {
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
