//! Route tables: rules in order at the edge, one backend at a hop.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crd::Hostname;

use crate::model::{
    Action, Backend, Chain, Epp, GatewayModel, ParentAddresses, ParentMode, Rule, VirtualHost,
    Weighted, literal_start, prefix_of,
};
use crate::world::{HeaderEdit, PathMatch, RouteFilter, RouteMatch, ValueMatch};

use super::names::{self, FAILOVER, HOP};
use super::proto::{core, duration, exactly, google, header, kinds, matching, route, uint32};
use super::redirect::{Origin, PathChange, redirect, redirect_of_mapped, rewrite};
use super::{Options, errors, extproc, filters};

use route::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, UpgradeConfig,
};
use route::weighted_cluster::ClusterWeight;

/// Says how often the edge tried, to hops.
const ATTEMPT: &str = "x-envoy-attempt-count";

/// Choices of a host that was not yet tried, before one tried is taken: at a share of 2 % ten
/// choices lose most retries, a hundred none.
const HOST_CHOICES: i64 = 100;

/// How many attempts a request has at a Service, or at a pool beside one, where only those count that no server has read.
pub(crate) const ATTEMPTS: u8 = 3;

/// How many attempts a request has at a pool, where one that a server has read may be made again: that server may have died of
/// it, and may not be the only one to do so.
const POOL_ATTEMPTS: u8 = 2;

pub(crate) fn edge(
    name: &str,
    model: &GatewayModel,
    port: u16,
    chain: &Chain,
    options: &Options,
) -> route::RouteConfiguration {
    let from = Origin::new(port, &chain.protocol);
    let vhosts = chain
        .vhosts
        .iter()
        .map(|vhost| edge_host(model, vhost, from, options));
    route::RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vhosts.collect(),
        ignore_port_in_host_matching: true,
        ..route::RouteConfiguration::default()
    }
}

/// How often a request is tried again at backends behind hops, of which there are so many.
fn retries(candidates: usize) -> u32 {
    u32::try_from(candidates.saturating_sub(1).clamp(1, 4)).unwrap_or(4)
}

/// The last attempt at a backend behind so many hops: each of them has had its turn.
pub(crate) fn last_attempt(candidates: usize) -> u32 {
    retries(candidates) + 1
}

/// All requests go to `cluster`, after the EPP picked. From attempt `open_at` on they go on without it. A `retry_limit` means that
/// the cluster takes lists of endpoints: a request with a body up to that many bytes goes to the next one while no server has
/// read it. The edge sends it again where one has.
pub(crate) fn hop(
    name: &str,
    cluster: &str,
    epp: Option<(&str, &Epp)>,
    open_at: Option<u32>,
    retry_limit: Option<u64>,
) -> route::RouteConfiguration {
    let attempts = retry_limit.map_or(1, |_| ATTEMPTS);
    let retry = retry_limit.map(|_| route::RetryPolicy {
        retry_on: on_failure(false).to_owned(),
        num_retries: Some(uint32(u32::from(attempts - 1))),
        ..route::RetryPolicy::default()
    });
    let to = |headers: Vec<route::HeaderMatcher>, open: bool| route::Route {
        r#match: Some(route::RouteMatch {
            headers,
            ..prefix("/")
        }),
        action: Some(route::route::Action::Route(route::RouteAction {
            retry_policy: retry.clone(),
            ..through(cluster)
        })),
        request_body_buffer_limit: retry_limit.map(|value| google::UInt64Value { value }),
        typed_per_filter_config: epp
            .map(|(name, epp)| extproc::enabled(name, epp, open, attempts.into()))
            .unwrap_or_default(),
        ..route::Route::default()
    };
    let mut routes = Vec::new();
    if let Some(attempt) = open_at {
        let last = route::header_matcher::HeaderMatchSpecifier::RangeMatch(kinds::Int64Range {
            start: attempt.into(),
            end: 100, // more than any number of attempts
        });
        routes.push(to(vec![header_match(ATTEMPT, last)], true));
    }
    routes.push(to(Vec::new(), false));
    route::RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![hop_host("*", vec!["*".to_owned()], routes)],
        ..route::RouteConfiguration::default()
    }
}

