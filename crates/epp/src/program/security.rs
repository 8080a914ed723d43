//! From flags to what the ports accept connections with.

use process::ConfigError;
use tls::{Acceptor, Alpn, TlsError, TlsFiles, TlsMetrics, TlsReload, TlsVersion};
use tracing::warn;

use crate::args::TlsArgs;

/// What the ports accept connections with, and what keeps that up to date.
pub(super) struct Security {
    pub(super) ext_proc: Acceptor,
    pub(super) admin: Acceptor,
    /// Those with files to read again.
    pub(super) reloads: Vec<TlsReload>,
}

/// The flags that name a port's files.
struct Flags {
    cert_dir: &'static str,
    client_ca: &'static str,
}

const EXT_PROC: Flags = Flags {
    cert_dir: "--cert-path",
    client_ca: "--client-ca-file",
};

const METRICS: Flags = Flags {
    cert_dir: "--metrics-cert-dir",
    client_ca: "--metrics-client-ca-file",
};

// === impl Security ===

impl Security {
    /// Reads all files.
    ///
    /// # Errors
    /// For flags that contradict each other, and files that cannot be used.
    pub(super) fn of(args: TlsArgs, metrics: &TlsMetrics) -> Result<Self, ConfigError> {
        let reload = args.enable_cert_reload;
        let (ext_proc, admin) = (ext_proc_files(&args)?, metrics_files(&args)?);
        let mut reloads = Vec::new();
        let mut begin = |files: Option<TlsFiles>, port: &'static str, flags: &Flags| {
            let Some(files) = files else {
                return Ok(Acceptor::plaintext());
            };
            let begun = files.clone().begin(metrics.port(port));
            let (acceptor, watched) = begun.map_err(|error| flags.refused(&files, &error))?;
            reloads.extend(Some(watched).filter(|watched| reload && watched.is_needed()));
            Ok(acceptor)
        };
        Ok(Self {
            ext_proc: begin(ext_proc, "ext_proc", &EXT_PROC)?,
            admin: begin(admin, "metrics", &METRICS)?,
            reloads,
        })
    }
}

fn ext_proc_files(args: &TlsArgs) -> Result<Option<TlsFiles>, ConfigError> {
    if args.client_ca_file.is_none() && !args.client_san.is_empty() {
        return Err(ConfigError::new(
            "--client-san without --client-ca-file",
            "both: a name says something only in a certificate of a known CA",
            "--client-ca-file /etc/epp/clients/ca.crt --client-san spiffe://west/ns/gateways/sa/envoy",
        ));
    }
    if !args.secure_serving {
        if args.client_ca_file.is_some() {
            return Err(ConfigError::new(
                "--client-ca-file with --secure-serving=false",
                "--secure-serving: without TLS no client can be verified",
                "--secure-serving --client-ca-file /etc/epp/clients/ca.crt",
            ));
        }
        if args.cert_path.is_some() {
            warn!("--cert-path has no effect with --secure-serving=false");
        }
        return Ok(None);
    }
    Ok(Some(TlsFiles {
        cert_dir: args.cert_path.clone(),
        client_ca: args.client_ca_file.clone(),
        client_sans: args.client_san.clone(),
        min_version: args.tls_min_version,
        alpn: Alpn::H2,
    }))
}

fn metrics_files(args: &TlsArgs) -> Result<Option<TlsFiles>, ConfigError> {
    let client_ca = args.metrics_client_ca_file.clone();
    let Some(cert_dir) = args.metrics_cert_dir.clone() else {
        if client_ca.is_some() {
            return Err(ConfigError::new(
                "--metrics-client-ca-file without --metrics-cert-dir",
                "both: without TLS no client can be verified",
                "--metrics-cert-dir /etc/epp/tls --metrics-client-ca-file /etc/epp/clients/ca.crt",
            ));
        }
        if args.metrics_endpoint_auth {
            warn!(
                "--metrics-endpoint-auth without --metrics-cert-dir: tokens reach the port in clear"
            );
        }
        return Ok(None);
    };
    Ok(Some(TlsFiles {
        cert_dir: Some(cert_dir),
        client_ca,
        client_sans: Vec::new(),
        min_version: TlsVersion::Tls12,
        alpn: Alpn::Http1,
    }))
}

// === impl Flags ===

impl Flags {
    /// The error that ends the program for what a file holds.
    fn refused(&self, files: &TlsFiles, error: &TlsError) -> ConfigError {
        let named = |flag: &str, path: Option<&std::path::PathBuf>| match path {
            Some(path) => format!("{flag} {}: {error}", path.display()),
            None => error.to_string(),
        };
        match error {
            TlsError::ClientCa(_) => ConfigError::new(
                named(self.client_ca, files.client_ca.as_ref()),
                "a file of CA certificates in PEM, of at most 1 MiB",
                format!("{} /etc/epp/clients/ca.crt", self.client_ca),
            ),
            TlsError::Pair(_) | TlsError::Unusable(_) => ConfigError::new(
                named(self.cert_dir, files.cert_dir.as_ref()),
                "a directory with tls.crt and tls.key in PEM",
                format!("{} /etc/epp/tls", self.cert_dir),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
