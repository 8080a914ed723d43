//! From flags to who may call.

use process::ConfigError;
use prometheus_client::registry::Registry;
use tls::{Acceptor, Alpn, TlsError, TlsFiles, TlsMetrics, TlsReload, TlsVersion};

use crate::{
    args::CallerArgs,
    parts::{Parts, hangups},
    token::{TokenFile, Tokens},
};

/// Who may call, and what keeps that up to date.
#[derive(Debug)]
pub struct Security {
    /// With TLS or without.
    pub acceptor: Acceptor,
    /// What callers must send, if anything.
    pub tokens: Option<Tokens>,
    certificates: Option<TlsReload>,
    token_file: Option<TokenFile>,
}

/// How a program and its parts are named.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// In paths of examples: `metadata-center`.
    pub program: &'static str,
    /// Before the names of its metrics: `metadata_center`.
    pub metrics: &'static str,
}

// === impl Security ===

impl Security {
    /// Reads all files.
    ///
    /// # Errors
    /// For flags that contradict each other, and files that cannot be used.
    pub fn of(
        args: CallerArgs,
        names: Names,
        registry: &mut Registry,
    ) -> Result<Self, ConfigError> {
        let in_etc = |rest: &str| format!("/etc/{}/{rest}", names.program);
        let CallerArgs {
            cert_path,
            client_ca_file,
            token_file,
        } = args;
        let (acceptor, certificates) = match (cert_path, client_ca_file) {
            (None, None) => (Acceptor::plaintext(), None),
            (None, Some(path)) => {
                return Err(ConfigError::new(
                    format!("--client-ca-file {} without --cert-path", path.display()),
                    "both: without TLS no client can be verified",
                    format!(
                        "--cert-path {} --client-ca-file {}",
                        in_etc("tls"),
                        in_etc("clients/ca.crt")
                    ),
                ));
            }
            (cert_dir, client_ca) => {
                let files = TlsFiles {
                    cert_dir,
                    client_ca,
                    client_sans: Vec::new(),
                    min_version: TlsVersion::Tls12,
                    alpn: Alpn::Http,
                };
                let metrics = TlsMetrics::register(registry, names.metrics);
                let begun = files.clone().begin(metrics.port("http"));
                let (acceptor, reload) = begun.map_err(|error| refused(&files, &error, in_etc))?;
                (acceptor, Some(reload))
            }
        };
        let token_file = token_file.map(|path| {
            let value = format!("--token-file {}", path.display());
            TokenFile::begin(path).map_err(|error| {
                ConfigError::new(
                    format!("{value}: {error}"),
                    "a file of tokens, one on each line, of at most 64 KiB",
                    format!("--token-file {}", in_etc("token")),
                )
            })
        });
        let (tokens, token_file) = token_file.transpose()?.unzip();
        Ok(Self {
            acceptor,
            tokens,
            certificates,
            token_file,
        })
    }

    /// Starts what reads the files again.
    ///
    /// # Errors
    /// When the process can take no signals.
    pub fn spawn(&mut self, parts: &mut Parts) -> anyhow::Result<()> {
        let (of_certificates, of_tokens) = (hangups()?, hangups()?);
        if let Some(reload) = self.certificates.take() {
            parts.spawn("reload of certificates", async {
                reload.run(of_certificates).await;
                Ok(())
            });
        }
        if let Some(file) = self.token_file.take() {
            parts.spawn("reload of tokens", async {
                file.run(of_tokens).await;
                Ok(())
            });
        }
        Ok(())
    }
}

/// The error that ends the program for what a file holds.
fn refused(files: &TlsFiles, error: &TlsError, in_etc: impl Fn(&str) -> String) -> ConfigError {
    let (flag, path, expected, example) = match error {
        TlsError::ClientCa(_) => (
            "--client-ca-file",
            &files.client_ca,
            "a file of CA certificates in PEM, of at most 1 MiB",
            "clients/ca.crt",
        ),
        TlsError::Pair(_) | TlsError::Unusable(_) => (
            "--cert-path",
            &files.cert_dir,
            "a directory with tls.crt and tls.key in PEM",
            "tls",
        ),
    };
    let path = path.as_deref().unwrap_or_else(|| "".as_ref()).display();
    ConfigError::new(
        format!("{flag} {path}: {error}"),
        expected,
        format!("{flag} {}", in_etc(example)),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use rstest::rstest;

    use super::*;

    const NAMES: Names = Names {
        program: "metadata-center",
        metrics: "metadata_center",
    };

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        callers: CallerArgs,
    }

    #[rstest]
    #[case(&["--client-ca-file", "/none"], "--client-ca-file /none without --cert-path: ")]
    #[case(&["--cert-path", "/none"], "--cert-path /none: tls.crt cannot be read: ")]
    #[case(&["--cert-path", "DIR", "--client-ca-file", "/none"], "--client-ca-file /none: No such file")]
    #[case(&["--token-file", "/none"], "--token-file /none: No such file")]
    #[case(&["--token-file", "DIR/empty"], "there is no token in it: expected a file of tokens")]
    fn what_cannot_be_used_is_refused(#[case] flags: &[&str], #[case] said: &str) {
        let dir = tempfile::tempdir().unwrap();
        tls::test_pki::write_pair(dir.path());
        fs::write(dir.path().join("empty"), "\n").unwrap();
        let dir = dir.path().to_str().unwrap();
        let flags = flags.iter().map(|flag| flag.replace("DIR", dir));
        let args = Args::try_parse_from(["metadata-center".to_owned()].into_iter().chain(flags));
        let security = Security::of(args.unwrap().callers, NAMES, &mut Registry::default());
        let error = security.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