/// All requests go to Gateways of another cluster, but those that came from one. Their host is kept if the Gateways have it; else it
/// becomes one of theirs. With TLS a wildcard stands for one label, as in certificates: clients could else choose hosts for which
/// the handshake fails, which counts against the Gateways.
pub(crate) fn parent_hop(
    name: &str,
    cluster: &str,
    mode: &ParentMode,
    own_name: &str,
) -> route::RouteConfiguration {
    use core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd;
    let names_are_checked = matches!(mode.addresses, ParentAddresses::Dns(_));
    let per_filter = names_are_checked.then(|| filters::route_not_in(&mode.denied));
    let sent = |host: Option<&str>, headers: Vec<route::HeaderMatcher>| {
        let rewritten = host.map(|host| HostRewriteSpecifier::HostRewriteLiteral(host.to_owned()));
        route::Route {
            r#match: Some(route::RouteMatch {
                headers,
                ..prefix("/")
            }),
            request_headers_to_add: vec![header(HOP, own_name, OverwriteIfExistsOrAdd)],
            action: Some(route::route::Action::Route(route::RouteAction {
                host_rewrite_specifier: rewritten,
                ..through(cluster)
            })),
            typed_per_filter_config: per_filter.clone().unwrap_or_default(),
            ..route::Route::default()
        }
    };
    let refused = || {
        let present = route::header_matcher::HeaderMatchSpecifier::PresentMatch(true);
        route::Route {
            r#match: Some(route::RouteMatch {
                headers: vec![header_match(HOP, present)],
                ..prefix("/")
            }),
            action: Some(direct(errors::LOOP)),
            ..route::Route::default()
        }
    };
    // By the number of labels that a host of a wildcard's may have; 0: any.
    let by_host = mode.tls && mode.verification.is_none();
    let mut kept: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    if mode.host().is_some() {
        for host in &mode.hosts {
            let labels = match host {
                Hostname::Suffix(suffix) if by_host => 1 + suffix.split('.').count(),
                Hostname::Suffix(_) | Hostname::Exact(_) | Hostname::Any => 0,
            };
            kept.entry(labels).or_default().push(host.to_string());
        }
    }
    let mut virtual_hosts = Vec::new();
    for (labels, domains) in kept {
        let host = if labels == 0 {
            hop_host("kept", domains, vec![refused(), sent(None, Vec::new())])
        } else {
            let routes = vec![
                refused(),
                sent(None, vec![has_labels(labels)]),
                sent(mode.host(), Vec::new()),
            ];
            hop_host(&format!("kept/{labels}"), domains, routes)
        };
        virtual_hosts.push(host);
    }
    let others = vec![refused(), sent(mode.host(), Vec::new())];
    virtual_hosts.push(hop_host("*", vec!["*".to_owned()], others));
    route::RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts,
        ignore_port_in_host_matching: true,
        ..route::RouteConfiguration::default()
    }
}

/// The host of the request has so many labels, whatever its port is.
fn has_labels(count: usize) -> route::HeaderMatcher {
    use route::header_matcher::HeaderMatchSpecifier;
    let label = "[-0-9A-Za-z_]+";
    let more = count.saturating_sub(1);
    let host = matching(format!(r"{label}(\.{label}){{{more}}}(:[0-9]+)?"));
    header_match(":authority", HeaderMatchSpecifier::StringMatch(host))
}

/// Silence is the edge's to limit, by the rule the request came by.
fn through(cluster: &str) -> route::RouteAction {
    route::RouteAction {
        timeout: Some(duration(Duration::ZERO)),
        idle_timeout: Some(duration(Duration::ZERO)),
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        ..route::RouteAction::default()
    }
}

fn hop_host(name: &str, domains: Vec<String>, routes: Vec<route::Route>) -> route::VirtualHost {
    route::VirtualHost {
        name: name.to_owned(),
        domains,
        routes,
        request_headers_to_remove: vec![ATTEMPT.to_owned()],
        // A model's own is forged; ours is added after this.
        response_headers_to_remove: vec![FAILOVER.to_owned()],
        ..route::VirtualHost::default()
    }
}

fn edge_host(
    model: &GatewayModel,
    vhost: &VirtualHost,
    from: Origin,
    options: &Options,
) -> route::VirtualHost {
    let domain = vhost.domain.to_string();
    if vhost.misdirected {
        return misdirected(domain);
    }
    let routes = vhost.rules.iter().flat_map(|rule| {
        let made = edge_route(model, rule, from, options);
        let mapped = match &rule.action {
            Action::Redirect(to) => redirect_of_mapped(to, &made, from),
            Action::Forward(_) | Action::Status(_) => None,
        };
        mapped.into_iter().chain([made])
    });
    route::VirtualHost {
        name: domain.clone(),
        domains: vec![domain],
        routes: routes.collect(),
        include_request_attempt_count: true,
        ..route::VirtualHost::default()
    }
}

