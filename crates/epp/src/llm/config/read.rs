//! The fields of the configuration.

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc};

use http::{HeaderName, HeaderValue};
use metadata::Cluster;
use scheduling::{Labels, inference_lb::Growth};
use transcode::{Backend, ChatTemplate, Protocol, StreamOutput, Transcoders, Triton, TrtLlm, Wire};

use super::{ALGORITHMS, AccessLog, Balance, LengthUnit, LlmFilter, PrefillCharge};
use crate::{
    config::{Bounds, Compat, Findings, Refusals, Section, Value, read_document},
    llm::{
        prompt::Mode,
        rules::{Rule, Subset, Table},
    },
};

/// Rules of all models together.
const MAX_RULES: usize = 10_000;

/// Bytes of a model's name: of requests no longer one is read.
const MAX_MODEL: usize = 256;

/// Bytes of `scene_name`, `chain_name` and the name of a subset: each labels logs and metrics.
const MAX_NAME: usize = 128;

/// Bytes of `backend`.
const MAX_BACKEND: usize = 256;

/// Bytes of `route_name`.
const MAX_ROUTE: usize = 512;

/// Bytes of the value of a header.
const MAX_HEADER: usize = 16_384;

/// As in the gateway API for backends.
const WEIGHTS: RangeInclusive<i64> = 0..=1_000_000;

const EXAMPLE: &str =
    "{protocol: openai, model_mapping_rule: {qwen-2.5-72b: {rules: [{cluster: ns/pool}]}}}";

/// Reads a file.
pub(super) fn parse(text: &str, compat: Compat) -> Result<LlmFilter, Refusals> {
    let (filter, ignored) = read_document(text, compat, EXAMPLE, |section, _| read(section))?;
    Ok(LlmFilter { ignored, ..filter })
}

/// Reads a block.
pub(super) fn read(mut section: Section<'_>) -> LlmFilter {
    let protocol = required_choice(&mut section, "protocol", &Protocol::NAMES);
    let algorithm = section.choice("algorithm", &ALGORITHMS);
    let transcoders = transcoders(section.section("transcoders"));
    let models = models(&mut section, protocol, &transcoders);
    let clusters = clusters(&mut section);
    if clusters.is_none() {
        refuse_other_clusters(&models, section.findings());
    }
    let units = [("bytes", LengthUnit::Bytes), ("tokens", LengthUnit::Tokens)];
    let length_unit = section.choice("length_unit", &units).unwrap_or_default();
    let default_balance = Balance::in_unit(length_unit);
    let balance = balances(section.section("lb_mapping_rule"), &default_balance);
    let log = access_log(section.section("log"));
    let modes = [("full", Mode::Full), ("text", Mode::Text)];
    let prompt_mode = section.choice("prompt_mode", &modes);
    let mut rules = models.iter().flat_map(|(_, rules)| rules);
    let transcodes = rules.any(|rule| !rule.backend.is_passthrough(&transcoders));
    section.finish();
    LlmFilter {
        protocol: protocol.unwrap_or_default(),
        algorithm: algorithm.unwrap_or_default(),
        rules: Table::new(models, clusters),
        log,
        prompt_mode: prompt_mode.unwrap_or_default(),
        length_unit,
        transcoders,
        transcodes,
        ignored: Vec::new(),
        balance,
        default_balance,
    }
}

/// Models in the order of the file, each with its rules in theirs.
fn models(
    section: &mut Section<'_>,
    protocol: Option<Protocol>,
    transcoders: &Transcoders,
) -> Vec<(Arc<str>, Vec<Rule>)> {
    let (field, example) = (
        "model_mapping_rule",
        "{qwen-2.5-72b: {rules: [{cluster: ns/pool}]}}",
    );
    let present = section.has(field);
    let entries = section.section(field).entries();
    if entries.is_empty() {
        let problem = if present {
            "it names no model"
        } else {
            "it is missing"
        };
        refuse(
            section,
            field,
            problem,
            "at least one model with its rules",
            example,
        );
    }
    let mut count = 0;
    let mut models = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        refuse_long_model(&name, &value);
        let Some(mut of_model) = value.section() else {
            continue;
        };
        let list = of_model.list("rules");
        if list.is_empty() {
            refuse(
                &of_model,
                "rules",
                "there is none",
                "at least one rule",
                "[{cluster: ns/pool}]",
            );
        }
        let mut rules = Vec::with_capacity(list.len());
        for value in list {
            count += 1;
            if count > MAX_RULES {
                let expected = format!("at most {MAX_RULES} rules of all models together");
                value.refuse(
                    "it is one rule too many",
                    &expected,
                    "rules: [{cluster: ns/pool}]",
                );
                return models;
            }
            rules.extend(rule(value, protocol, transcoders));
        }
        of_model.finish();
        models.push((name.into(), rules));
    }
    models
}

