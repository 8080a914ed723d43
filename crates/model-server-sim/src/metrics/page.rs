//! A page in the Prometheus text format.
//!
//! Written here because vLLM's page is in the format before `OpenMetrics` (counters are typed under their
//! name with `_total`, `cache_config_info` is a gauge), which `prometheus-client` does not write.

use std::fmt::{self, Write};

use crate::engine::Histogram;

/// What scrapers are told that the page is.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// 16 KiB: vLLM's page for one model, the longest of all kinds, has 14 KB. Endpoint pickers read it 20 times a second.
const USUAL_SIZE: usize = 16 * 1024;

/// A page being written.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    /// Labels of every sample of [`Page::gauge`], [`Page::counter`] and [`Page::histogram`], as they stand between braces.
    labels: String,
    /// Whether the sample that is being written has labels so far.
    has_labels: bool,
}

// === impl Page ===

impl Page {
    /// An empty page whose samples have these labels.
    pub(crate) fn new(labels: &[(&str, &str)]) -> Self {
        // written once, and not for each of a hundred samples
        let mut page = Self {
            text: String::new(),
            labels: String::new(),
            has_labels: false,
        };
        page.labels(labels);
        let labels = page.text.strip_prefix('{').unwrap_or_default().to_owned();
        Self {
            text: String::with_capacity(USUAL_SIZE),
            labels,
            has_labels: false,
        }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.common(name, "", value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.common(name, "", value as f64);
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        for (bound, count) in histogram.cumulated() {
            self.begin(name, "_bucket");
            self.bound(format_args!("{bound}"));
            self.value(count as f64);
        }
        self.begin(name, "_bucket");
        self.bound(format_args!("+Inf"));
        self.value(histogram.count() as f64);
        self.common(name, "_sum", histogram.sum());
        self.common(name, "_count", histogram.count() as f64);
    }

    /// The two lines above the samples of a metric.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        for part in [
            "# HELP ",
            name,
            " ",
            help,
            "\n# TYPE ",
            name,
            " ",
            kind,
            "\n",
        ] {
            self.text.push_str(part);
        }
    }

    /// A sample with these labels alone.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        self.has_labels = false;
        self.labels(labels);
        self.value(value);
    }

    /// A sample with the labels of all, and more.
    pub(crate) fn labelled(&mut self, name: &str, more: &[(&str, &str)], value: f64) {
        self.begin(name, "");
        self.labels(more);
        self.value(value);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn common(&mut self, name: &str, suffix: &str, value: f64) {
        self.begin(name, suffix);
        self.value(value);
    }

    /// Begins a sample with the labels of all. More labels may follow, then its value.
    fn begin(&mut self, name: &str, suffix: &str) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        self.has_labels = !self.labels.is_empty();
        if self.has_labels {
            self.text.push('{');
            self.text.push_str(&self.labels);
        }
    }

    fn labels(&mut self, labels: &[(&str, &str)]) {
        for (label, value) in labels {
            self.begin_label(label);
            push_escaped(&mut self.text, value);
            self.text.push('"');
        }
    }

    /// The bound of a bucket.
    fn bound(&mut self, bound: fmt::Arguments<'_>) {
        self.begin_label("le");
        self.write(bound);
        self.text.push('"');
    }

    fn begin_label(&mut self, label: &str) {
        self.text.push(if self.has_labels { ',' } else { '{' });
        self.has_labels = true;
        self.text.push_str(label);
        self.text.push_str("=\"");
    }

    fn value(&mut self, value: f64) {
        self.text.push_str(if self.has_labels { "} " } else { " " });
        self.write(format_args!("{value}\n"));
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes any text");
    }
}

fn push_escaped(text: &mut String, value: &str) {
    for part in value.split_inclusive(['\\', '"', '\n']) {
        let (plain, escape) = match part.as_bytes().last() {
            Some(b'\\') => (part.strip_suffix('\\'), "\\\\"),
            Some(b'"') => (part.strip_suffix('"'), "\\\""),
            Some(b'\n') => (part.strip_suffix('\n'), "\\n"),
            _ => (None, ""),
        };
        text.push_str(plain.unwrap_or(part));
        text.push_str(escape);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_all_samples_come_first_and_are_escaped() {
        let mut page = Page::new(&[("model", "a\\b\"c\nd\\")]);
        page.labelled("x", &[("more", "\"")], 0.5);
        page.sample("y", &[], 3.0);
        let expected = "x{model=\"a\\\\b\\\"c\\nd\\\\\",more=\"\\\"\"} 0.5\ny 3\n";
        assert_eq!(page.finish(), expected);
    }
}
