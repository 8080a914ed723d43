//! HTTPRoutes, read piece by piece: what this version does not know makes its rule answer 500, by [`RouteRule::problem`]. It
//! is neither left out, nor does it keep the rules of before in use.

#![allow(
    clippy::zero_sized_map_values,
    reason = "serde flattens into maps alone"
)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crd::http_route;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::super::headers::first_of_each;
use super::super::{
    BackendRef, HeaderEdit, HttpRoute, NewPath, ParentRef, PathMatch, Redirect, Rewrite,
    RouteFilter, RouteMatch, RouteRule, ValueMatch,
};
use super::{key, port};

#[cfg(test)]
mod tests;

/// The type of a match that is known and not supported.
const REGEX: &str = "RegularExpression";

/// An HTTPRoute as the API server has it.
#[derive(Clone, Deserialize)]
pub(crate) struct RawRoute {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: RawSpec,
    pub(crate) status: Option<Value>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    parent_refs: Option<Vec<RawParent>>,
    hostnames: Option<Vec<String>>,
    rules: Option<Vec<Value>>,
    /// More parents, as experimental versions of the API have them: without it the route has those that it names.
    #[serde(default, rename = "useDefaultGateways")]
    _defaults: IgnoredAny,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawParent {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    section_name: Option<String>,
    port: Option<i32>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// Fields that this version does not know.
type Unknown = BTreeMap<String, IgnoredAny>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRule {
    /// For people: nothing depends on it.
    #[serde(default, rename = "name")]
    _name: IgnoredAny,
    matches: Option<Vec<Value>>,
    filters: Option<Vec<Value>>,
    backend_refs: Option<Vec<Value>>,
    timeouts: Option<Value>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct RawTimeouts {
    request: Option<String>,
    backend_request: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMatch {
    path: Option<RawPathMatch>,
    method: Option<String>,
    headers: Option<Vec<RawValueMatch>>,
    query_params: Option<Vec<RawValueMatch>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Deserialize)]
struct RawPathMatch {
    r#type: Option<String>,
    value: Option<String>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Deserialize)]
struct RawValueMatch {
    r#type: Option<String>,
    name: String,
    value: String,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBackend {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    port: Option<i32>,
    weight: Option<i32>,
    filters: Option<Vec<Value>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawFilter {
    r#type: String,
    request_header_modifier: Option<Value>,
    response_header_modifier: Option<Value>,
    request_redirect: Option<Value>,
    url_rewrite: Option<Value>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawEdit {
    set: Vec<RawHeader>,
    add: Vec<RawHeader>,
    remove: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct RawRedirect {
    scheme: Option<String>,
    hostname: Option<String>,
    port: Option<u16>,
    path: Option<RawPath>,
    status_code: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawRewrite {
    hostname: Option<String>,
    path: Option<RawPath>,
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum RawPath {
    ReplaceFullPath {
        #[serde(rename = "replaceFullPath")]
        path: String,
    },
    ReplacePrefixMatch {
        #[serde(rename = "replacePrefixMatch")]
        prefix: String,
    },
}

pub(crate) fn http_route(object: &RawRoute) -> HttpRoute {
    let spec = &object.spec;
    let created = object.metadata.creation_timestamp.as_ref();
    let parents = spec.parent_refs.iter().flatten().map(|parent| ParentRef {
        group: parent.group.clone(),
        kind: parent.kind.clone(),
        namespace: parent.namespace.clone(),
        name: parent.name.clone(),
        section: parent.section_name.clone(),
        port: parent.port.map(port),
    });
    let of_spec = unknown_field(&spec.unknown, "a route");
    let mut of_parents = spec.parent_refs.iter().flatten();
    let problem = of_spec
        .or_else(|| of_parents.find_map(|parent| unknown_field(&parent.unknown, "a parentRef")));
    let rules = spec.rules.iter().flatten().map(|value| {
        let mut rule = rule(value);
        rule.problem = rule.problem.or_else(|| problem.clone());
        rule
    });
    HttpRoute {
        key: key(&object.metadata),
        generation: object.metadata.generation.unwrap_or_default(),
        created: created.map_or(0, |time| time.0.as_second()),
        parents: parents.collect(),
        hostnames: spec.hostnames.clone().unwrap_or_default(),
        rules: rules.collect(),
    }
}

fn rule(value: &Value) -> RouteRule {
    let raw = match RawRule::deserialize(value) {
        Ok(raw) => raw,
        Err(error) => {
            return RouteRule {
                problem: Some(error.to_string()),
                ..RouteRule::default()
            };
        }
    };
    let RawRule {
        _name: _,
        matches,
        filters,
        backend_refs,
        timeouts,
        unknown,
    } = raw;
    let mut problem = unknown_field(&unknown, "a rule");
    let mut note = |found: Option<String>| {
        if problem.is_none() {
            problem = found;
        }
    };
    let matches = matches.iter().flatten().map(|one| {
        let (found, problem) = route_match(one);
        note(problem);
        found
    });
    let matches = matches.collect();
    let backends = backend_refs.iter().flatten().filter_map(|one| {
        let (found, problem) = backend(one);
        note(problem);
        found
    });
    let backends = backends.collect();
    let timeouts = timeouts.as_ref().map(RawTimeouts::deserialize);
    let timeouts = timeouts.unwrap_or_else(|| Ok(RawTimeouts::default()));
    note(
        timeouts
            .as_ref()
            .err()
            .map(|error| format!("timeouts: {error}")),
    );
    let timeouts = timeouts.unwrap_or_default();
    RouteRule {
        matches,
        filters: filters.iter().flatten().map(filter).collect(),
        backends,
        request_timeout: timeouts.request,
        backend_timeout: timeouts.backend_request,
        problem,
    }
}

/// The message if there is one.
fn unknown_field(unknown: &Unknown, of: &str) -> Option<String> {
    let name = unknown.keys().next()?;
    let name = crate::text::quoted(name);
    Some(format!("field {name} of {of} is not supported"))
}

/// The match, and what of it is not known. It holds for all requests that the one in the object holds for.
fn route_match(value: &Value) -> (RouteMatch, Option<String>) {
    let raw = match RawMatch::deserialize(value) {
        Ok(raw) => raw,
        Err(error) => {
            let any = RouteMatch {
                path: PathMatch::Regex(String::new()),
                ..RouteMatch::default()
            };
            return (any, Some(format!("match: {error}")));
        }
    };
    let mut problem = unknown_field(&raw.unknown, "a match");
    let mut note = |found: Option<String>| {
        let is_found = found.is_some();
        if problem.is_none() {
            problem = found;
        }
        is_found
    };
    let note_type = |note: &mut dyn FnMut(Option<String>) -> bool, found: &str| {
        if found != REGEX {
            let found = crate::text::quoted(found);
            note(Some(format!("type {found} of a match is not supported")));
        }
    };
    let path = raw.path.map_or_else(PathMatch::default, |path| {
        let value = path.value.unwrap_or_else(|| "/".to_owned());
        let of_path = unknown_field(&path.unknown, "a match of a path");
        match path.r#type.as_deref() {
            _ if note(of_path) => PathMatch::Regex(String::new()),
            None | Some("PathPrefix") => PathMatch::Prefix(value),
            Some("Exact") => PathMatch::Exact(value),
            Some(other) => {
                note_type(&mut note, other);
                let is_regex = other == REGEX;
                PathMatch::Regex(if is_regex { value } else { String::new() })
            }
        }
    });
    let mut values = |list: Option<Vec<RawValueMatch>>| -> Vec<ValueMatch> {
        let list = list.into_iter().flatten().filter_map(|one| {
            if note(unknown_field(&one.unknown, "a match of a value")) {
                return None; // it may hold for any request
            }
            let inexact = !matches!(one.r#type.as_deref(), None | Some("Exact"));
            if inexact {
                note_type(&mut note, one.r#type.as_deref().unwrap_or_default());
            }
            Some(ValueMatch {
                name: one.name,
                value: one.value,
                inexact,
            })
        });
        list.collect()
    };
    let (headers, query) = (values(raw.headers), values(raw.query_params));
    let found = RouteMatch {
        path,
        method: raw.method,
        headers: first_of_each(headers, |one| &one.name),
        query,
    };
    (found, problem)
}

/// The backend if it is one, and what of it is not known.
fn backend(value: &Value) -> (Option<BackendRef>, Option<String>) {
    let raw = match RawBackend::deserialize(value) {
        Ok(raw) => raw,
        Err(error) => return (None, Some(format!("backendRef: {error}"))),
    };
    let problem = unknown_field(&raw.unknown, "a backendRef");
    let backend = BackendRef {
        group: raw.group.unwrap_or_default(),
        kind: raw.kind.unwrap_or_else(|| "Service".to_owned()),
        namespace: raw.namespace,
        name: raw.name,
        port: raw.port.map(port),
        weight: u32::try_from(raw.weight.unwrap_or(1)).unwrap_or(0),
        filters: raw.filters.iter().flatten().map(filter).collect(),
    };
    (Some(backend), problem)
}

fn filter(value: &Value) -> RouteFilter {
    let raw = match RawFilter::deserialize(value) {
        Ok(raw) => raw,
        Err(error) => return RouteFilter::Unsupported(format!("({error})")),
    };
    let unknown = unknown_field(&raw.unknown, "a filter");
    let made = match raw.r#type.as_str() {
        "RequestHeaderModifier" => read::<RawEdit>(raw.request_header_modifier)
            .map(|e| RouteFilter::RequestHeaders(e.into())),
        "ResponseHeaderModifier" => read::<RawEdit>(raw.response_header_modifier)
            .map(|e| RouteFilter::ResponseHeaders(e.into())),
        "RequestRedirect" => {
            read::<RawRedirect>(raw.request_redirect).map(|to| RouteFilter::Redirect(to.into()))
        }
        "URLRewrite" => {
            read::<RawRewrite>(raw.url_rewrite).map(|to| RouteFilter::Rewrite(to.into()))
        }
        other => return RouteFilter::Unsupported(other.to_owned()),
    };
    let problem = unknown.or_else(|| made.as_ref().err().map(ToString::to_string));
    match (problem, made) {
        (None, Ok(made)) => made,
        (problem, _) => {
            let problem = problem.unwrap_or_default();
            RouteFilter::Unsupported(format!("{} ({problem})", raw.r#type))
        }
    }
}

fn read<T: Default + DeserializeOwned>(value: Option<Value>) -> serde_json::Result<T> {
    value.map_or_else(|| Ok(T::default()), serde_json::from_value)
}

// === impl RawRoute ===

/// Without the spec, whose headers may be credentials.
impl fmt::Debug for RawRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRoute")
            .field("key", &key(&self.metadata))
            .finish_non_exhaustive()
    }
}

impl Resource for RawRoute {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        http_route::HttpRoute::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        http_route::HttpRoute::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        http_route::HttpRoute::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        http_route::HttpRoute::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl RawEdit ===

impl From<RawEdit> for HeaderEdit {
    fn from(raw: RawEdit) -> Self {
        let pairs = |list: Vec<RawHeader>| list.into_iter().map(|h| (h.name, h.value));
        Self {
            set: first_of_each(pairs(raw.set), |(name, _)| name),
            add: first_of_each(pairs(raw.add), |(name, _)| name),
            remove: first_of_each(raw.remove, |name| name),
        }
    }
}

// === impl RawRedirect ===

impl From<RawRedirect> for Redirect {
    fn from(raw: RawRedirect) -> Self {
        Self {
            scheme: raw.scheme,
            hostname: raw.hostname,
            port: raw.port,
            path: raw.path.map(Into::into),
            code: raw.status_code.unwrap_or(302),
        }
    }
}

// === impl RawRewrite ===

impl From<RawRewrite> for Rewrite {
    fn from(raw: RawRewrite) -> Self {
        Self {
            hostname: raw.hostname,
            path: raw.path.map(Into::into),
        }
    }
}

// === impl RawPath ===

impl From<RawPath> for NewPath {
    fn from(raw: RawPath) -> Self {
        match raw {
            RawPath::ReplaceFullPath { path } => Self::Full(path),
            RawPath::ReplacePrefixMatch { prefix } => Self::Prefix(prefix),
        }
    }
}
