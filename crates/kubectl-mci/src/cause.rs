//! The cause of an error, without what it may quote: kube shows the text of a kubeconfig that it cannot parse, and of a
//! credential plugin how it was called and all that it printed, and there are secrets in all three.

use std::error::Error;

use kube::{client::AuthError, config::KubeconfigError};

/// The innermost cause: those around it say "error sending request".
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    loop {
        if let Some(text) = guarded(innermost) {
            return text;
        }
        match innermost.source() {
            Some(source) => innermost = source,
            None => return innermost.to_string(),
        }
    }
}

/// What is said in place of an error that quotes.
fn guarded(error: &(dyn Error + 'static)) -> Option<String> {
    match error.downcast_ref() {
        Some(KubeconfigError::Parse(_)) => {
            let text = "it is no YAML with clusters, users, contexts and current-context";
            return Some(text.to_owned());
        }
        // the error alone does not say which file
        Some(KubeconfigError::ReadConfig(error, path)) => {
            return Some(format!("{}: {error}", path.display()));
        }
        _ => {}
    }
    // the URL may have a password
    if let Some(
        kube::Error::ProxyProtocolUnsupported { proxy_url }
        | kube::Error::ProxyProtocolDisabled { proxy_url, .. },
    ) = error.downcast_ref()
    {
        return Some(format!(
            "a proxy-url of scheme {} is not supported: http:// is",
            proxy_url.scheme_str().unwrap_or("none")
        ));
    }
    match error.downcast_ref()? {
        // `cmd` has the variables and arguments of the kubeconfig
        AuthError::AuthExecRun { out, .. } => Some(format!(
            "the credential plugin of the context ended with {}: run any kubectl command with this context to see why",
            out.status
        )),
        AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) => {
            Some("the credential plugin of the context printed no ExecCredential".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn a_kubeconfig_that_does_not_parse_is_not_quoted() {
        let text = "users:\n- name: x\n  user: {token: s3cret\n";
        let error = Kubeconfig::from_yaml(text).expect_err("no YAML");
        let text = cause(&error);
        assert!(text.starts_with("it is no YAML with clusters"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn the_password_of_a_proxy_is_not_quoted() {
        let proxy_url: http::Uri = "socks5://me:s3cret@proxy:1080".parse().expect("a URL");
        let mut config = kube::Config::new(http::Uri::from_static("https://east:6443"));
        config.proxy_url = Some(proxy_url);
        let error = kube::Client::try_from(config).err().expect("no client");
        let text = cause(&error);
        assert!(text.contains("scheme socks5"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn how_a_credential_plugin_was_called_and_what_it_printed_are_not_quoted() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo s3cret; exit 3", "--secret=s3cret"]);
        command.env("SECRET", "s3cret");
        let out = command.output().expect("a shell");
        let plugin = AuthError::AuthExecRun {
            // as kube makes it
            cmd: format!("{command:?}"),
            out: Box::new(out),
        };
        let error = kube::Error::Service(Box::new(plugin));
        let text = cause(&error);
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}