/// The client is to take another connection for this host, which another certificate is for.
fn misdirected(domain: String) -> route::VirtualHost {
    let answer = route::Route {
        r#match: Some(prefix("/")),
        action: Some(direct(errors::MISDIRECTED)),
        ..route::Route::default()
    };
    route::VirtualHost {
        name: domain.clone(),
        domains: vec![domain],
        routes: vec![answer],
        ..route::VirtualHost::default()
    }
}

fn edge_route(model: &GatewayModel, rule: &Rule, from: Origin, options: &Options) -> route::Route {
    let edits = Edits::of(&rule.filters);
    let mut made = route::Route {
        name: format!("{}/{}/{}", rule.id.route, rule.id.rule, rule.id.index),
        r#match: Some(make_match(&rule.matcher)),
        request_headers_to_add: edits.request_add,
        request_headers_to_remove: edits.request_remove,
        response_headers_to_add: edits.response_add,
        response_headers_to_remove: edits.response_remove,
        ..route::Route::default()
    };
    made.action = Some(match &rule.action {
        Action::Status(code) => direct(u32::from(*code)),
        Action::Redirect(to) => route::route::Action::Redirect(redirect(to, &rule.matcher, from)),
        Action::Forward(backends) => {
            made.response_headers_to_remove.push(FAILOVER.to_owned());
            made.request_body_buffer_limit = Some(google::UInt64Value {
                value: options.retry_body_limit,
            });
            route::route::Action::Route(forward(model, rule, backends, options))
        }
    });
    made
}

fn forward(
    model: &GatewayModel,
    rule: &Rule,
    backends: &[Weighted],
    options: &Options,
) -> route::RouteAction {
    let by_hop = rule.needs_hop();
    let retry = retry(model, rule, backends, by_hop);
    let attempts = 1 + retry.num_retries.map_or(1, |retries| retries.value);
    let clusters = backends
        .iter()
        .map(|one| weigh(model, one, by_hop, attempts))
        .collect();
    let request = rule.timeouts.request;
    // A limit above the idle timeout, or none at all, means that silence is wanted as well.
    let idle = request.filter(|limit| limit.is_zero() || *limit > options.stream_idle_timeout);
    let mut made = route::RouteAction {
        timeout: Some(duration(request.unwrap_or(Duration::ZERO))),
        idle_timeout: idle.map(duration),
        cluster_not_found_response_code: ClusterNotFoundResponseCode::InternalServerError.into(),
        retry_policy: Some(retry),
        cluster_specifier: Some(ClusterSpecifier::WeightedClusters(route::WeightedCluster {
            clusters,
            ..route::WeightedCluster::default()
        })),
        upgrade_configs: upgrades(model, backends),
        ..route::RouteAction::default()
    };
    if let Some(to) = rule.rewrite() {
        let host = to.hostname.clone();
        made.host_rewrite_specifier = host.map(HostRewriteSpecifier::HostRewriteLiteral);
        match to.path.as_ref().map(|path| rewrite(path, &rule.matcher)) {
            Some(PathChange::Prefix(new)) => made.prefix_rewrite = new,
            Some(PathChange::Regex(change)) => made.regex_rewrite = Some(change),
            None => {}
        }
    }
    made
}

/// A route allows upgrades for all its backends or for none.
fn upgrades(model: &GatewayModel, backends: &[Weighted]) -> Vec<UpgradeConfig> {
    let has_websocket = |one: &Weighted| match &one.backend {
        Backend::Service(key, port) => {
            let service = model.services.get(&(key.clone(), *port));
            service.is_some_and(|service| service.websocket)
        }
        Backend::Pool(_) | Backend::Import(_) => false,
        Backend::Invalid => true, // it answers 500 to all
    };
    let websocket = backends.iter().all(has_websocket).then(|| UpgradeConfig {
        upgrade_type: "websocket".to_owned(),
        ..UpgradeConfig::default()
    });
    websocket.into_iter().collect()
}

