//! Kubeconfig files: one cluster, one user, one context; and several of them in one.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube::config::{Kubeconfig, KubeconfigError};
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

/// Several such files in one: a context for each, by the name that is given with it. The first is the current one.
pub(crate) fn merge_kubeconfigs<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged = Kubeconfig::default();
    for (name, path) in files {
        let mut one = Kubeconfig::read_from(path)?;
        for named in &mut one.clusters {
            name.clone_into(&mut named.name);
        }
        for named in &mut one.auth_infos {
            name.clone_into(&mut named.name);
        }
        for named in &mut one.contexts {
            name.clone_into(&mut named.name);
            if let Some(context) = &mut named.context {
                name.clone_into(&mut context.cluster);
                context.user = Some(name.to_owned());
            }
        }
        one.current_context = Some(name.to_owned());
        merged = merged.merge(one)?;
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use kube::config::KubeConfigOptions;

    use super::*;
    use crate::cluster::Cluster;
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

    #[tokio::test]
    async fn each_context_of_merged_files_leads_to_its_own_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for name in ["east", "west"] {
            let authority = Authority::make(name).unwrap();
            let text = make_kubeconfig(
                "kubernetes",
                &format!("https://{name}.example.com:6443"),
                &authority.pem(),
                "admin",
                Credentials::Token(name),
            );
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            files.push((name, path));
        }
        let merged = merge_kubeconfigs(files.iter().map(|(name, path)| (*name, &**path)));
        let path = directory.path().join("merged");
        std::fs::write(&path, serde_yaml::to_string(&merged.unwrap()).unwrap()).unwrap();

        for name in ["east", "west"] {
            let cluster = Cluster::from_context(name, &path, Path::new("kubectl")).await;
            let (server, _) = cluster.unwrap().server().unwrap();
            assert_eq!(server, format!("https://{name}.example.com:6443"));
        }
        let north = Cluster::from_context("north", &path, Path::new("kubectl")).await;
        assert!(north.is_err());
    }
}
