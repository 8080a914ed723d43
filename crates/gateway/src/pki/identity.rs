//! Whose Envoy a certificate is of.

use std::fmt;
use std::str::FromStr;

use crate::text::is_label;
use crate::world::Key;

/// The Envoys of one Gateway, as a SPIFFE id: `spiffe://<cluster>/gateway/<namespace>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) cluster: String,
    pub(crate) gateway: Key,
}

/// The text is no identity of Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoIdentity;

impl Identity {
    /// Of the URIs of a certificate: a SPIFFE id is the only one.
    pub(crate) fn of_uris(uris: &[String]) -> Option<Self> {
        match uris {
            [uri] => uri.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, gateway } = self;
        let Key { namespace, name } = gateway;
        write!(f, "spiffe://{cluster}/gateway/{namespace}/{name}")
    }
}

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Self, NoIdentity> {
        let rest = text.strip_prefix("spiffe://").ok_or(NoIdentity)?;
        let parts: Vec<&str> = rest.splitn(5, '/').collect();
        let [cluster, "gateway", namespace, name] = parts[..] else {
            return Err(NoIdentity);
        };
        if !is_label(cluster) || !is_label(namespace) || !is_subdomain(name) {
            return Err(NoIdentity);
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            gateway: Key::new(namespace, name),
        })
    }
}

/// A Gateway's name: labels with dots between them.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("spiffe://west/gateway/llm/inference", Some("west llm/inference"))]
    #[case("spiffe://west/gateway/llm/a.b", Some("west llm/a.b"))]
    #[case("spiffe://west/gateway/llm", None)]
    #[case("spiffe://west/gateway/llm/inference/", None)]
    #[case("spiffe://west/gateway/llm/inference/more", None)]
    #[case("spiffe://west/gateway//inference", None)]
    #[case("spiffe:///gateway/llm/inference", None)]
    #[case("spiffe://west/sa/llm/inference", None)]
    #[case("spiffe://west/gateway/llm/Inference", None)]
    #[case("spiffe://west/gateway/llm/inference?x", None)]
    #[case("spiffe://west/gateway/llm/..", None)]
    #[case("SPIFFE://west/gateway/llm/inference", None)]
    #[case("https://west/gateway/llm/inference", None)]
    fn an_identity_has_a_cluster_a_namespace_and_a_name(
        #[case] text: &str,
        #[case] expected: Option<&str>,
    ) {
        let parsed = text.parse::<Identity>().ok();
        let shown = parsed
            .as_ref()
            .map(|id| format!("{} {}", id.cluster, id.gateway));
        assert_eq!(shown.as_deref(), expected);
        if let Some(identity) = parsed {
            assert_eq!(identity.to_string(), text);
        }
    }

    #[test]
    fn a_certificate_of_two_names_has_no_identity() {
        let uri = |name: &str| format!("spiffe://west/gateway/llm/{name}");
        assert!(Identity::of_uris(&[uri("a")]).is_some());
        assert!(Identity::of_uris(&[uri("a"), uri("b")]).is_none());
        assert!(Identity::of_uris(&[]).is_none());
    }
}
