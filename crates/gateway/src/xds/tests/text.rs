//! Resources as text: what is set, nested messages opened.

use std::fmt::Debug;

use prost::{Message, Name};

use crate::xds::proto::{
    cluster, early_header_mutation, endpoint, ext_proc, hcm, header_mutation, header_to_metadata,
    http_rbac, least_request, listener, override_host, previous_hosts, previous_priorities,
    raw_buffer, route, router, subset, tls, tls_inspector, upstream_codec, upstream_http,
    upstream_ip_port,
};

/// The message of that type, without fields that have their default.
pub(super) fn show(type_url: &str, bytes: &[u8]) -> String {
    let shown = tidy(&open(type_url, bytes));
    // Nesting is deep: one space a level.
    let lines = shown.lines().map(|line| {
        let text = line.trim_start();
        format!("{}{text}", " ".repeat((line.len() - text.len()) / 4))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn open(type_url: &str, bytes: &[u8]) -> String {
    let known: &[(String, Decode)] = &[
        of::<cluster::Cluster>(),
        of::<early_header_mutation::HeaderMutation>(),
        of::<endpoint::ClusterLoadAssignment>(),
        of::<ext_proc::ExternalProcessor>(),
        of::<ext_proc::ExtProcPerRoute>(),
        of::<hcm::HttpConnectionManager>(),
        of::<header_mutation::HeaderMutation>(),
        of::<header_to_metadata::Config>(),
        of::<http_rbac::Rbac>(),
        of::<least_request::LeastRequest>(),
        of::<listener::Listener>(),
        of::<override_host::OverrideHost>(),
        of::<previous_hosts::PreviousHostsPredicate>(),
        of::<previous_priorities::PreviousPrioritiesConfig>(),
        of::<raw_buffer::RawBuffer>(),
        of::<route::RouteConfiguration>(),
        of::<router::Router>(),
        of::<subset::Subset>(),
        of::<tls::DownstreamTlsContext>(),
        of::<tls::UpstreamTlsContext>(),
        of::<tls_inspector::TlsInspector>(),
        of::<upstream_codec::UpstreamCodec>(),
        of::<upstream_http::HttpProtocolOptions>(),
        of::<upstream_ip_port::UpstreamIpPortMatcher>(),
    ];
    let (_, decode) = known
        .iter()
        .find(|(url, _)| url == type_url)
        .unwrap_or_else(|| panic!("{type_url} is not in the list of tests/text.rs"));
    decode(bytes)
}

type Decode = fn(&[u8]) -> String;

fn of<M: Message + Name + Default + Debug>() -> (String, Decode) {
    (M::type_url(), |bytes| {
        format!("{:#?}", M::decode(bytes).unwrap())
    })
}

/// Opens each `Any`, then drops defaults until none is left.
fn tidy(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut source = text.lines();
    while let Some(line) = source.next() {
        if !line.trim_start().starts_with("type_url: ") {
            lines.push(line.to_owned());
            continue;
        }
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let url = line.split('"').nth(1).unwrap_or_default();
        let mut bytes = Vec::new();
        let value = source.next().unwrap_or_default();
        if !value.trim_end().ends_with("[],") {
            let numbers = source.by_ref().take_while(|line| line.trim() != "],");
            bytes = numbers
                .map(|n| n.trim().trim_end_matches(',').parse().unwrap())
                .collect();
        }
        lines.extend(
            tidy(&open(url, &bytes))
                .lines()
                .map(|line| format!("{indent}{line}")),
        );
    }
    loop {
        let before = lines.len();
        lines.retain(|line| !is_default(line));
        lines = without_empty(lines);
        if lines.len() == before {
            return one_liners(lines).join("\n");
        }
    }
}

fn is_default(line: &str) -> bool {
    let value = line
        .trim()
        .trim_end_matches(',')
        .split_once(": ")
        .map(|(_, v)| v);
    matches!(value, Some("None" | "[]" | "false" | "0" | "\"\"" | "{}"))
}

/// `X {` directly followed by `}` is `X`.
fn without_empty(lines: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(lines.len());
    for line in lines {
        let closes = matches!(line.trim(), "}," | "}");
        match kept.last_mut() {
            Some(last) if closes && last.ends_with(" {") => {
                let comma = if line.ends_with(',') { "," } else { "" };
                *last = format!("{}{comma}", last.trim_end_matches(" {"));
            }
            _ => kept.push(line),
        }
    }
    kept
}

/// `Some(` X `)` with one line inside becomes one line.
fn one_liners(mut lines: Vec<String>) -> Vec<String> {
    loop {
        let mut joined: Vec<String> = Vec::with_capacity(lines.len());
        let mut changed = false;
        let mut index = 0;
        while let Some(line) = lines.get(index) {
            let triple = (lines.get(index + 1), lines.get(index + 2));
            if let (Some(inner), Some(end)) = triple
                && let Some(space) = gap(line, end)
                && inner.len() + line.len() < 110
                && !inner.trim_end().ends_with(['(', '{', '['])
            {
                let inner = inner.trim().trim_end_matches(',');
                joined.push(format!("{line}{space}{inner}{space}{}", end.trim()));
                changed = true;
                index += 3;
                continue;
            }
            joined.push(line.clone());
            index += 1;
        }
        lines = joined;
        if !changed {
            return lines;
        }
    }
}

/// What stands between the brackets of `line` and `end`, if they are a pair.
fn gap(line: &str, end: &str) -> Option<&'static str> {
    match (line.chars().next_back()?, end.trim().chars().next()?) {
        ('(', ')') | ('[', ']') => Some(""),
        ('{', '}') => Some(" "),
        _ => None,
    }
}
