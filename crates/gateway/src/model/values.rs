//! Values of filters that the API lets through, and that Envoy refuses together with the whole route table they stand in, or
//! takes though they break the messages that pass through it.

use crate::text::quoted;
use crate::world::{HeaderEdit, NewPath, Redirect, Rewrite, RouteFilter};

/// Headers that mark where a message ends, or that belong to one connection: each side of Envoy has its own.
///
/// Envoy removes those that it receives (RFC 9110, section 7.6.1; RFC 9113, section 8.2.2) and writes its own. Headers
/// that a route adds are written after that, unchanged: a model server that reads `content-length: 3` reads the rest of
/// the body as the next request, whose answer another client gets. Removing one does the same where the receiver relies
/// on it. `http2-settings` belongs to an upgrade to HTTP/2, `expect` requests an interim answer that the client did not
/// request, `trailer` announces what Envoy may drop. `proxy-authenticate` and `proxy-authorization` are not here: they
/// are credentials and change no framing, and a route may need them for a backend that is a proxy.
const OF_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Prefixes of the headers that Envoy, its hops and endpoint pickers exchange.
const INTERNAL: [&str; 3] = ["x-envoy-", "x-gateway-destination-endpoint", "x-isthmus-"];

/// What of the filter Envoy would refuse, or nobody could use; `None`: nothing.
pub(crate) fn problem(filter: &RouteFilter) -> Option<String> {
    match filter {
        RouteFilter::RequestHeaders(edit) | RouteFilter::ResponseHeaders(edit) => of_edit(edit),
        RouteFilter::Redirect(redirect) => of_redirect(redirect),
        RouteFilter::Rewrite(rewrite) => of_rewrite(rewrite),
        RouteFilter::Unsupported(kind) => Some(format!("filter {kind} is not supported")),
    }
}

fn of_edit(edit: &HeaderEdit) -> Option<String> {
    let pairs = || edit.set.iter().chain(&edit.add);
    let mut names = pairs().map(|(name, _)| name).chain(&edit.remove);
    if let Some(problem) = names.find_map(|name| of_name(name)) {
        return Some(problem);
    }
    let (name, _) = pairs().find(|(_, value)| value.chars().any(is_forbidden))?;
    Some(format!("the value of header {name} has control characters"))
}

/// Why no filter may set, add or remove the header; names are compared without case.
fn of_name(name: &str) -> Option<String> {
    if !is_token(name) {
        return Some(format!("{} is no name of a header", quoted(name)));
    }
    let lower = name.to_ascii_lowercase();
    if lower == "host" {
        return Some("header host cannot be modified".to_owned());
    }
    if OF_CONNECTION.contains(&lower.as_str()) {
        return Some(format!(
            "header {lower} cannot be modified: it belongs to the connection, and a wrong one lets a body be read as another \
             request"
        ));
    }
    let prefix = INTERNAL.iter().find(|prefix| lower.starts_with(**prefix))?;
    Some(format!(
        "header {} cannot be modified: headers that begin with {prefix} are internal to the gateway",
        quoted(&lower)
    ))
}

fn of_redirect(redirect: &Redirect) -> Option<String> {
    let Redirect {
        scheme,
        hostname,
        port: _,
        path,
        code,
    } = redirect;
    let scheme = scheme.as_deref();
    if let Some(scheme) = scheme.filter(|scheme| !matches!(*scheme, "http" | "https")) {
        let scheme = quoted(scheme);
        return Some(format!("redirect to scheme {scheme} is not supported"));
    }
    if !matches!(code, 301 | 302 | 303 | 307 | 308) {
        return Some(format!("redirect with status {code} is not supported"));
    }
    if let Some(host) = hostname.as_deref().filter(|host| !is_host(host)) {
        let host = quoted(host);
        return Some(format!("redirect to hostname {host} is not possible"));
    }
    let path = path.as_ref().and_then(impossible_path)?;
    Some(format!("redirect to path {} is not possible", quoted(path)))
}

fn of_rewrite(rewrite: &Rewrite) -> Option<String> {
    let Rewrite { hostname, path } = rewrite;
    if let Some(host) = hostname.as_deref().filter(|host| !is_host(host)) {
        let host = quoted(host);
        return Some(format!("a host cannot be rewritten to {host}"));
    }
    let path = path.as_ref()?;
    // The query is that of the request.
    let (NewPath::Full(text) | NewPath::Prefix(text)) = path;
    let text =
        impossible_path(path).or_else(|| text.contains(['?', '#']).then_some(text.as_str()))?;
    Some(format!("a path cannot be rewritten to {}", quoted(text)))
}

fn is_host(host: &str) -> bool {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    !host.is_empty() && host.bytes().all(part)
}

/// The text where no path can be made of it. One without a slash at its start would become a part of the host name.
fn impossible_path(path: &NewPath) -> Option<&str> {
    let (text, may_be_empty) = match path {
        NewPath::Full(text) => (text, false),
        NewPath::Prefix(text) => (text, true),
    };
    let has_start = text.starts_with('/') || (may_be_empty && text.is_empty());
    let is_bad = |c: char| c.is_control() || c.is_whitespace();
    (!has_start || text.chars().any(is_bad)).then_some(text)
}

/// The characters of RFC 9110 for names; pseudo-headers (`:path`) are none.
fn is_token(name: &str) -> bool {
    let part = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(part)
}

fn is_forbidden(c: char) -> bool {
    c.is_control() && c != '\t'
}
