//! From flags to how the Metadata-Center is connected to, and what keeps that up to date.

use std::path::Path;

use metadata_client::{Api, Http, TokenFile};
use process::ConfigError;
use tls::{Trust, TrustError, TrustFiles, TrustReload};
use tracing::warn;

use crate::args::CenterSettings;

/// What is read again while the program runs.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) tls: Option<TrustReload>,
    pub(crate) token: Option<TokenFile>,
}

/// What calls go over.
///
/// # Errors
/// For a host that cannot stand in a URL, and files that cannot be used.
pub(super) fn transport(
    settings: &CenterSettings,
    api: Api,
) -> Result<(Http, Reloads), ConfigError> {
    let files = settings.tls.as_ref().map(|tls| TrustFiles {
        ca_file: tls.ca_file.clone(),
        cert_dir: tls.cert_path.clone(),
    });
    let (trust, reload) = files.map(begin).transpose()?.unzip();
    let is_plaintext = trust.is_none();
    let http = Http::new(&settings.host, settings.port, api, trust).map_err(|error| {
        ConfigError::new(
            format!("--metadata-center-host {}", settings.host),
            error.to_string(),
            "--metadata-center-host metadata-center.llm.svc",
        )
    })?;
    let token = settings.token_file.as_ref().map(|path| {
        if is_plaintext {
            warn!("--metadata-center-token-file without --metadata-center-tls: the token is sent in clear");
        }
        TokenFile::begin(path.clone(), http.token()).map_err(|error| {
            ConfigError::new(
                format!("--metadata-center-token-file {}: {error}", path.display()),
                "a file with one token, of at most 64 KiB",
                "--metadata-center-token-file /etc/metadata-center/token",
            )
        })
    });
    let reloads = Reloads {
        tls: reload.filter(TrustReload::is_needed),
        token: token.transpose()?,
    };
    Ok((http, reloads))
}

fn begin(files: TrustFiles) -> Result<(Trust, TrustReload), ConfigError> {
    files.clone().begin().map_err(|error| {
        let (flag, path, expected, example) = match &error {
            TrustError::Ca(_) | TrustError::SystemCas(_) => (
                "--metadata-center-ca-file",
                files.ca_file.as_deref(),
                "a file of CA certificates in PEM, of at most 1 MiB",
                "/etc/metadata-center/ca.crt",
            ),
            TrustError::Pair(_) => (
                "--metadata-center-cert-path",
                files.cert_dir.as_deref(),
                "a directory with tls.crt and tls.key in PEM",
                "/etc/epp/metadata-center-tls",
            ),
        };
        let path = path.map(Path::display);
        let value = path.map_or_else(|| flag.to_owned(), |path| format!("{flag} {path}"));
        ConfigError::new(
            format!("{value}: {error}"),
            expected,
            format!("{flag} {example}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::args::MetadataCenterArgs;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        center: MetadataCenterArgs,
    }

    #[rstest]
    #[case(&["--metadata-center-host=a b"], "--metadata-center-host a b")]
    #[case(&["--metadata-center-tls", "--metadata-center-ca-file=/none"], "--metadata-center-ca-file /none: No such file")]
    #[case(&["--metadata-center-tls", "--metadata-center-ca-file=DIR/tls.crt", "--metadata-center-cert-path=/none"],
           "--metadata-center-cert-path /none: tls.crt cannot be read")]
    #[case(&["--metadata-center-token-file=DIR/empty"], "there is no token in it")]
    fn what_cannot_be_used_is_refused(#[case] flags: &[&str], #[case] want: &str) {
        let dir = tempfile::tempdir().unwrap();
        tls::test_pki::write_pair(dir.path());
        fs::write(dir.path().join("empty"), "\n").unwrap();
        let dir = dir.path().to_str().unwrap();
        let flags = flags.iter().map(|flag| flag.replace("DIR", dir));
        let program = Program::try_parse_from(["epp".to_owned()].into_iter().chain(flags));
        let settings = program.unwrap().center.settings(&mut rand::rng()).unwrap();
        let error = transport(&settings, Api::Isthmus).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
}