fn weigh(model: &GatewayModel, one: &Weighted, by_hop: bool, attempts: u32) -> ClusterWeight {
    let mut per_filter = HashMap::new();
    let name = match &one.backend {
        Backend::Service(key, port) => names::service(key, *port),
        Backend::Pool(key) if by_hop => names::hopped(key),
        Backend::Pool(key) => {
            if let Some(pool) = model.pools.get(key)
                && let Some(epp) = &pool.epp
            {
                per_filter = extproc::enabled(&names::epp(key), epp, pool.fail_open, attempts);
            }
            names::pool(key)
        }
        Backend::Import(key) => names::import(key),
        Backend::Invalid => names::INVALID.to_owned(),
    };
    let edits = Edits::of(&one.filters);
    ClusterWeight {
        name,
        weight: Some(uint32(one.weight)),
        typed_per_filter_config: per_filter,
        request_headers_to_add: edits.request_add,
        request_headers_to_remove: edits.request_remove,
        response_headers_to_add: edits.response_add,
        response_headers_to_remove: edits.response_remove,
        ..ClusterWeight::default()
    }
}

fn retry(
    model: &GatewayModel,
    rule: &Rule,
    backends: &[Weighted],
    by_hop: bool,
) -> route::RetryPolicy {
    // For each backend behind hops, how many there are.
    let candidates = backends.iter().filter_map(|one| match &one.backend {
        Backend::Import(key) => {
            let import = model.imports.get(key)?;
            Some(import.hops().count())
        }
        Backend::Pool(_) if by_hop => Some(1),
        _ => None,
    });
    let per_try = rule.timeouts.backend.filter(|limit| !limit.is_zero());
    let base = route::RetryPolicy {
        per_try_timeout: per_try.map(duration),
        ..route::RetryPolicy::default()
    };
    let Some(candidates) = candidates.max() else {
        let has_service = has_service(backends);
        let attempts = if has_service { ATTEMPTS } else { POOL_ATTEMPTS };
        return route::RetryPolicy {
            retry_on: on_failure(!has_service).to_owned(),
            num_retries: Some(uint32(u32::from(attempts - 1))),
            ..base
        };
    };
    let retries = retries(candidates);
    // Hops mark what was reset behind them. Other backends of the rule have none.
    let all_hops = backends.iter().all(|one| match &one.backend {
        Backend::Import(_) => true,
        Backend::Pool(_) => by_hop,
        Backend::Service(..) | Backend::Invalid => false,
    });
    let retry_on = if all_hops {
        "connect-failure,refused-stream"
    } else {
        on_failure(retries == 1 && !by_hop && !has_service(backends))
    };
    let present = route::header_matcher::HeaderMatchSpecifier::PresentMatch(true);
    route::RetryPolicy {
        retry_on: format!("{retry_on},retriable-headers"),
        retriable_headers: vec![header_match(FAILOVER, present)],
        num_retries: Some(uint32(retries)),
        retry_host_predicate: vec![route::retry_policy::RetryHostPredicate {
            name: filters::OTHER_HOST.to_owned(),
            config_type: Some(
                route::retry_policy::retry_host_predicate::ConfigType::TypedConfig(
                    filters::other_host(),
                ),
            ),
        }],
        host_selection_retry_max_attempts: HOST_CHOICES,
        retry_priority: has_priorities(backends).then(|| route::retry_policy::RetryPriority {
            name: filters::OTHER_PRIORITY.to_owned(),
            config_type: Some(
                route::retry_policy::retry_priority::ConfigType::TypedConfig(
                    filters::other_priority(),
                ),
            ),
        }),
        ..base
    }
}

/// Whether a retry is to go to the next priority: the clusters of one have failed then, whatever their health says. Clusters that
/// have no order share one, and the hops of their former modes come after it. Where there is no further one, Envoy chooses among all.
fn has_priorities(backends: &[Weighted]) -> bool {
    let mut backends = backends.iter();
    backends.any(|one| matches!(one.backend, Backend::Import(_)))
}

/// When another attempt is made at a backend without hops; with `read_ones` also where a server had read the request.
///
/// A server may close a connection that it kept just as a request comes, and one that ends closes all. Envoy cannot tell
/// whether such a server worked on the request before. That of an `InferencePool` is an inference, which may be made twice, but
/// by no more than one further server. What a plain Service does, such as an order, may not be done twice; that Envoy closes
/// idle connections first (`SERVER_IDLE` of `http.rs`) is what spares its requests most of these closes. `reset` would also
/// repeat an attempt whose own time is over.
fn on_failure(read_ones: bool) -> &'static str {
    if read_ones {
        "connect-failure,refused-stream,reset"
    } else {
        "connect-failure,refused-stream,reset-before-request"
    }
}

