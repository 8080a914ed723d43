//! Whose Envoy a certificate is of.

use std::fmt;
use std::str::FromStr;

use crate::text::is_label;
use crate::world::Key;

/// The Envoys of one Gateway, as a SPIFFE id: `spiffe://<cluster>/gateway/<namespace>/<name>/<uid>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) cluster: String,
    pub(crate) gateway: Key,
    /// Of the Gateway: one that is made anew under the name is another.
    pub(crate) uid: String,
}

/// The Envoys of one Gateway, by a certificate that was made for them by an earlier release, which gave it no UID, or under another
/// name of this cluster. Its end of the channel is denied until it shows the certificate that has been made since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) gateway: Key,
    pub(crate) uid: Option<String>,
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

impl Former {
    /// Of the URIs of a certificate that has no [`Identity`] of this cluster.
    pub(crate) fn of_uris(uris: &[String]) -> Option<Self> {
        let [uri] = uris else { return None };
        if let Ok(identity) = uri.parse::<Identity>() {
            return Some(Self {
                gateway: identity.gateway,
                uid: Some(identity.uid),
            });
        }
        let rest = uri.strip_prefix("spiffe://")?;
        let parts: Vec<&str> = rest.splitn(5, '/').collect();
        let [cluster, "gateway", namespace, name] = parts[..] else {
            return None;
        };
        let is_valid = is_label(cluster) && is_label(namespace) && is_subdomain(name);
        is_valid.then(|| Self {
            gateway: Key::new(namespace, name),
            uid: None,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cluster,
            gateway,
            uid,
        } = self;
        let Key { namespace, name } = gateway;
        write!(f, "spiffe://{cluster}/gateway/{namespace}/{name}/{uid}")
    }
}

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Self, NoIdentity> {
        let rest = text.strip_prefix("spiffe://").ok_or(NoIdentity)?;
        let parts: Vec<&str> = rest.splitn(6, '/').collect();
        let [cluster, "gateway", namespace, name, uid] = parts[..] else {
            return Err(NoIdentity);
        };
        let labels = [cluster, namespace, uid];
        if !labels.into_iter().all(is_label) || !is_subdomain(name) {
            return Err(NoIdentity);
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            gateway: Key::new(namespace, name),
            uid: uid.to_owned(),
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
    #[case(
        "spiffe://west/gateway/llm/inference/5c1-a",
        Some("west llm/inference 5c1-a")
    )]
    #[case("spiffe://west/gateway/llm/a.b/5c1", Some("west llm/a.b 5c1"))]
    #[case::of_an_earlier_release("spiffe://west/gateway/llm/inference", None)]
    #[case("spiffe://west/gateway/llm", None)]
    #[case("spiffe://west/gateway/llm/inference/", None)]
    #[case("spiffe://west/gateway/llm/inference/5c1/more", None)]
    #[case("spiffe://west/gateway//inference/5c1", None)]
    #[case("spiffe:///gateway/llm/inference/5c1", None)]
    #[case("spiffe://west/sa/llm/inference/5c1", None)]
    #[case("spiffe://west/gateway/llm/Inference/5c1", None)]
    #[case("spiffe://west/gateway/llm/inference/5c1?x", None)]
    #[case("spiffe://west/gateway/llm/../5c1", None)]
    #[case("SPIFFE://west/gateway/llm/inference/5c1", None)]
    #[case("https://west/gateway/llm/inference/5c1", None)]
    fn an_identity_has_a_cluster_and_a_gateway_with_its_uid(
        #[case] text: &str,
        #[case] expected: Option<&str>,
    ) {
        let parsed = text.parse::<Identity>().ok();
        let shown = parsed
            .as_ref()
            .map(|id| format!("{} {} {}", id.cluster, id.gateway, id.uid));
        assert_eq!(shown.as_deref(), expected);
        if let Some(identity) = parsed {
            assert_eq!(identity.to_string(), text);
        }
    }

    #[rstest]
    #[case::of_an_earlier_release("spiffe://west/gateway/llm/a.b", Some("llm/a.b -"))]
    #[case::of_another_cluster("spiffe://east/gateway/llm/a/5c1", Some("llm/a 5c1"))]
    #[case("spiffe://west/gateway/llm/", None)]
    #[case("spiffe://west/gateway/llm/a/", None)]
    #[case("spiffe://west/gateway/llm/a/5c1/more", None)]
    #[case("spiffe://west/sa/llm/a", None)]
    #[case("https://west/gateway/llm/a", None)]
    fn a_former_certificate_names_a_gateway(#[case] text: &str, #[case] expected: Option<&str>) {
        let former = Former::of_uris(&[text.to_owned()]);
        let shown = former.map(|one| {
            let uid = one.uid.unwrap_or_else(|| "-".to_owned());
            format!("{} {uid}", one.gateway)
        });
        assert_eq!(shown.as_deref(), expected);
    }

    #[test]
    fn a_certificate_of_two_names_has_no_identity() {
        let uri = |name: &str| format!("spiffe://west/gateway/llm/{name}/5c1");
        assert!(Identity::of_uris(&[uri("a")]).is_some());
        assert!(Identity::of_uris(&[uri("a"), uri("b")]).is_none());
        assert!(Identity::of_uris(&[]).is_none());
        assert!(Former::of_uris(&[uri("a"), uri("b")]).is_none());
    }
}