fn rule(value: Value<'_>, protocol: Option<Protocol>, transcoders: &Transcoders) -> Option<Rule> {
    let mut section = value.section()?;
    let place = section.item().to_owned();
    section.no_effect(
        "weight",
        "it is deprecated: rules are chosen by their headers, and shares are the weights of subset",
    );
    let scene_name = bounded(&mut section, "scene_name", MAX_NAME);
    let chain_name = bounded(&mut section, "chain_name", MAX_NAME);
    let route_name = bounded(&mut section, "route_name", MAX_ROUTE);
    let backend = backend(&mut section, protocol, transcoders);
    let headers = section.list("headers").into_iter();
    let headers = headers.filter_map(header).collect();
    let subsets = section.list("subset").into_iter();
    let subsets: Vec<_> = subsets.filter_map(subset).collect();
    let has_adapter = subsets.iter().any(|subset| subset.lora.is_some());
    if has_adapter && backend == Backend::TrtLlm && !backend.is_passthrough(transcoders) {
        let problem =
            "TensorRT-LLM behind Triton's generate extension takes no adapter by its name";
        let expected = "no lora, or transcoders.trt-llm.wire: openai";
        refuse(
            &section,
            "subset",
            problem,
            expected,
            "[{labels: {gpu: a100}}]",
        );
    }
    let cluster = cluster(&mut section);
    section.finish();
    Some(Rule {
        place: place.into(),
        scene_name: scene_name.into(),
        chain_name: chain_name.into(),
        route_name: route_name.into(),
        backend,
        headers,
        subsets,
        cluster: cluster?,
    })
}

fn backend(
    section: &mut Section<'_>,
    protocol: Option<Protocol>,
    transcoders: &Transcoders,
) -> Backend {
    let name = bounded(section, "backend", MAX_BACKEND);
    let backend = Backend::named(&name);
    if let Backend::Other(name) = &backend {
        let known: Vec<_> = Backend::NAMES.iter().map(|(name, _)| *name).collect();
        let why = format!(
            "no backend is called {name:?}: requests are passed on as for vllm; known are {}",
            known.join(" ").trim_start()
        );
        section.findings().ignore(section.place("backend"), why);
    }
    if protocol == Some(Protocol::Anthropic) && !backend.is_passthrough(transcoders) {
        let problem = format!("{:?} needs the protocol openai", backend.name());
        refuse(
            section,
            "backend",
            &problem,
            "a backend that speaks anthropic",
            "vllm",
        );
    }
    backend
}

fn header(value: Value<'_>) -> Option<(HeaderName, HeaderValue)> {
    let mut section = value.section()?;
    let key = section.required_text("key", "x-env");
    let name = HeaderName::from_bytes(key.as_bytes());
    if name.is_err() && !key.is_empty() {
        let problem = format!("{key:?} is no name of a header");
        refuse(
            &section,
            "key",
            &problem,
            "letters, digits and hyphens",
            "x-env",
        );
    }
    let value = section.value("value");
    if value.is_none() {
        let expected = "the value of the header";
        refuse(&section, "value", "it is missing", expected, "prod");
    }
    let text = value.and_then(|value| value.text_or_empty("prod"));
    let value = text.and_then(|text| {
        let value = HeaderValue::from_bytes(text.as_bytes()).ok();
        let value = value.filter(|_| text.len() <= MAX_HEADER);
        if value.is_none() {
            let expected = format!("at most {MAX_HEADER} bytes without control characters");
            refuse(
                &section,
                "value",
                "no header has such a value",
                &expected,
                "prod",
            );
        }
        value
    });
    section.finish();
    Some((name.ok()?, value?))
}