fn has_service(backends: &[Weighted]) -> bool {
    backends
        .iter()
        .any(|one| matches!(one.backend, Backend::Service(..)))
}

fn make_match(wanted: &RouteMatch) -> route::RouteMatch {
    use route::header_matcher::HeaderMatchSpecifier;
    use route::query_parameter_matcher::QueryParameterMatchSpecifier;
    use route::route_match::PathSpecifier;
    let path = match &wanted.path {
        PathMatch::Exact(path) => with_path(PathSpecifier::Path(path.clone())),
        PathMatch::Prefix(path) => prefix(path),
        PathMatch::Regex(regex) => match literal_start(regex) {
            "" => prefix("/"),
            start => with_path(PathSpecifier::Prefix(start.to_owned())),
        },
    };
    let header = |one: &ValueMatch| {
        let how = if one.inexact {
            HeaderMatchSpecifier::PresentMatch(true)
        } else {
            HeaderMatchSpecifier::StringMatch(exactly(&one.value))
        };
        header_match(&one.name, how)
    };
    let method = wanted.method.as_ref().map(|method| {
        let how = HeaderMatchSpecifier::StringMatch(exactly(method));
        header_match(":method", how)
    });
    let query = wanted.query.iter().map(|one| {
        let how = if one.inexact {
            QueryParameterMatchSpecifier::PresentMatch(true)
        } else {
            QueryParameterMatchSpecifier::StringMatch(exactly(&one.value))
        };
        route::QueryParameterMatcher {
            name: one.name.clone(),
            query_parameter_match_specifier: Some(how),
        }
    });
    route::RouteMatch {
        headers: wanted.headers.iter().map(header).chain(method).collect(),
        query_parameters: query.collect(),
        ..path
    }
}

fn with_path(specifier: route::route_match::PathSpecifier) -> route::RouteMatch {
    route::RouteMatch {
        path_specifier: Some(specifier),
        ..route::RouteMatch::default()
    }
}

/// Whole path elements: `/v1` and `/v1/` match `/v1`, `/v1/x` and not `/v1x`.
fn prefix(path: &str) -> route::RouteMatch {
    use route::route_match::PathSpecifier;
    let path = prefix_of(path);
    let specifier = if path.is_empty() {
        PathSpecifier::Prefix("/".to_owned())
    } else {
        PathSpecifier::PathSeparatedPrefix(path.to_owned())
    };
    with_path(specifier)
}

fn header_match(
    name: &str,
    specifier: route::header_matcher::HeaderMatchSpecifier,
) -> route::HeaderMatcher {
    route::HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..route::HeaderMatcher::default()
    }
}

fn direct(status: u32) -> route::route::Action {
    route::route::Action::DirectResponse(route::DirectResponseAction {
        status,
        ..route::DirectResponseAction::default()
    })
}

/// The header filters of a rule or backendRef, as Envoy has them.
#[derive(Debug, Default)]
struct Edits {
    request_add: Vec<core::HeaderValueOption>,
    request_remove: Vec<String>,
    response_add: Vec<core::HeaderValueOption>,
    response_remove: Vec<String>,
}

// === impl Edits ===

impl Edits {
    fn of(filters: &[RouteFilter]) -> Self {
        let mut edits = Self::default();
        for filter in filters {
            let (edit, add, remove) = match filter {
                RouteFilter::RequestHeaders(edit) => {
                    (edit, &mut edits.request_add, &mut edits.request_remove)
                }
                RouteFilter::ResponseHeaders(edit) => {
                    (edit, &mut edits.response_add, &mut edits.response_remove)
                }
                RouteFilter::Redirect(_)
                | RouteFilter::Rewrite(_)
                | RouteFilter::Unsupported(_) => continue,
            };
            add.extend(values(edit));
            remove.extend(edit.remove.iter().cloned());
        }
        edits
    }
}

fn values(edit: &HeaderEdit) -> impl Iterator<Item = core::HeaderValueOption> + '_ {
    use core::header_value_option::HeaderAppendAction::{
        AppendIfExistsOrAdd, OverwriteIfExistsOrAdd,
    };
    let set = edit.set.iter().map(|pair| (pair, OverwriteIfExistsOrAdd));
    let add = edit.add.iter().map(|pair| (pair, AppendIfExistsOrAdd));
    // Envoy would read % as the start of a variable.
    set.chain(add)
        .map(|((name, value), action)| header(name, &value.replace('%', "%%"), action))
}
