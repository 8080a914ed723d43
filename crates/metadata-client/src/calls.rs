//! The calls of the service, as requests.

use std::borrow::Cow;

use bytes::Bytes;
use http::Method;
use metadata::{
    Address, Cluster, Instance,
    wire::{
        batch::Batch,
        cache::{Query, Save},
        load::{Add, Drop},
        pick::Pick,
    },
};
use serde::Serialize;

use crate::{
    answer::Unavailable,
    transport::{Call, Trace},
};

/// Which call it is; label `call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallName {
    /// `POST /v1/pick`
    Pick,
    /// `GET /v1/load/stats`
    Loads,
    /// `POST /v1/cache/query`
    Query,
    /// `POST /v1/load/batch`
    Batch,
    /// `POST /v1/load/stats`
    Add,
    /// `DELETE /v1/load/prompt`
    PromptDone,
    /// `DELETE /v1/load/stats`
    Remove,
    /// `POST /v1/cache/save`
    Save,
    /// `DELETE /v1/cache/endpoint`
    Purge,
    /// `DELETE /v1/leases/{instance}`
    EndLeases,
}

/// A call with its name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: CallName,
    pub(crate) call: Call,
}

// === impl CallName ===

impl CallName {
    /// In the order of [`Self::index`].
    pub(crate) const ALL: [Self; 10] = [
        Self::Pick,
        Self::Loads,
        Self::Query,
        Self::Batch,
        Self::Add,
        Self::PromptDone,
        Self::Remove,
        Self::Save,
        Self::Purge,
        Self::EndLeases,
    ];

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Pick => "pick",
            Self::Loads => "load",
            Self::Query => "cache_query",
            Self::Batch => "batch",
            Self::Add => "add",
            Self::PromptDone => "prompt_done",
            Self::Remove => "remove",
            Self::Save => "cache_save",
            Self::Purge => "cache_purge",
            Self::EndLeases => "end_leases",
        }
    }
}

// === impl Named ===

impl Named {
    fn new(name: CallName, method: Method, path: impl Into<Cow<'static, str>>) -> Self {
        let call = Call {
            method,
            path: path.into(),
            body: Bytes::new(),
            trace: Trace::default(),
        };
        Self { name, call }
    }

    /// A value that cannot be written cannot be sent anywhere: nothing of ours is such a one but a number that is none.
    fn with_body(mut self, body: &impl Serialize) -> Result<Self, Unavailable> {
        let body = serde_json::to_vec(body);
        let body = body.map_err(|error| Unavailable::Malformed(error.to_string()))?;
        self.call.body = body.into();
        Ok(self)
    }

    pub(crate) fn with_trace(mut self, trace: &Trace) -> Self {
        self.call.trace = trace.clone();
        self
    }

    pub(crate) fn pick(pick: &Pick) -> Result<Self, Unavailable> {
        Self::new(CallName::Pick, Method::POST, "/v1/pick").with_body(pick)
    }

    pub(crate) fn loads(cluster: &Cluster) -> Self {
        let cluster = escape(cluster.as_str());
        let path = format!("/v1/load/stats?cluster={cluster}");
        Self::new(CallName::Loads, Method::GET, path)
    }

    pub(crate) fn query(query: &Query) -> Result<Self, Unavailable> {
        Self::new(CallName::Query, Method::POST, "/v1/cache/query").with_body(query)
    }

    pub(crate) fn batch(batch: &Batch) -> Result<Self, Unavailable> {
        Self::new(CallName::Batch, Method::POST, "/v1/load/batch").with_body(batch)
    }

    pub(crate) fn add(add: &Add) -> Result<Self, Unavailable> {
        Self::new(CallName::Add, Method::POST, "/v1/load/stats").with_body(add)
    }

    pub(crate) fn prompt_done(of: &Drop) -> Result<Self, Unavailable> {
        Self::new(CallName::PromptDone, Method::DELETE, "/v1/load/prompt").with_body(of)
    }

    pub(crate) fn remove(of: &Drop) -> Result<Self, Unavailable> {
        Self::new(CallName::Remove, Method::DELETE, "/v1/load/stats").with_body(of)
    }

    pub(crate) fn save(save: &Save) -> Result<Self, Unavailable> {
        Self::new(CallName::Save, Method::POST, "/v1/cache/save").with_body(save)
    }

    pub(crate) fn purge(cluster: &Cluster, ip: Address) -> Self {
        let (cluster, ip) = (escape(cluster.as_str()), escape(&ip.to_string()));
        let path = format!("/v1/cache/endpoint?cluster={cluster}&ip={ip}");
        Self::new(CallName::Purge, Method::DELETE, path)
    }

    pub(crate) fn end_leases(instance: &Instance, epoch: u64) -> Self {
        let instance = escape(instance.as_str());
        let path = format!("/v1/leases/{instance}?epoch={epoch}");
        Self::new(CallName::EndLeases, Method::DELETE, path)
    }
}

/// For a query, and for a segment of a path since `%20` is a space in both.
fn escape(text: &str) -> String {
    let text: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    text.replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_paths() {
        let path = |named: Named| named.call.path.into_owned();
        let loads = Named::loads(&"a b/qwén&x=1+".parse().unwrap());
        assert_eq!(
            path(loads),
            "/v1/load/stats?cluster=a%20b%2Fqw%C3%A9n%26x%3D1%2B"
        );
        let purge = Named::purge(&"c".parse().unwrap(), "[fd00::1]:80".parse().unwrap());
        assert_eq!(
            path(purge),
            "/v1/cache/endpoint?cluster=c&ip=%5Bfd00%3A%3A1%5D%3A80"
        );
        let lease = Named::end_leases(&"epp/0?".parse().unwrap(), 7);
        assert_eq!(path(lease), "/v1/leases/epp%2F0%3F?epoch=7");
    }

    #[test]
    fn the_index_is_the_place_among_all() {
        for (at, name) in CallName::ALL.into_iter().enumerate() {
            assert_eq!(name.index(), at);
        }
    }
}