fn subset(value: Value<'_>) -> Option<Arc<Subset>> {
    let mut section = value.section()?;
    let name = bounded(&mut section, "name", MAX_NAME).into();
    let labels = Arc::new(labels(section.section("labels")));
    let lora = section.value("lora").and_then(|value| {
        let at = section.place("lora");
        let lora = value.text("sql-adapter")?;
        refuse_long(section.findings(), at, &lora, MAX_MODEL);
        Some(lora.into())
    });
    let weight = section.integer("weight", WEIGHTS, 1);
    section.finish();
    Some(Arc::new(Subset {
        name,
        labels,
        lora,
        weight: u32::try_from(weight).unwrap_or(1),
    }))
}

fn labels(section: Section<'_>) -> Labels {
    let entries = section.entries().into_iter();
    let labels = entries.filter_map(|(key, value)| {
        let value = value.text_or_empty("a100")?;
        Some((key.into(), value.into()))
    });
    labels.collect()
}

fn cluster(section: &mut Section<'_>) -> Option<Cluster> {
    let text = section.required_text("cluster", "ns/pool");
    if text.is_empty() {
        return None;
    }
    let cluster: Result<Cluster, _> = text.parse();
    if let Err(error) = &cluster {
        refuse(
            section,
            "cluster",
            "it cannot be used",
            &error.to_string(),
            "ns/pool",
        );
    }
    cluster.ok()
}

/// Labels of each cluster that this pool serves; absent: it serves the only one there is.
fn clusters(section: &mut Section<'_>) -> Option<HashMap<Cluster, Arc<Labels>>> {
    let value = section.value("clusters")?;
    let entries = value.section()?.entries();
    if entries.is_empty() {
        let expected = "at least one cluster and its labels, or no such field";
        refuse(
            section,
            "clusters",
            "it names none",
            expected,
            "{ns/pool: {}}",
        );
    }
    let clusters = entries.into_iter().filter_map(|(name, value)| {
        let cluster: Result<Cluster, _> = name.parse();
        if let Err(error) = &cluster {
            let expected = format!("the name of a cluster: {error}");
            value.refuse("it cannot be used", &expected, "ns/pool: {}");
        }
        Some((cluster.ok()?, Arc::new(labels(value.section()?))))
    });
    Some(clusters.collect())
}

/// Without `clusters` nothing says which endpoints belong to which.
fn refuse_other_clusters(models: &[(Arc<str>, Vec<Rule>)], findings: &Findings) {
    let mut rules = models.iter().flat_map(|(_, rules)| rules);
    let Some(first) = rules.next() else {
        return;
    };
    for other in rules.filter(|rule| rule.cluster != first.cluster) {
        findings.refuse(
            format!("{}.cluster", other.place),
            format!(
                "{:?} is another one than {:?} of the rules before",
                other.cluster.as_str(),
                first.cluster.as_str()
            ),
            "one cluster in all rules, or the field clusters with the labels of each",
            "clusters: {ns/pool-a: {pool: a}, ns/pool-b: {pool: b}}",
        );
    }
}

fn balances(section: Section<'_>, default: &Balance) -> HashMap<Box<str>, Balance> {
    let mut balances = HashMap::new();
    for (name, value) in section.entries() {
        refuse_long_model(&name, &value);
        if let Some(section) = value.section() {
            balances.insert(name.into(), whole_balance(section, default));
        }
    }
    balances
}

fn whole_balance(mut section: Section<'_>, default: &Balance) -> Balance {
    let read = balance(&mut section, default);
    section.finish();
    read
}

/// Reads what an entry of `lb_mapping_rule` may have.
pub(super) fn balance(section: &mut Section<'_>, default: &Balance) -> Balance {
    let mut weights = default.weights.clone();
    let weight = Bounds::WEIGHT;
    weights.request_weight = section.number("request_load_weight", weight, weights.request_weight);
    weights.prefill_weight = section.number("prefill_load_weight", weight, weights.prefill_weight);
    let both = section.has("cache_radio_weight") && section.has("cache_ratio_weight");
    if both {
        let expected = "one of the two spellings";
        refuse(
            section,
            "cache_ratio_weight",
            "cache_radio_weight is there too",
            expected,
            "2",
        );
    }
    let read = section.number("cache_radio_weight", weight, weights.cache_weight);
    weights.cache_weight = section.number("cache_ratio_weight", weight, read);
    let growth = [("linear", Growth::Linear), ("ceil", Growth::Ceil)];
    weights.growth = section
        .choice("dynamic_weight", &growth)
        .unwrap_or_default();
    let floor = i64::try_from(weights.prompt_floor).unwrap_or(i64::MAX);
    let floor = section.integer("prompt_floor", 0..=i64::MAX, floor);
    weights.prompt_floor = u64::try_from(floor).unwrap_or_default();
    let charges = [
        ("uncached", PrefillCharge::Uncached),
        ("full", PrefillCharge::Full),
    ];
    let percent = i64::from(default.candidate_percent);
    let percent = section.integer("candidate_percent", 0..=100, percent);
    Balance {
        load_aware: section.flag("load_aware_enable", default.load_aware),
        cache_aware: section.flag("cache_aware_enable", default.cache_aware),
        candidate_percent: u32::try_from(percent).unwrap_or(default.candidate_percent),
        prefill_charge: section
            .choice("prefill_charge", &charges)
            .unwrap_or_default(),
        weights,
    }
}

