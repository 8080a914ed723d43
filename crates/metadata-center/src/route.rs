//! What is served where: the one table that requests are found by.

use std::borrow::Cow;

use http::Method;
use metadata::Fault;
use percent_encoding::percent_decode_str;

/// One path.
#[derive(Debug)]
pub(crate) struct Path {
    /// With the last segment in braces where it is a parameter.
    pub(crate) template: &'static str,
    /// Its methods, for the header `Allow`.
    pub(crate) allowed: &'static str,
    /// What they do.
    pub(crate) calls: &'static [(Method, Call)],
}

/// What a request is for.
///
/// The order is that of [`Call::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Loads,
    Add,
    Remove,
    PromptDone,
    Batch,
    EndLeases,
    Query,
    Save,
    Purge,
    Pick,
    Clusters,
    Metrics,
    Healthz,
    Readyz,
    OpenApi,
}

/// What a request's method and path were found to be.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) call: Call,
    /// Where in [`PATHS`].
    pub(crate) path: usize,
    /// Where among its calls.
    pub(crate) method: usize,
    /// The last segment where it is a parameter, else empty.
    pub(crate) segment: Cow<'a, str>,
}

/// All paths. Those that are asked most come first.
pub(crate) static PATHS: [Path; 15] = [
    Path {
        template: "/v1/load/stats",
        allowed: "GET, POST, DELETE",
        calls: &[
            (Method::GET, Call::Loads),
            (Method::POST, Call::Add),
            (Method::DELETE, Call::Remove),
        ],
    },
    Path {
        template: "/v1/load/prompt",
        allowed: "DELETE",
        calls: &[(Method::DELETE, Call::PromptDone)],
    },
    Path {
        template: "/v1/load/batch",
        allowed: "POST",
        calls: &[(Method::POST, Call::Batch)],
    },
    Path {
        template: "/v1/pick",
        allowed: "POST",
        calls: &[(Method::POST, Call::Pick)],
    },
    Path {
        template: "/v1/cache/query",
        allowed: "POST",
        calls: &[(Method::POST, Call::Query)],
    },
    Path {
        template: "/v1/cache/save",
        allowed: "POST",
        calls: &[(Method::POST, Call::Save)],
    },
    Path {
        template: "/v1/load/stats/{request_id}",
        allowed: "DELETE",
        calls: &[(Method::DELETE, Call::Remove)],
    },
    Path {
        template: "/v1/load/prompt/{request_id}",
        allowed: "DELETE",
        calls: &[(Method::DELETE, Call::PromptDone)],
    },
    Path {
        template: "/v1/cache/endpoint",
        allowed: "DELETE",
        calls: &[(Method::DELETE, Call::Purge)],
    },
    Path {
        template: "/v1/leases/{instance}",
        allowed: "DELETE",
        calls: &[(Method::DELETE, Call::EndLeases)],
    },
    Path {
        template: "/v1/clusters",
        allowed: "GET",
        calls: &[(Method::GET, Call::Clusters)],
    },
    Path {
        template: "/metrics",
        allowed: "GET, HEAD",
        calls: &[(Method::GET, Call::Metrics), (Method::HEAD, Call::Metrics)],
    },
    Path {
        template: "/healthz",
        allowed: "GET, HEAD",
        calls: &[(Method::GET, Call::Healthz), (Method::HEAD, Call::Healthz)],
    },
    Path {
        template: "/readyz",
        allowed: "GET, HEAD",
        calls: &[(Method::GET, Call::Readyz), (Method::HEAD, Call::Readyz)],
    },
    Path {
        template: "/openapi.json",
        allowed: "GET",
        calls: &[(Method::GET, Call::OpenApi)],
    },
];

/// Finds what a request is for.
///
/// # Errors
/// [`Fault::NotFound`], [`Fault::Method`].
pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Result<Found<'a>, Fault> {
    for (at, known) in PATHS.iter().enumerate() {
        let Some(segment) = known.matches(path) else {
            continue;
        };
        let mut calls = known.calls.iter().enumerate();
        let found = calls.find(|(_, (it, _))| it == method);
        let allowed = known.allowed;
        let (method, (_, call)) = found.ok_or(Fault::Method { allowed })?;
        let segment = percent_decode_str(segment).decode_utf8_lossy();
        return Ok(Found {
            call: *call,
            path: at,
            method,
            segment,
        });
    }
    Err(Fault::NotFound(path.to_owned()))
}

// === impl Call ===

impl Call {
    pub(crate) const ALL: [Self; 15] = [
        Self::Loads,
        Self::Add,
        Self::Remove,
        Self::PromptDone,
        Self::Batch,
        Self::EndLeases,
        Self::Query,
        Self::Save,
        Self::Purge,
        Self::Pick,
        Self::Clusters,
        Self::Metrics,
        Self::Healthz,
        Self::Readyz,
        Self::OpenApi,
    ];

    /// In metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loads => "loads",
            Self::Add => "add",
            Self::Remove => "remove",
            Self::PromptDone => "prompt_done",
            Self::Batch => "batch",
            Self::EndLeases => "end_leases",
            Self::Query => "query",
            Self::Save => "save",
            Self::Purge => "purge",
            Self::Pick => "pick",
            Self::Clusters => "clusters",
            Self::Metrics => "metrics",
            Self::Healthz => "healthz",
            Self::Readyz => "readyz",
            Self::OpenApi => "openapi",
        }
    }
}

// === impl Path ===

impl Path {
    /// What the last segment is where that is a parameter, else nothing; none: it is another path.
    fn matches<'a>(&self, path: &'a str) -> Option<&'a str> {
        let Some((parent, _)) = self.template.split_once('{') else {
            return (path == self.template).then_some("");
        };
        let segment = path.strip_prefix(parent)?;
        (!segment.is_empty() && !segment.contains('/')).then_some(segment)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("GET", "/v1/load/stats", Ok((Call::Loads, "")))]
    #[case("DELETE", "/v1/load/stats/a%2Fb", Ok((Call::Remove, "a/b")))]
    #[case("DELETE", "/v1/load/prompt/a+b", Ok((Call::PromptDone, "a+b")))]
    #[case("DELETE", "/v1/leases/epp-0", Ok((Call::EndLeases, "epp-0")))]
    #[case("POST", "/v1/load/stats/r", Err("use DELETE here"))]
    #[case("PATCH", "/v1/load/stats", Err("use GET, POST, DELETE here"))]
    #[case("DELETE", "/v1/load/stats/", Err("/v1/load/stats/ is not served"))]
    #[case(
        "DELETE",
        "/v1/load/stats/a/b",
        Err("/v1/load/stats/a/b is not served")
    )]
    #[case("GET", "/log/level", Err("/log/level is not served"))]
    fn a_request_is_found_by_method_and_path(
        #[case] method: Method,
        #[case] path: &str,
        #[case] expected: Result<(Call, &str), &str>,
    ) {
        let found = find(&method, path).map_err(|fault| fault.to_string());
        let found = found.as_ref().map(|it| (it.call, &*it.segment));
        assert_eq!(found.map_err(String::as_str), expected);
    }

    #[test]
    fn the_methods_of_a_path_are_those_that_it_names() {
        for Path {
            template,
            allowed,
            calls,
        } in &PATHS
        {
            let methods: Vec<_> = calls.iter().map(|(it, _)| it.as_str()).collect();
            assert_eq!(methods.join(", "), *allowed, "{template}");
        }
    }
}
