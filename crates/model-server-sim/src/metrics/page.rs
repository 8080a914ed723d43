//! A page in the Prometheus text format.
//!
//! Written here because vLLM's page is in the format before `OpenMetrics` (counters are typed under their
//! name with `_total`, `cache_config_info` is a gauge), which `prometheus-client` does not write.

use std::fmt::Write;

use crate::engine::Histogram;

/// What scrapers are told that the page is.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page being written.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    text: String,
    /// Labels of every sample of [`Page::gauge`], [`Page::counter`] and [`Page::histogram`].
    labels: &'a [(&'a str, &'a str)],
}

// === impl Page ===

impl<'a> Page<'a> {
    pub(crate) fn new(labels: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            text: String::new(),
            labels,
        }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, self.labels, value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, self.labels, value as f64);
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let bounds = histogram
            .cumulated()
            .map(|(bound, count)| (bound.to_string(), count));
        let infinite = ("+Inf".to_owned(), histogram.count());
        for (bound, count) in bounds.chain([infinite]) {
            let labels = [self.labels, &[("le", bound.as_str())]].concat();
            self.sample(&bucket, &labels, count as f64);
        }
        self.sample(&format!("{name}_sum"), self.labels, histogram.sum());
        self.sample(
            &format!("{name}_count"),
            self.labels,
            histogram.count() as f64,
        );
    }

    /// The two lines above the samples of a metric.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escape(value)))
            .collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    /// A sample with the labels of all, and more.
    pub(crate) fn labelled(&mut self, name: &str, more: &[(&str, &str)], value: f64) {
        let labels = [self.labels, more].concat();
        self.sample(name, &labels, value);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a String takes any text");
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
