//! Values of filters that the API lets through and Envoy refuses, together with the whole route
//! table they stand in.

use crate::world::{HeaderEdit, Redirect, RouteFilter};

/// What of the filter Envoy would refuse, or nobody could use; `None`: nothing.
pub(crate) fn problem(filter: &RouteFilter) -> Option<String> {
    match filter {
        RouteFilter::RequestHeaders(edit) | RouteFilter::ResponseHeaders(edit) => of_edit(edit),
        RouteFilter::Redirect(redirect) => of_redirect(redirect),
        RouteFilter::Unsupported(kind) => Some(format!("filter {kind} is not supported")),
    }
}

fn of_edit(edit: &HeaderEdit) -> Option<String> {
    let pairs = || edit.set.iter().chain(&edit.add);
    let mut names = pairs().map(|(name, _)| name).chain(&edit.remove);
    if let Some(name) = names.find(|name| !is_token(name)) {
        return Some(format!("{name:?} is no name of a header"));
    }
    let mut names = pairs().map(|(name, _)| name).chain(&edit.remove);
    if names.any(|name| name.eq_ignore_ascii_case("host")) {
        return Some("header host cannot be modified".to_owned());
    }
    let (name, _) = pairs().find(|(_, value)| value.chars().any(is_forbidden))?;
    Some(format!("the value of header {name} has control characters"))
}

fn of_redirect(redirect: &Redirect) -> Option<String> {
    let host = redirect.hostname.as_deref();
    let is_host = |host: &str| {
        let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
        !host.is_empty() && host.bytes().all(part)
    };
    if let Some(host) = host.filter(|host| !is_host(host)) {
        return Some(format!("redirect to hostname {host:?} is not possible"));
    }
    let paths = [&redirect.full_path, &redirect.prefix];
    let bad = |path: &&String| path.chars().any(|c| c.is_control() || c.is_whitespace());
    let path = paths.into_iter().flatten().find(bad)?;
    Some(format!("redirect to path {path:?} is not possible"))
}

/// The characters of RFC 9110 for names; pseudo-headers (`:path`) are none.
fn is_token(name: &str) -> bool {
    let part = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(part)
}

fn is_forbidden(c: char) -> bool {
    c.is_control() && c != '\t'
}
