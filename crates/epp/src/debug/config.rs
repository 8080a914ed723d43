//! The configuration in force. It has no secrets; of certificates it names the files.

use scheduling::{Filter, Profile};
use serde_json::{Value, json};

use crate::{
    config::{Band, Config, FlowControl, InForce, MetricsSource, Prefix},
    llm::LlmFilter,
};

pub(super) fn of(in_force: &InForce) -> Value {
    let config: &Config = in_force;
    let Config {
        profile,
        prefix,
        detector,
        flow_control,
        session,
        models,
        objectives,
        rewrites,
        trusted_headers,
        allow_client_kv_transfer,
        metrics_source,
        engines,
        discovery,
        parsers,
        llm_filter: _,
        ignored: _,
    } = config;
    let rewrites = rewrites.iter().map(|rule| {
        let targets = rule.targets.iter();
        let targets = targets.map(|one| json!({ "model": one.model, "weight": one.weight }));
        json!({ "models": rule.models, "targets": targets.collect::<Vec<_>>() })
    });
    json!({
        "profile": scheduling_profile(profile),
        "prefix": prefix_index(prefix),
        "saturation_detector": { "type": detector.name(), "parameters": format!("{detector:?}") },
        "flow_control": flow(flow_control),
        "session": session.as_ref().map(|session| json!({
            "strategy": format!("{:?}", session.strategy),
            "headers": session.headers,
        })),
        "models": models,
        "objectives": objectives,
        "rewrites": rewrites.collect::<Vec<_>>(),
        "trusted_headers": {
            "objective": trusted_headers.objective,
            "fairness": trusted_headers.fairness,
            "modelNameRewrite": trusted_headers.model_name_rewrite,
        },
        "allow_client_kv_transfer": allow_client_kv_transfer,
        "metrics_source": source(metrics_source),
        "default_engine": engines.default_engine,
        "engines": engines.configs.iter().map(|engine| &engine.name).collect::<Vec<_>>(),
        "file_discovery": discovery.as_ref().map(|file| &file.path),
        "parsers": {
            "openai": parsers.openai,
            "anthropic": parsers.anthropic,
            "vllm_http": parsers.vllm_http,
        },
        "llm_filter": in_force.llm_filter().map(|filter| llm_filter(filter)),
        "ignored": in_force.ignored().map(|one| &one.item).collect::<Vec<_>>(),
    })
}

fn scheduling_profile(profile: &Profile) -> Value {
    let Profile {
        filters,
        scorers,
        picker,
        freshness,
    } = profile;
    let scorers = scorers.iter().map(|one| {
        json!({
            "type": one.scorer.name(),
            "weight": one.weight,
            "parameters": format!("{:?}", one.scorer),
        })
    });
    json!({
        "filters": filters.iter().map(Filter::name).collect::<Vec<_>>(),
        "scorers": scorers.collect::<Vec<_>>(),
        "picker": picker.kind.name(),
        "max_endpoints": picker.max_endpoints,
        "fresh_for_seconds": freshness.fresh_for.as_secs_f64(),
        "stale_for_seconds": freshness.stale_for.as_secs_f64(),
    })
}

fn llm_filter(filter: &LlmFilter) -> Value {
    let rules = filter.rules.rules().map(|(model, rule)| {
        let subsets = rule.subsets.iter();
        json!({
            "model": model,
            "rule": &*rule.place,
            "scene": &*rule.scene_name,
            "backend": rule.backend.name(),
            "cluster": rule.cluster.as_str(),
            "headers": rule.headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            "subsets": subsets.map(|one| &*one.name).collect::<Vec<_>>(),
        })
    });
    json!({
        "protocol": filter.protocol.name(),
        "algorithm": filter.algorithm.name(),
        "prompt_mode": format!("{:?}", filter.prompt_mode),
        "length_unit": format!("{:?}", filter.length_unit),
        "rules": rules.collect::<Vec<_>>(),
    })
}

fn prefix_index(prefix: &Prefix) -> Value {
    json!({
        "block_tokens": prefix.block_tokens,
        "max_prefix_tokens": prefix.max_prefix_tokens,
        "lru_capacity_per_server": prefix.lru_capacity_per_server,
        "auto_tune": prefix.auto_tune,
        "max_bytes": prefix.max_bytes,
        "shards": prefix.shards,
    })
}

fn flow(flow: &FlowControl) -> Value {
    let band = |band: &Band| {
        json!({
            "max_requests": band.max_requests,
            "max_bytes": band.max_bytes,
            "fairness": format!("{:?}", band.fairness),
            "ordering": format!("{:?}", band.ordering),
        })
    };
    let bands = flow
        .bands
        .iter()
        .map(|(priority, one)| (priority.to_string(), band(one)));
    let seconds = |limit: Option<std::time::Duration>| limit.map(|limit| limit.as_secs_f64());
    json!({
        "enabled": flow.enabled,
        "max_requests": flow.max_requests,
        "max_bytes": flow.max_bytes,
        "default_request_ttl_seconds": seconds(flow.default_request_ttl),
        "no_endpoint_request_ttl_seconds": seconds(flow.no_endpoint_request_ttl),
        "bands": bands.collect::<serde_json::Map<_, _>>(),
        "default_band": band(&flow.default_band),
        "default_negative_band": band(&flow.default_negative_band),
    })
}

fn source(source: &MetricsSource) -> Value {
    json!({
        "scheme": format!("{:?}", source.scheme),
        "path": source.path,
        "port": source.port,
        "interval_seconds": source.interval.map(|interval| interval.as_secs_f64()),
        "insecure_skip_verify": source.insecure_skip_verify,
        "ca_cert_path": source.ca_cert_path,
        "client_cert_path": source.client_cert.as_ref().map(|files| &files.cert_path),
    })
}
