//! Requests per model, under today's names and the former ones.

use std::{collections::HashMap, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::tap::Usage;

/// Pairs of model and flow, which both come from clients: each has two histograms for ever, so a
/// hostile client must not make them without end.
const MAX_PAIRS: usize = 1000;
/// Bytes of one such value: names of models are far shorter, a body may be 64 MiB.
const MAX_VALUE: usize = 256;
/// Stands for a value longer than [`MAX_VALUE`], and for both values of a pair beyond [`MAX_PAIRS`].
const OTHER: &str = "other";
/// Stands for the model of a request whose body is not read.
const UNKNOWN: &str = "unknown";
/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";
/// Requests get another priority by objectives, which come later.
const DEFAULT_PRIORITY: &str = "0";

/// 5 ms to 1 h: a refused request and a long generation.
const DURATION_BUCKETS: [f64; 18] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 3.0, 6.0, 15.0, 30.0, 60.0, 300.0,
    900.0, 3600.0,
];
/// 64 B to 64 MiB, the default limit of a body, by powers of four.
const SIZE_BUCKETS: [f64; 11] = [
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// 1 to a million tokens, by powers of four.
const TOKEN_BUCKETS: [f64; 11] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The series of one model and flow.
#[derive(Debug)]
pub struct Series {
    current: Handles,
    former: Handles,
    errors: Family<FlowError, Counter>,
    former_errors: Family<ModelError, Counter>,
    flow: Flow,
}

/// Counts one request as running until dropped.
#[derive(Debug)]
pub struct Running(Arc<Series>);

#[derive(Debug)]
struct Handles {
    total: Counter,
    running: Gauge,
    duration: Histogram,
    size: Histogram,
    input_tokens: Histogram,
    output_tokens: Histogram,
    cached_tokens: Histogram,
    /// Under today's names alone.
    first_byte: Option<Histogram>,
}

#[derive(Debug)]
pub(super) struct Requests {
    total: Family<Flow, Counter>,
    errors: Family<FlowError, Counter>,
    running: Family<Flow, Gauge>,
    duration: Histograms<Flow>,
    size: Histograms<Flow>,
    input_tokens: Histograms<Flow>,
    output_tokens: Histograms<Flow>,
    cached_tokens: Histograms<Flow>,
    first_byte: Histograms<Flow>,
    former_total: Family<ModelPriority, Counter>,
    former_errors: Family<ModelError, Counter>,
    former_running: Family<ModelName, Gauge>,
    former_duration: Histograms<Model>,
    former_size: Histograms<Model>,
    former_input_tokens: Histograms<Model>,
    former_output_tokens: Histograms<Model>,
    former_cached_tokens: Histograms<Model>,
    /// How many series there are.
    pairs: usize,
    /// Keyed by model, then flow, so that a look-up needs no allocation.
    series: HashMap<String, HashMap<String, Arc<Series>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Flow {
    model_name: String,
    target_model_name: String,
    fairness_id: String,
    priority: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowError {
    model_name: String,
    target_model_name: String,
    fairness_id: String,
    priority: &'static str,
    error_code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model_name: String,
    target_model_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelPriority {
    model_name: String,
    target_model_name: String,
    priority: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelError {
    model_name: String,
    target_model_name: String,
    error_code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelName {
    model_name: String,
}

// === impl Series ===

impl Series {
    /// A request of `bytes` begins.
    pub fn begin(self: Arc<Self>, bytes: usize) -> Running {
        for handles in [&self.current, &self.former] {
            handles.total.inc();
            handles.running.inc();
            handles.size.observe(bytes as f64);
        }
        Running(self)
    }

    /// A request failed with this HTTP status.
    pub fn failed(&self, status: u16) {
        let Flow {
            model_name,
            target_model_name,
            fairness_id,
            priority,
        } = self.flow.clone();
        let error_code = status.to_string();
        let former = ModelError {
            model_name: model_name.clone(),
            target_model_name: target_model_name.clone(),
            error_code: error_code.clone(),
        };
        self.former_errors.get_or_create(&former).inc();
        let error = FlowError {
            model_name,
            target_model_name,
            fairness_id,
            priority,
            error_code,
        };
        self.errors.get_or_create(&error).inc();
    }
}

// === impl Running ===

impl Running {
    /// The response failed with this HTTP status.
    pub fn failed(&self, status: u16) {
        self.0.failed(status);
    }

    /// The first byte of the response's body came this long after the first message.
    pub fn first_byte(&self, after: Duration) {
        for histogram in [&self.0.current, &self.0.former]
            .into_iter()
            .filter_map(|handles| handles.first_byte.as_ref())
        {
            histogram.observe(after.as_secs_f64());
        }
    }

    /// What the server says of the request's tokens.
    pub(crate) fn used(&self, usage: Usage) {
        for handles in [&self.0.current, &self.0.former] {
            for (histogram, tokens) in [
                (&handles.input_tokens, usage.input_tokens),
                (&handles.output_tokens, usage.output_tokens),
                (&handles.cached_tokens, usage.cached_tokens),
            ] {
                if let Some(tokens) = tokens {
                    histogram.observe(tokens as f64);
                }
            }
        }
    }

    /// The request is complete.
    pub fn took(&self, duration: Duration) {
        for handles in [&self.0.current, &self.0.former] {
            handles.duration.observe(duration.as_secs_f64());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.current.running.dec();
        self.0.former.running.dec();
    }
}

// === impl Requests ===

impl Requests {
    pub(super) fn register(registry: &mut Registry) -> Self {
        fn durations() -> Histogram {
            Histogram::new(DURATION_BUCKETS)
        }
        fn sizes() -> Histogram {
            Histogram::new(SIZE_BUCKETS)
        }
        fn tokens() -> Histogram {
            Histogram::new(TOKEN_BUCKETS)
        }
        let requests = Self {
            total: Family::default(),
            errors: Family::default(),
            running: Family::default(),
            duration: Family::new_with_constructor(durations),
            size: Family::new_with_constructor(sizes),
            input_tokens: Family::new_with_constructor(tokens),
            output_tokens: Family::new_with_constructor(tokens),
            cached_tokens: Family::new_with_constructor(tokens),
            first_byte: Family::new_with_constructor(durations),
            former_total: Family::default(),
            former_errors: Family::default(),
            former_running: Family::default(),
            former_duration: Family::new_with_constructor(durations),
            former_size: Family::new_with_constructor(sizes),
            former_input_tokens: Family::new_with_constructor(tokens),
            former_output_tokens: Family::new_with_constructor(tokens),
            former_cached_tokens: Family::new_with_constructor(tokens),
            pairs: 0,
            series: HashMap::new(),
        };
        let current = registry.sub_registry_with_prefix("llm_d_epp");
        current.register(
            "request",
            "Requests sent to a model server",
            requests.total.clone(),
        );
        current.register(
            "request_error",
            "Requests that failed, here or at the server",
            requests.errors.clone(),
        );
        current.register(
            "request_running",
            "Requests in flight",
            requests.running.clone(),
        );
        current.register(
            "request_duration_seconds",
            "From the first message to the end",
            requests.duration.clone(),
        );
        current.register(
            "request_size_bytes",
            "Size of the request body, where it is read",
            requests.size.clone(),
        );
        current.register(
            "request_ttft_seconds",
            "From the first message to the first byte of the response's body",
            requests.first_byte.clone(),
        );
        for (name, help, family) in [
            (
                "request_input_tokens",
                "Tokens of the prompt, as the server counted them",
                &requests.input_tokens,
            ),
            (
                "request_output_tokens",
                "Tokens generated",
                &requests.output_tokens,
            ),
            (
                "request_cached_tokens",
                "Tokens of the prompt that the server had cached",
                &requests.cached_tokens,
            ),
        ] {
            current.register(name, help, family.clone());
        }
        let former = registry.sub_registry_with_prefix("inference_objective");
        former.register(
            "request",
            "Requests sent to a model server",
            requests.former_total.clone(),
        );
        former.register(
            "request_error",
            "Requests that failed",
            requests.former_errors.clone(),
        );
        former.register(
            "running_requests",
            "Requests in flight",
            requests.former_running.clone(),
        );
        former.register(
            "request_duration_seconds",
            "Whole duration",
            requests.former_duration.clone(),
        );
        former.register(
            "request_sizes",
            "Size of the request body in bytes",
            requests.former_size.clone(),
        );
        for (name, help, family) in [
            (
                "input_tokens",
                "Tokens of the prompt",
                &requests.former_input_tokens,
            ),
            (
                "output_tokens",
                "Tokens generated",
                &requests.former_output_tokens,
            ),
            (
                "prompt_cached_tokens",
                "Tokens of the prompt that the server had cached",
                &requests.former_cached_tokens,
            ),
        ] {
            former.register(name, help, family.clone());
        }
        requests
    }

    pub(super) fn series(&mut self, model: Option<&str>, fairness_id: Option<&str>) -> Arc<Series> {
        let model = bounded(model.unwrap_or(UNKNOWN));
        let flow = bounded(fairness_id.unwrap_or(DEFAULT_FLOW));
        if let Some(known) = self.known(model, flow) {
            return known;
        }
        if self.pairs < MAX_PAIRS {
            return self.add(model, flow);
        }
        match self.known(OTHER, OTHER) {
            Some(known) => known,
            None => self.add(OTHER, OTHER),
        }
    }

    fn known(&self, model: &str, flow: &str) -> Option<Arc<Series>> {
        self.series.get(model)?.get(flow).map(Arc::clone)
    }

    fn add(&mut self, model: &str, flow: &str) -> Arc<Series> {
        let made = self.make(model, flow);
        let flows = self.series.entry(model.to_owned()).or_default();
        flows.insert(flow.to_owned(), Arc::clone(&made));
        self.pairs += 1;
        made
    }

    fn make(&self, model: &str, flow: &str) -> Arc<Series> {
        let (model_name, target_model_name) = (model.to_owned(), model.to_owned());
        let by_model = Model {
            model_name: model_name.clone(),
            target_model_name: target_model_name.clone(),
        };
        let former_total = ModelPriority {
            model_name: model_name.clone(),
            target_model_name: target_model_name.clone(),
            priority: DEFAULT_PRIORITY,
        };
        let former = Handles {
            total: self.former_total.get_or_create_owned(&former_total),
            running: self.former_running.get_or_create_owned(&ModelName {
                model_name: model_name.clone(),
            }),
            duration: self.former_duration.get_or_create_owned(&by_model),
            size: self.former_size.get_or_create_owned(&by_model),
            input_tokens: self.former_input_tokens.get_or_create_owned(&by_model),
            output_tokens: self.former_output_tokens.get_or_create_owned(&by_model),
            cached_tokens: self.former_cached_tokens.get_or_create_owned(&by_model),
            first_byte: None,
        };
        let flow = Flow {
            model_name,
            target_model_name,
            fairness_id: flow.to_owned(),
            priority: DEFAULT_PRIORITY,
        };
        let current = Handles {
            total: self.total.get_or_create_owned(&flow),
            running: self.running.get_or_create_owned(&flow),
            duration: self.duration.get_or_create_owned(&flow),
            size: self.size.get_or_create_owned(&flow),
            input_tokens: self.input_tokens.get_or_create_owned(&flow),
            output_tokens: self.output_tokens.get_or_create_owned(&flow),
            cached_tokens: self.cached_tokens.get_or_create_owned(&flow),
            first_byte: Some(self.first_byte.get_or_create_owned(&flow)),
        };
        let (errors, former_errors) = (self.errors.clone(), self.former_errors.clone());
        Arc::new(Series {
            current,
            former,
            errors,
            former_errors,
            flow,
        })
    }
}

/// `value`, or [`OTHER`] when it is too long to be kept.
fn bounded(value: &str) -> &str {
    if value.len() > MAX_VALUE {
        OTHER
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn page(registry: &Registry) -> String {
        let mut page = String::new();
        encode(&mut page, registry).unwrap();
        page
    }

    #[test]
    fn a_request_shows_under_both_names() {
        let mut registry = Registry::default();
        let mut requests = Requests::register(&mut registry);
        let running = requests.series(Some("m"), None).begin(100);
        running.failed(500);
        let labels =
            r#"model_name="m",target_model_name="m",fairness_id="default-flow",priority="0""#;
        let text = page(&registry);
        assert!(
            text.contains(&format!("llm_d_epp_request_total{{{labels}}} 1")),
            "{text}"
        );
        assert!(
            text.contains(&format!("llm_d_epp_request_running{{{labels}}} 1")),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "llm_d_epp_request_error_total{{{labels},error_code=\"500\"}} 1"
            )),
            "{text}"
        );
        assert!(
            text.contains(r#"inference_objective_running_requests{model_name="m"} 1"#),
            "{text}"
        );
        drop(running);
        assert!(
            page(&registry).contains(r#"inference_objective_running_requests{model_name="m"} 0"#)
        );
    }

    fn totals(page: &str) -> usize {
        page.lines()
            .filter(|line| line.starts_with("llm_d_epp_request_total{"))
            .count()
    }

    #[test]
    fn made_up_pairs_are_other_after_a_thousand() {
        let mut registry = Registry::default();
        let mut requests = Requests::register(&mut registry);
        let begin = |requests: &mut Requests, model: usize, flow: usize| {
            let (model, flow) = (format!("model-{model}"), format!("flow-{flow}"));
            drop(requests.series(Some(&model), Some(&flow)).begin(1));
        };
        for model in 0..40 {
            for flow in 0..40 {
                begin(&mut requests, model, flow);
            }
        }
        // The first are still known by their names.
        begin(&mut requests, 0, 0);
        let text = page(&registry);
        assert_eq!(totals(&text), MAX_PAIRS + 1);
        for (labels, count) in [
            (
                r#"model_name="other",target_model_name="other",fairness_id="other""#,
                600,
            ),
            (
                r#"model_name="model-0",target_model_name="model-0",fairness_id="flow-0""#,
                2,
            ),
        ] {
            let line = format!("llm_d_epp_request_total{{{labels},priority=\"0\"}} {count}");
            assert!(text.contains(&line), "{line} is missing");
        }
    }

    #[test]
    fn a_value_too_long_to_keep_is_other() {
        let mut registry = Registry::default();
        let mut requests = Requests::register(&mut registry);
        let (longest, longer) = ("m".repeat(MAX_VALUE), "m".repeat(MAX_VALUE + 1));
        drop(requests.series(Some(&longest), Some(&longer)).begin(1));
        drop(requests.series(Some(&longer), None).begin(1));
        let text = page(&registry);
        assert!(text.contains(&format!(
            r#"request_total{{model_name="{longest}",target_model_name="{longest}",fairness_id="other""#
        )));
        assert!(text.contains(r#"request_total{model_name="other",target_model_name="other",fairness_id="default-flow""#));
        assert!(!text.contains(&longer));
    }
}
