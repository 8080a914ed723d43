//! Redirects, as Gateway API defines the parts of a location that a filter leaves out, and new paths, which rewrites have too.

use crate::model::{Protocol, prefix_of};
use crate::world::{NewPath, PathMatch, Redirect, RouteMatch};

use super::proto::{matcher, matching, route};

/// The listener that a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) is_https: bool,
    pub(super) port: u16,
}

/// How Envoy makes a new path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathChange {
    /// In place of what the rule matched.
    Prefix(String),
    /// In place of what the expression finds.
    Regex(matcher::RegexMatchAndSubstitute),
}

/// Where the client is sent from a listener, for the rule with this match.
pub(super) fn redirect(to: &Redirect, matched: &RouteMatch, from: Origin) -> route::RedirectAction {
    use route::redirect_action::{
        PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
    };
    let code = match to.code {
        301 => RedirectResponseCode::MovedPermanently,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => RedirectResponseCode::Found,
    };
    let path = to.path.as_ref().map(|path| match path {
        NewPath::Full(path) => PathRewriteSpecifier::PathRedirect(path.clone()),
        NewPath::Prefix(new) => match change_prefix(new, matched) {
            PathChange::Prefix(new) => PathRewriteSpecifier::PrefixRewrite(new),
            PathChange::Regex(change) => PathRewriteSpecifier::RegexRewrite(change),
        },
    });
    route::RedirectAction {
        host_redirect: to.hostname.clone().unwrap_or_default(),
        port_redirect: from.port(to).into(),
        response_code: code.into(),
        scheme_rewrite_specifier: to
            .scheme
            .clone()
            .map(SchemeRewriteSpecifier::SchemeRedirect),
        path_rewrite_specifier: path,
        ..route::RedirectAction::default()
    }
}

/// The route of a redirect for requests whose host has a port that is not the well-known one of the listener, where they get another
/// location.
pub(super) fn redirect_of_mapped(
    to: &Redirect,
    made: &route::Route,
    from: Origin,
) -> Option<route::Route> {
    use route::header_matcher::HeaderMatchSpecifier;
    let port = from.port_of_mapped(to)?;
    let mut mapped = made.clone();
    // Where the scheme changes, Envoy itself leaves out the well-known port of the former one.
    let own = format!(".*:{}", well_known(from.is_https));
    let hosts = [(".*:[0-9]+".to_owned(), false), (own, true)];
    let hosts = hosts.map(|(regex, invert_match)| route::HeaderMatcher {
        name: ":authority".to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(matching(regex))),
        invert_match,
        ..route::HeaderMatcher::default()
    });
    mapped.r#match.as_mut()?.headers.extend(hosts);
    let Some(route::route::Action::Redirect(action)) = &mut mapped.action else {
        return None;
    };
    action.port_redirect = port.into();
    Some(mapped)
}

/// The path of requests to backends, for the rule with this match. Their query stays.
pub(super) fn rewrite(to: &NewPath, matched: &RouteMatch) -> PathChange {
    match to {
        NewPath::Full(path) => PathChange::Regex(substitute("^.*$".to_owned(), path)),
        NewPath::Prefix(new) => change_prefix(new, matched),
    }
}

fn change_prefix(new: &str, matched: &RouteMatch) -> PathChange {
    match &matched.path {
        // A plain rewrite to `/` would leave the slash after the prefix: `//rest`.
        PathMatch::Prefix(old) if prefix_of(new).is_empty() => {
            let old = escape(prefix_of(old));
            PathChange::Regex(substitute(format!("^{old}/*"), "/"))
        }
        // What follows the matched `/` has no slash of its own.
        PathMatch::Prefix(old) if prefix_of(old).is_empty() => {
            PathChange::Prefix(format!("{}/", prefix_of(new)))
        }
        PathMatch::Prefix(_) => PathChange::Prefix(prefix_of(new).to_owned()),
        // The whole path is what is matched.
        PathMatch::Exact(_) | PathMatch::Regex(_) if new.is_empty() => {
            PathChange::Prefix("/".to_owned())
        }
        PathMatch::Exact(_) | PathMatch::Regex(_) => PathChange::Prefix(new.to_owned()),
    }
}

fn substitute(regex: String, new: &str) -> matcher::RegexMatchAndSubstitute {
    matcher::RegexMatchAndSubstitute {
        pattern: Some(matcher::RegexMatcher {
            regex,
            ..matcher::RegexMatcher::default()
        }),
        // A backslash would begin the number of a group.
        substitution: new.replace('\\', r"\\"),
    }
}

// === impl Origin ===

impl Origin {
    pub(super) fn new(port: u16, protocol: &Protocol) -> Self {
        Self {
            is_https: *protocol != Protocol::Http,
            port,
        }
    }

