//! Kubeconfig files: one cluster, one user, one context.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use crate::pki::Certificate;

/// How the user of a kubeconfig proves who it is.
#[derive(Clone, Debug)]
pub(crate) enum Credentials<'a> {
    Certificate(&'a Certificate),
    Token(&'a str),
}

/// `cluster` names the cluster, the context and (with `user`) the user.
pub(crate) fn make_kubeconfig(
    cluster: &str,
    server: &str,
    authority_pem: &str,
    user: &str,
    credentials: Credentials<'_>,
) -> String {
    let base64 = |text: &str| BASE64_STANDARD.encode(text);
    let credentials = match credentials {
        Credentials::Certificate(Certificate { certificate, key }) => json!({
            "client-certificate-data": base64(certificate),
            "client-key-data": base64(key),
        }),
        Credentials::Token(token) => json!({ "token": token }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {
            "server": server,
            "certificate-authority-data": base64(authority_pem),
        }}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    });
    // JSON is YAML; indented, because people open these files
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use kube::config::{KubeConfigOptions, Kubeconfig};

    use super::*;
    use crate::pki::Authority;

    #[tokio::test]
    async fn a_kubeconfig_with_a_certificate_is_accepted_by_kube() {
        let authority = Authority::make("east").unwrap();
        let admin = authority.client("admin", "system:masters").unwrap();
        let text = make_kubeconfig(
            "east",
            "https://10.1.255.1:6443",
            &authority.pem(),
            "admin",
            Credentials::Certificate(&admin),
        );

        let parsed = Kubeconfig::from_yaml(&text).unwrap();
        let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
            .await
            .unwrap();

        assert_eq!(config.cluster_url.to_string(), "https://10.1.255.1:6443/");
        assert_eq!(config.root_cert.map(|certs| certs.len()), Some(1));
    }

    #[test]
    fn a_token_stands_in_the_users_entry() {
        let text = make_kubeconfig(
            "east",
            "https://x",
            "ca",
            "reader",
            Credentials::Token("secret"),
        );
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["users"][0]["user"]["token"], "secret");
        assert_eq!(parsed["contexts"][0]["context"]["user"], "reader");
    }
}
