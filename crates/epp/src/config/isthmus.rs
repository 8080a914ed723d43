//! The block `isthmus`, which only this EPP knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Config, Prefix, section::Section, section::Value};
use crate::llm::LlmFilter;

/// A rule of an `InferenceModelRewrite`: what is asked for, and what servers get instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteRule {
    /// The models that it is for; empty: all.
    pub models: BTreeSet<String>,
    /// One of them is chosen by weight; at least one.
    pub targets: Vec<RewriteTarget>,
}

/// A model that servers get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteTarget {
    /// Its name.
    pub model: String,
    /// Its share among the targets of the rule, from 1 up.
    pub weight: u32,
}

/// Headers of requests that are believed. By default none is: unless a gateway sets or removes them, clients choose their
/// values, and with these their place before the requests of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrustedHeaders {
    /// The one that names the request's objective, and so its priority.
    pub objective: bool,
    /// The one that names its flow.
    pub fairness: bool,
    /// The one that names the model for the server.
    pub model_name_rewrite: bool,
}

/// As in the gateway API for backends.
const MAX_WEIGHT: i64 = 1_000_000;

/// 64 shards are enough for as many threads; more only cost memory.
const MAX_SHARDS: i64 = 1024;

/// Reads the block.
pub(super) fn read(root: &mut Section<'_>, config: &mut Config) {
    let mut section = root.section("isthmus");
    let models = section.list("models").into_iter();
    config.models = models
        .filter_map(|model| model.text("meta-llama/Llama-3.1-8B-Instruct"))
        .collect();
    config.objectives = objectives(section.section("objectives"));
    let rewrites = section.list("rewrites").into_iter();
    config.rewrites = rewrites.filter_map(rewrite).collect();
    if let Some(headers) = section.value("trustedHeaders") {
        config.trusted_headers = trusted_headers(headers);
    }
    if !config.objectives.is_empty() && !config.trusted_headers.objective {
        section.findings().ignore(
            section.place("objectives"),
            "isthmus.trustedHeaders lacks \"objective\": no request can name one",
        );
    }
    config.allow_client_kv_transfer = section.flag("allowClientKvTransfer", false);
    prefix_index(section.section("prefixIndex"), &mut config.prefix);
    let filter = section.value("llmFilter").and_then(Value::section);
    config.llm_filter = filter.map(|filter| Arc::new(LlmFilter::read(filter)));
    section.finish();
}

fn objectives(section: Section<'_>) -> BTreeMap<String, i32> {
    let range = || i64::from(i32::MIN)..=i64::from(i32::MAX);
    let entries = section.entries().into_iter();
    let objectives = entries.filter_map(|(name, value)| {
        let priority = value.integer(range(), -1)?;
        Some((name, i32::try_from(priority).ok()?))
    });
    objectives.collect()
}

fn rewrite(value: Value<'_>) -> Option<RewriteRule> {
    let mut section = value.section()?;
    let matches = section.list("matches");
    // rules are alternatives: without a match, or with one that names no model, it is for all
    let for_all = matches.is_empty();
    let models: Vec<Option<String>> = matches.into_iter().map(match_model).collect();
    let targets = section.list("targets").into_iter();
    let targets: Vec<RewriteTarget> = targets.filter_map(rewrite_target).collect();
    if targets.is_empty() {
        section.findings().refuse(
            section.place("targets"),
            "there is none",
            "at least one model for the servers",
            "targets: [{modelRewrite: llama-8b, weight: 1}]",
        );
    }
    section.finish();
    let models = if for_all || models.contains(&None) {
        BTreeSet::new()
    } else {
        models.into_iter().flatten().collect()
    };
    Some(RewriteRule { models, targets })
}

/// The model of a match; none: it matches all.
fn match_model(value: Value<'_>) -> Option<String> {
    let mut section = value.section()?;
    let model = section.value("model");
    section.finish();
    let mut model = model?.section()?;
    model.choice("type", &[("Exact", ())]);
    let name = model.required_text("value", "gpt-4o");
    model.finish();
    Some(name)
}

fn rewrite_target(value: Value<'_>) -> Option<RewriteTarget> {
    let mut section = value.section()?;
    let model = section.required_text("modelRewrite", "llama-8b");
    let weight = section.integer("weight", 1..=MAX_WEIGHT, 1);
    section.finish();
    Some(RewriteTarget {
        model,
        weight: u32::try_from(weight).unwrap_or(1),
    })
}

fn trusted_headers(value: Value<'_>) -> TrustedHeaders {
    #[derive(Clone, Copy, PartialEq)]
    enum Header {
        Objective,
        Fairness,
        ModelNameRewrite,
    }
    let words = [
        ("objective", Header::Objective),
        ("fairness", Header::Fairness),
        ("modelNameRewrite", Header::ModelNameRewrite),
    ];
    let headers = value.list().into_iter();
    let headers: Vec<Header> = headers.filter_map(|one| one.choice(&words)).collect();
    TrustedHeaders {
        objective: headers.contains(&Header::Objective),
        fairness: headers.contains(&Header::Fairness),
        model_name_rewrite: headers.contains(&Header::ModelNameRewrite),
    }
}

fn prefix_index(mut section: Section<'_>, prefix: &mut Prefix) {
    if let Some(value) = section.value("maxBytes") {
        let place = section.place("maxBytes");
        match value.quantity("512Mi") {
            Some(0) => section.findings().refuse(
                place,
                "it is 0",
                "a quantity above 0; to do without the index, leave out prefix-cache-scorer",
                "maxBytes: 512Mi",
            ),
            Some(bytes) => prefix.max_bytes = bytes,
            None => {}
        }
    }
    let shards = section.integer("shards", 1..=MAX_SHARDS, prefix.shards.into());
    let shards = u16::try_from(shards).unwrap_or(prefix.shards);
    if shards.is_power_of_two() {
        prefix.shards = shards;
    } else {
        section.findings().refuse(
            section.place("shards"),
            format!("{shards} is no power of two"),
            "1, 2, 4 and so on up to 1024: shards are chosen by bits of a hash",
            "shards: 64",
        );
    }
    section.finish();
}