    /// The port to name in the location for requests whose host has one; `None`: the same as for all others. Something before the
    /// listener may map another port to it, which clients then send and Envoy would keep.
    fn port_of_mapped(self, to: &Redirect) -> Option<u16> {
        let is_said = to.scheme.is_some() || to.port.is_some();
        let is_kept = to.hostname.is_none() && self.port(to) == 0;
        let (_, port) = self.ports(to);
        (is_said && is_kept).then_some(port)
    }

    /// The well-known port of the location's scheme, and its port.
    fn ports(self, to: &Redirect) -> (Option<u16>, u16) {
        let own = well_known(self.is_https);
        let (scheme, port) = match to.scheme.as_deref() {
            None => (Some(own), self.port),
            Some("http") => (Some(well_known(false)), well_known(false)),
            Some("https") => (Some(well_known(true)), well_known(true)),
            Some(_) => (None, self.port),
        };
        (scheme, to.port.unwrap_or(port))
    }

    /// The port to name in the location; 0 where Envoy's own way gives none, or the right one.
    fn port(self, to: &Redirect) -> u16 {
        let own = well_known(self.is_https);
        let (scheme, port) = self.ports(to);
        // Without a port of the redirect Envoy keeps that of the request's host, but for the well-known one.
        let is_left_out = to.hostname.is_some() || self.port == own;
        if Some(port) == scheme && is_left_out {
            0
        } else {
            port
        }
    }
}

fn well_known(is_https: bool) -> u16 {
    if is_https { 443 } else { 80 }
}

/// The text as a regular expression that matches it.
fn escape(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| {
        let special = !(c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '~'));
        special.then_some('\\').into_iter().chain([c])
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/", "/new", "/new/")]
    #[case("/", "/new/", "/new/")]
    #[case("/old", "/new/", "/new")]
    #[case("/old/", "/new", "/new")]
    fn prefix_and_rest_are_parted_by_one_slash(
        #[case] old: &str,
        #[case] new: &str,
        #[case] wanted: &str,
    ) {
        let matched = RouteMatch {
            path: PathMatch::Prefix(old.into()),
            ..RouteMatch::default()
        };
        let made = change_prefix(new, &matched);
        assert_eq!(made, PathChange::Prefix(wanted.to_owned()));
    }

    #[rstest]
    #[case::listener_in((false, 8080), None, Some("a.b"), None, 8080)]
    #[case::also_with_the_own_host((false, 8080), None, None, None, 8080)]
    #[case::well_known_listener((false, 80), None, Some("a.b"), None, 0)]
    #[case::well_known_tls_listener((true, 443), None, None, None, 0)]
    #[case::tls_on_another((true, 80), None, None, None, 80)]
    #[case::scheme_of_its_own((false, 80), Some("https"), None, None, 0)]
    #[case::from_an_odd_port((false, 8080), Some("https"), None, None, 443)]
    #[case::from_an_odd_port_to_a_host((false, 8080), Some("https"), Some("a.b"), None, 0)]
    #[case::back((true, 8443), Some("http"), Some("a.b"), None, 0)]
    #[case::port_of_its_own((false, 80), None, None, Some(8083), 8083)]
    #[case::with_a_scheme((false, 80), Some("https"), Some("a.b"), Some(8443), 8443)]
    #[case::well_known_of_the_other_scheme((false, 80), Some("https"), Some("a.b"), Some(80), 80)]
    #[case::said_and_well_known((false, 8080), Some("http"), Some("a.b"), Some(80), 0)]
    fn port_is_that_of_the_listener_or_of_the_scheme(
        #[case] (is_https, port): (bool, u16),
        #[case] scheme: Option<&str>,
        #[case] host: Option<&str>,
        #[case] said: Option<u16>,
        #[case] wanted: u16,
    ) {
        let to = Redirect {
            scheme: scheme.map(Into::into),
            hostname: host.map(Into::into),
            port: said,
            ..Redirect::default()
        };
        assert_eq!(Origin { is_https, port }.port(&to), wanted);
    }

    /// Without it the location would be `https://a.b:30080`, of the port that is mapped to that of the listener.
    #[rstest]
    #[case::scheme((false, 80), Some("https"), None, None, Some(443))]
    #[case::the_same_scheme((true, 443), Some("https"), None, None, Some(443))]
    #[case::port((false, 80), None, None, Some(80), Some(80))]
    #[case::said_already((false, 8080), Some("https"), None, None, None)]
    #[case::another_host((false, 80), Some("https"), Some("a.b"), None, None)]
    #[case::path_alone((false, 80), None, None, None, None)]
    fn port_of_a_request_does_not_go_with_what_the_redirect_says(
        #[case] (is_https, port): (bool, u16),
        #[case] scheme: Option<&str>,
        #[case] host: Option<&str>,
        #[case] said: Option<u16>,
        #[case] wanted: Option<u16>,
    ) {
        let to = Redirect {
            scheme: scheme.map(Into::into),
            hostname: host.map(Into::into),
            port: said,
            ..Redirect::default()
        };
        assert_eq!(Origin { is_https, port }.port_of_mapped(&to), wanted);
    }
}
