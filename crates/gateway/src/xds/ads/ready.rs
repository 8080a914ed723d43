//! The route table that makes an Envoy ready: that of its pages for probes and scrapes.
//!
//! Envoy starts its listeners, and is ready, once each static listener has its route table. It counts an answer that it
//! refuses as one. So the bootstrap's listener asks for this table, and the table is sent last, when the Envoy serves the edges
//! of its Gateway: all of them, or those that any ready Envoy serves.

use std::sync::{Arc, LazyLock};

use crate::xds::Resource;
use crate::xds::proto::route;

/// Name of the table and of the listener in the bootstrap.
pub(crate) const READY: &str = "ready";

/// Name of the bootstrap's cluster that is Envoy's admin interface.
pub(crate) const ADMIN: &str = "admin";

/// Pages of the admin interface that are reached from outside.
const PAGES: [&str; 2] = ["/ready", "/stats/prometheus"];

static TABLE: LazyLock<Arc<Resource>> = LazyLock::new(|| {
    let page = |path: &str| route::Route {
        r#match: Some(route::RouteMatch {
            path_specifier: Some(route::route_match::PathSpecifier::Path(path.to_owned())),
            ..route::RouteMatch::default()
        }),
        action: Some(route::route::Action::Route(route::RouteAction {
            cluster_specifier: Some(route::route_action::ClusterSpecifier::Cluster(
                ADMIN.to_owned(),
            )),
            ..route::RouteAction::default()
        })),
        ..route::Route::default()
    };
    let host = route::VirtualHost {
        name: "*".to_owned(),
        domains: vec!["*".to_owned()],
        routes: PAGES.map(page).into(),
        ..route::VirtualHost::default()
    };
    let table = route::RouteConfiguration {
        name: READY.to_owned(),
        virtual_hosts: vec![host],
        ..route::RouteConfiguration::default()
    };
    Resource::new(&table, false)
});

pub(super) fn table() -> &'static Arc<Resource> {
    &TABLE
}
