//! A route's rules, once per route: matches, filters, time limits, backends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::text::quoted;
use crate::world::{HttpRoute, PathMatch, Rewrite, RouteFilter, RouteMatch, RouteRule, World};

use super::refs::{BadRef, resolve};
use super::values;
use super::{Action, Backend, Rule, RuleId, Timeouts, TlsPolicies, Weighted};

/// A route's rules and what is wrong with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Arc<Rule>>,
    /// The first backend reference that cannot be followed.
    pub(crate) bad_ref: Option<BadRef>,
    /// Why rules answer 500 though their references are right.
    pub(crate) unsupported: Vec<String>,
    /// Every backend that can be followed, also of weight zero.
    pub(crate) named: BTreeSet<Backend>,
    /// Some rule is as the user wants it.
    pub(crate) any_supported: bool,
}

pub(crate) fn make_rules(world: &World, tls: &TlsPolicies<'_>, route: &HttpRoute) -> Rules {
    let mut made = Rules::default();
    for (index, rule) in route.rules.iter().enumerate() {
        let (action, bad) = make_action(world, tls, route, rule, &mut made.named);
        made.bad_ref = made.bad_ref.or(bad);
        let problem = unsupported(rule);
        // Also without its filters: what is wrong with them would stand in the whole table.
        let (action, filters) = match &problem {
            Some(_) => (Action::Status(500), Vec::new()),
            None => (action, rule.filters.clone()),
        };
        match problem {
            Some(what) => made.unsupported.push(format!("rule {index}: {what}")),
            None => made.any_supported = true,
        }
        let any = [RouteMatch::default()];
        let matches = if rule.matches.is_empty() {
            &any[..]
        } else {
            &rule.matches[..]
        };
        // One that is not supported stays, and holds for more requests than it is meant for: else they would be answered by
        // a rule that is less specific.
        for (position, matcher) in matches.iter().enumerate() {
            made.rules.push(Arc::new(Rule {
                id: RuleId {
                    route: route.key.clone(),
                    rule: index,
                    index: position,
                },
                created: route.created,
                matcher: matcher.clone(),
                filters: filters.clone(),
                timeouts: Timeouts {
                    request: parse_limit(rule.request_timeout.as_deref()),
                    backend: parse_limit(rule.backend_timeout.as_deref()),
                },
                action: action.clone(),
            }));
        }
    }
    made
}

fn make_action(
    world: &World,
    tls: &TlsPolicies<'_>,
    route: &HttpRoute,
    rule: &RouteRule,
    named: &mut BTreeSet<Backend>,
) -> (Action, Option<BadRef>) {
    let mut bad = None;
    let mut backends = Vec::with_capacity(rule.backends.len());
    for backend_ref in &rule.backends {
        let backend = match resolve(world, tls, &route.key.namespace, backend_ref) {
            Ok(backend) => {
                named.insert(backend.clone());
                backend
            }
            Err(why) => {
                bad = bad.or(Some(why));
                Backend::Invalid
            }
        };
        if backend_ref.weight > 0 {
            backends.push(Weighted {
                weight: backend_ref.weight,
                filters: backend_ref.filters.clone(),
                backend,
            });
        }
    }
    let redirect = rule.filters.iter().find_map(|filter| match filter {
        RouteFilter::Redirect(redirect) => Some(redirect.clone()),
        _ => None,
    });
    let action = match redirect {
        Some(redirect) => Action::Redirect(redirect),
        None if backends.iter().all(|b| b.backend == Backend::Invalid) => Action::Status(500),
        None => Action::Forward(backends),
    };
    (action, bad)
}

/// What of the rule is not supported; `None`: all is.
fn unsupported(rule: &RouteRule) -> Option<String> {
    let of_backends = || rule.backends.iter().flat_map(|backend| &backend.filters);
    let filters = rule.filters.iter().chain(of_backends());
    let filter = filters.filter_map(values::problem);
    let of_backend = of_backends().filter_map(|filter| {
        let kind = match filter {
            RouteFilter::Redirect(_) => "RequestRedirect",
            RouteFilter::Rewrite(_) => "URLRewrite",
            RouteFilter::RequestHeaders(_)
            | RouteFilter::ResponseHeaders(_)
            | RouteFilter::Unsupported(_) => return None,
        };
        Some(format!("{kind} on a backendRef is not supported"))
    });
    let regex = rule
        .matches
        .iter()
        .filter(|matcher| uses_regex(matcher))
        .map(|_| "RegularExpression matches are not supported".to_owned());
    let limits = [&rule.request_timeout, &rule.backend_timeout];
    let limit = limits
        .into_iter()
        .flatten()
        .filter(|text| parse_duration(text).is_none())
        .map(|text| {
            let text = quoted(text);
            format!("timeout {text} is not a duration such as 10s or 1m30s")
        });
    let not_known = rule.problem.iter().cloned();
    not_known
        .chain(filter)
        .chain(of_backend)
        .chain(regex)
        .chain(limit)
        .next()
}

fn uses_regex(matcher: &RouteMatch) -> bool {
    matches!(matcher.path, PathMatch::Regex(_))
        || matcher
            .headers
            .iter()
            .chain(&matcher.query)
            .any(|m| m.inexact)
}

// === impl Rule ===

impl Rule {
    /// Whether its pools are reached through a hop: a time limit ends a hung EPP only from outside a hop, and an EPP behind
    /// one sees the path that the model server gets.
    pub(crate) fn needs_hop(&self) -> bool {
        let limits = [self.timeouts.request, self.timeouts.backend];
        let is_limited = limits.into_iter().flatten().any(|limit| !limit.is_zero());
        is_limited || self.rewrite().is_some_and(|to| to.path.is_some())
    }

    /// Whether it answers requests that its route does not mean, since regular expressions are not supported.
    pub(crate) fn is_widened(&self) -> bool {
        uses_regex(&self.matcher)
    }

    pub(crate) fn rewrite(&self) -> Option<&Rewrite> {
        self.filters.iter().find_map(|filter| match filter {
            RouteFilter::Rewrite(to) => Some(to),
            _ => None,
        })
    }
}

fn parse_limit(text: Option<&str>) -> Option<Duration> {
    text.and_then(parse_duration)
}

/// Gateway API durations (GEP-2257): one to four of `<number>h|m|s|ms`, each at most 5 digits.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let number: u64 = number.parse().ok().filter(|_| digits <= 5)?;
        let (unit, tail) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
            .into_iter()
            .find_map(|(unit, millis)| Some((millis, tail.strip_prefix(unit)?)))?;
        total += Duration::from_millis(number * unit);
        if tail.is_empty() {
            return Some(total);
        }
        rest = tail;
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10s", Some(10_000))]
    #[case("1m30s", Some(90_000))]
    #[case("1h2m3s4ms", Some(3_723_004))]
    #[case("500ms", Some(500))]
    #[case("0s", Some(0))]
    #[case("10", None)]
    #[case("s", None)]
    #[case("100000s", None)]
    #[case("1h1h1h1h1h", None)]
    #[case("-1s", None)]
    fn durations_are_gateway_api_ones(#[case] text: &str, #[case] millis: Option<u64>) {
        assert_eq!(parse_duration(text), millis.map(Duration::from_millis));
    }
}
