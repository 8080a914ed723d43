//! The cause of an error, without what it may quote: kube shows the text of a kubeconfig that it cannot parse, and all that
//! a credential plugin printed, and there are tokens in both.

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
    if let Some(KubeconfigError::Parse(_)) = error.downcast_ref() {
        return Some("it is no YAML with clusters, users, contexts and current-context".to_owned());
    }
    match error.downcast_ref()? {
        AuthError::AuthExecRun { cmd, out } => Some(format!(
            "the credential plugin {cmd} ended with {}: run it by hand, or any kubectl command with this context",
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
        assert!(!cause(&error).contains("s3cret"), "{}", cause(&error));
    }

    #[test]
    fn what_a_credential_plugin_printed_is_not_quoted() {
        let out = std::process::Command::new("sh")
            .args(["-c", "echo s3cret; exit 3"])
            .output()
            .expect("a shell");
        let plugin = AuthError::AuthExecRun {
            cmd: "get-token".to_owned(),
            out: Box::new(out),
        };
        let error = kube::Error::Service(Box::new(plugin));
        let text = cause(&error);
        assert!(text.contains("get-token") && text.contains('3'), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}
