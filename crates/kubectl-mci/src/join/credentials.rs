//! The kubeconfig that the controller reaches a member with, from that of the user. Pure, but for a certificate in a file.

use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::config::Cluster;
use mci_inventory::Credentials;
use serde_json::{Value, json};

/// Where the member's API server is, and how it proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) server: String,
    /// Base64 of PEM; none: the roots of the controller's image.
    pub(crate) authority: Option<String>,
    pub(crate) tls_server_name: Option<String>,
}

// === impl Access ===

impl Access {
    /// As a context has it, but at `server` where that is given.
    pub(crate) fn of(
        cluster: &Cluster,
        context: &str,
        server: Option<&str>,
    ) -> anyhow::Result<Self> {
        if cluster.insecure_skip_tls_verify == Some(true) {
            bail!(
                "context {context} has insecure-skip-tls-verify, and the controller never goes without: set certificate-authority-data in the kubeconfig"
            );
        }
        let from_context = cluster.server.as_deref().unwrap_or_default();
        if server.is_none() && is_local(from_context) {
            bail!(
                "context {context} leads to {from_context}, which is this machine: say with --server https://HOST:PORT where the controller reaches the API server (its certificate must name HOST)"
            );
        }
        let authority = match (
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        ) {
            (Some(data), _) => Some(data.clone()),
            (None, Some(path)) => {
                let pem = std::fs::read(path).with_context(|| {
                    format!("cannot read {path}, the certificate authority of context {context}")
                })?;
                Some(BASE64_STANDARD.encode(pem))
            }
            (None, None) => None,
        };
        Ok(Self {
            server: server.unwrap_or(from_context).to_owned(),
            authority,
            tls_server_name: cluster.tls_server_name.clone(),
        })
    }
}

/// A kubeconfig of data alone, which the controller takes.
pub(crate) fn make_kubeconfig(name: &str, access: &Access, token: &str) -> anyhow::Result<String> {
    let Access {
        server,
        authority,
        tls_server_name,
    } = access;
    let mut cluster = json!({"server": server});
    if let Some(authority) = authority {
        cluster["certificate-authority-data"] = Value::from(authority.clone());
    }
    if let Some(name) = tls_server_name {
        cluster["tls-server-name"] = Value::from(name.clone());
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    });
    let text = config.to_string();
    Credentials::parse(text.as_bytes(), false)
        .context("the controller would not take this kubeconfig: see --server")?;
    Ok(text)
}

/// Whether only this machine reaches it, as with kind.
fn is_local(server: &str) -> bool {
    let uri: Option<http::Uri> = server.parse().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified());
    loopback || host == "localhost"
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_cluster(server: &str) -> Cluster {
        Cluster {
            server: Some(server.to_owned()),
            certificate_authority_data: Some("Y2E=".to_owned()),
            ..Cluster::default()
        }
    }

    #[rstest]
    #[case("https://127.0.0.1:40001", true)]
    #[case("https://[::1]:6443", true)]
    #[case("https://0.0.0.0:6443", true)]
    #[case("https://localhost:6443", true)]
    #[case("https://10.0.0.1:6443", false)]
    #[case("https://east.example.com", false)]
    fn an_address_of_this_machine_is_no_address_for_the_controller(
        #[case] server: &str,
        #[case] local: bool,
    ) {
        let access = Access::of(&mk_cluster(server), "kind-east", None);
        assert_eq!(access.is_err(), local);
        if let Err(error) = access {
            assert!(error.to_string().contains("--server"), "{error}");
        }
        let given = Access::of(&mk_cluster(server), "kind-east", Some("https://east:6443"));
        assert_eq!(given.expect("an address").server, "https://east:6443");
    }

    #[test]
    fn a_context_without_verification_is_refused() {
        let cluster = Cluster {
            insecure_skip_tls_verify: Some(true),
            ..mk_cluster("https://10.0.0.1:6443")
        };
        assert!(Access::of(&cluster, "east", None).is_err());
    }

    #[rstest]
    #[case("http://10.0.0.1:6443", "an http:// server")]
    #[case("https://user:password@10.0.0.1", "a user in the server's URL")]
    #[case("10.0.0.1", "see --server")]
    fn what_the_controller_refuses_is_not_made(#[case] server: &str, #[case] why: &str) {
        let access = Access::of(&mk_cluster(server), "east", Some(server)).expect("read");
        let error = make_kubeconfig("east", &access, "secret-token").expect_err("refused");
        assert!(format!("{error:#}").contains(why), "{error:#}");
        assert!(!format!("{error:#}").contains("secret-token"), "{error:#}");
    }
}