fn access_log(mut section: Section<'_>) -> AccessLog {
    let log = AccessLog {
        enabled: section.flag("enabled", false),
        path: section
            .text("path", "/var/log/llm.json")
            .filter(|path| path != "-")
            .map(Into::into),
    };
    section.finish();
    log
}

fn transcoders(mut section: Section<'_>) -> Transcoders {
    let default = Transcoders::default();
    let mut triton = section.section("triton");
    let mut trt_llm = section.section("trt-llm");
    let wires = [("openai", Wire::OpenAi), ("triton", Wire::Triton)];
    let outputs = [
        ("delta", StreamOutput::Delta),
        ("cumulative", StreamOutput::Cumulative),
    ];
    let tokens = i64::from(default.trt_llm.default_max_tokens);
    let tokens = trt_llm.integer("default_max_tokens", 1..=i64::from(u32::MAX), tokens);
    let transcoders = Transcoders {
        triton: Triton {
            chat_template: chat_template(&mut triton),
            extra_outputs: triton.flag("extra_outputs", default.triton.extra_outputs),
        },
        trt_llm: TrtLlm {
            wire: trt_llm.choice("wire", &wires).unwrap_or_default(),
            chat_template: chat_template(&mut trt_llm),
            default_max_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            stream_output: trt_llm
                .choice("stream_output", &outputs)
                .unwrap_or_default(),
            repeats_prompt: trt_llm.flag("repeats_prompt", default.trt_llm.repeats_prompt),
        },
    };
    triton.finish();
    trt_llm.finish();
    section.finish();
    transcoders
}

fn chat_template(section: &mut Section<'_>) -> ChatTemplate {
    let templates = [
        ("plain", ChatTemplate::Plain),
        ("chatml", ChatTemplate::ChatMl),
    ];
    section
        .choice("chat_template", &templates)
        .unwrap_or_default()
}

/// One of some words, which must be there.
fn required_choice<T: Copy>(
    section: &mut Section<'_>,
    field: &'static str,
    words: &[(&str, T)],
) -> Option<T> {
    if let Some(value) = section.value(field) {
        return value.choice(words);
    }
    let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    let expected = format!("one of {}", known.join(", "));
    refuse(
        section,
        field,
        "it is missing",
        &expected,
        known.first().unwrap_or(&""),
    );
    None
}

/// A text of at most so many bytes; empty if it is absent.
fn bounded(section: &mut Section<'_>, field: &'static str, max: usize) -> String {
    let Some(value) = section.value(field) else {
        return String::new();
    };
    let text = value.text_or_empty("prod").unwrap_or_default();
    refuse_long(section.findings(), section.place(field), &text, max);
    text
}

fn refuse_long(findings: &Findings, item: String, text: &str, max: usize) {
    if text.len() > max {
        let problem = format!("it has {} bytes", text.len());
        findings.refuse(
            item,
            problem,
            format!("at most {max} bytes"),
            "a shorter text",
        );
    }
}

fn refuse_long_model(name: &str, value: &Value<'_>) {
    if name.is_empty() || name.len() > MAX_MODEL {
        let expected = format!("a model's name of 1 to {MAX_MODEL} bytes");
        value.refuse("no request can name this model", &expected, "qwen-2.5-72b");
    }
}

fn refuse(section: &Section<'_>, field: &str, problem: &str, expected: &str, example: &str) {
    let example = format!("{field}: {example}");
    section
        .findings()
        .refuse(section.place(field), problem, expected, example);
}
