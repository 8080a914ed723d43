//! HTTP filters and retry plug-ins other than ext_proc.

use std::collections::HashMap;

use crd::networks::Cidr;

use super::names::{FAILOVER, LB_NAMESPACE, SERVED};
use super::proto::{
    any, cidr, core, extension, google, hcm, header, header_mutation, header_to_metadata,
    http_rbac, kinds, mutation_rules, previous_hosts, previous_priorities, rbac, router,
    upstream_codec, upstream_ip_port,
};

/// Retries go to hosts not yet tried.
pub(crate) const OTHER_HOST: &str = "envoy.retry_host_predicates.previous_hosts";

/// Retries go to priorities not yet tried.
pub(crate) const OTHER_PRIORITY: &str = "envoy.retry_priorities.previous_priorities";

pub(crate) fn http_filter<M: prost::Name>(name: &str, config: &M) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.to_owned(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(config))),
        ..hcm::HttpFilter::default()
    }
}

pub(crate) fn router() -> hcm::HttpFilter {
    http_filter("envoy.filters.http.router", &router::Router::default())
}

pub(crate) fn upstream_codec() -> hcm::HttpFilter {
    http_filter(
        "envoy.filters.http.upstream_codec",
        &upstream_codec::UpstreamCodec::default(),
    )
}

pub(crate) fn other_host() -> google::Any {
    any(&previous_hosts::PreviousHostsPredicate::default())
}

pub(crate) fn other_priority() -> google::Any {
    any(&previous_priorities::PreviousPrioritiesConfig {
        update_frequency: 1,
    })
}

/// Tells the EPP where an `ORIGINAL_DST` cluster went, which has no `selected_host_key`: on the
/// way back the second sets the header, the first makes it metadata and removes it.
pub(crate) fn served() -> [hcm::HttpFilter; 2] {
    use core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd;
    let to_metadata = header_to_metadata::Config {
        response_rules: vec![header_to_metadata::config::Rule {
            header: SERVED.to_owned(),
            remove: true,
            on_header_present: Some(header_to_metadata::config::KeyValuePair {
                metadata_namespace: LB_NAMESPACE.to_owned(),
                key: SERVED.to_owned(),
                ..header_to_metadata::config::KeyValuePair::default()
            }),
            ..header_to_metadata::config::Rule::default()
        }],
        ..header_to_metadata::Config::default()
    };
    let value = header(SERVED, "%UPSTREAM_REMOTE_ADDRESS%", OverwriteIfExistsOrAdd);
    let to_header = header_mutation::HeaderMutation {
        mutations: Some(header_mutation::Mutations {
            response_mutations: vec![mutation_rules::HeaderMutation {
                action: Some(mutation_rules::header_mutation::Action::Append(value)),
            }],
            ..header_mutation::Mutations::default()
        }),
        ..header_mutation::HeaderMutation::default()
    };
    [
        http_filter("isthmus.served.metadata", &to_metadata),
        http_filter("isthmus.served.header", &to_header),
    ]
}

/// The upstream filters of a cluster whose hosts are model servers: their answers cannot carry the mark of a hop. The rule
/// may obey that mark for another of its backends, and sees it before a route could remove it.
pub(crate) fn of_model_servers() -> Vec<hcm::HttpFilter> {
    let unmarked = header_mutation::HeaderMutation {
        mutations: Some(header_mutation::Mutations {
            response_mutations: vec![mutation_rules::HeaderMutation {
                action: Some(mutation_rules::header_mutation::Action::Remove(
                    FAILOVER.to_owned(),
                )),
            }],
            ..header_mutation::Mutations::default()
        }),
        ..header_mutation::HeaderMutation::default()
    };
    vec![http_filter("isthmus.unmarked", &unmarked), upstream_codec()]
}

const ADDRESSES: &str = "envoy.filters.http.rbac";

/// Lets requests go only to these networks and ports, less what is denied in them.
pub(crate) fn pods_only(cidrs: &[Cidr], ports: &[u16], deny: &[Cidr]) -> hcm::HttpFilter {
    let allowed = cidrs
        .iter()
        .flat_map(|cidr| ports.iter().map(|port| reaches(cidr, Some(*port))))
        .collect();
    let both = rule(rbac::permission::Rule::AndRules(rbac::permission::Set {
        rules: vec![any_of(allowed), outside(deny)],
    }));
    http_filter(ADDRESSES, &only(both))
}

/// Lets requests go where their route says by [`route_not_in`], and no request of another.
pub(crate) fn nowhere() -> hcm::HttpFilter {
    http_filter(ADDRESSES, &only(any_of(Vec::new())))
}

/// Of a route, for the filter of [`nowhere`]: its requests go anywhere but to these networks. Routes change without an end of
/// streams, and clusters do not.
pub(crate) fn route_not_in(deny: &[Cidr]) -> HashMap<String, google::Any> {
    let per_route = http_rbac::RbacPerRoute {
        rbac: Some(only(outside(deny))),
    };
    HashMap::from([(ADDRESSES.to_owned(), any(&per_route))])
}

fn outside(deny: &[Cidr]) -> rbac::Permission {
    let denied = deny.iter().map(|cidr| reaches(cidr, None));
    rule(rbac::permission::Rule::NotRule(Box::new(any_of(
        denied.collect(),
    ))))
}

fn only(permission: rbac::Permission) -> http_rbac::Rbac {
    let policy = rbac::Policy {
        permissions: vec![permission],
        principals: vec![rbac::Principal {
            identifier: Some(rbac::principal::Identifier::Any(true)),
        }],
        ..rbac::Policy::default()
    };
    http_rbac::Rbac {
        rules: Some(rbac::Rbac {
            action: rbac::rbac::Action::Allow.into(),
            policies: [("pods".to_owned(), policy)].into_iter().collect(),
            ..rbac::Rbac::default()
        }),
        ..http_rbac::Rbac::default()
    }
}

fn rule(rule: rbac::permission::Rule) -> rbac::Permission {
    rbac::Permission { rule: Some(rule) }
}

/// Envoy refuses an empty set: with nothing to choose from, nothing is reached.
fn any_of(rules: Vec<rbac::Permission>) -> rbac::Permission {
    if rules.is_empty() {
        let anything = rule(rbac::permission::Rule::Any(true));
        return rule(rbac::permission::Rule::NotRule(Box::new(anything)));
    }
    rule(rbac::permission::Rule::OrRules(rbac::permission::Set {
        rules,
    }))
}

fn reaches(network: &Cidr, port: Option<u16>) -> rbac::Permission {
    let matcher = upstream_ip_port::UpstreamIpPortMatcher {
        upstream_ip: Some(cidr(network.address(), network.length())),
        // The end is exclusive.
        upstream_port_range: port.map(|port| kinds::Int64Range {
            start: port.into(),
            end: i64::from(port) + 1,
        }),
    };
    rule(rbac::permission::Rule::Matcher(extension(
        "envoy.rbac.matchers.upstream_ip_port",
        &matcher,
    )))
}
