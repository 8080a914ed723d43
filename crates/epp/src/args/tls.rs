//! Flags of TLS, and of who may read metrics.

use std::path::PathBuf;

use clap::ArgAction;
use tls::{San, TlsVersion};

/// Flags of TLS.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Serve ext_proc over TLS. false: plaintext HTTP/2.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = true,
          num_args = 0..=1, default_missing_value = "true")]
    pub secure_serving: bool,
    /// Directory with tls.crt and tls.key in PEM. Without it a self-signed P-256 certificate is made at start.
    #[arg(long, env, value_name = "DIR")]
    pub cert_path: Option<PathBuf>,
    /// Read certificates and CAs of clients again every 5 s and on SIGHUP. Those that cannot be used change nothing. New
    /// connections get the new ones, open connections go on.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = true,
          num_args = 0..=1, default_missing_value = "true")]
    pub enable_cert_reload: bool,
    /// Oldest version of TLS on the ext_proc port: `VersionTLS12` or `VersionTLS13`.
    #[arg(long, env, value_name = "VERSION", default_value_t = TlsVersion::Tls12)]
    pub tls_min_version: TlsVersion,
    /// CAs in PEM: clients of ext_proc must have a certificate of one of them. Without it any client is let in.
    #[arg(long, env, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// A name (SAN) that is in the certificates of clients, exactly so: a host name, a URI such as a SPIFFE id, an IP or
    /// e-mail address; repeatable, one of them is enough. Without it every client that --client-ca-file lets in.
    #[arg(long, env, value_name = "NAME", value_delimiter = ',')]
    pub client_san: Vec<San>,
    /// Directory with tls.crt and tls.key in PEM, to serve --metrics-port over TLS. Without it: plaintext.
    #[arg(long, env, value_name = "DIR")]
    pub metrics_cert_dir: Option<PathBuf>,
    /// CAs in PEM: clients of --metrics-port must have a certificate of one of them.
    #[arg(long, env, value_name = "FILE")]
    pub metrics_client_ca_file: Option<PathBuf>,
    /// Ask the API server about each reader of --metrics-port: its bearer token (`TokenReview`), and whether it may get the
    /// path (`SubjectAccessReview`). /healthz and /readyz need no token.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub metrics_endpoint_auth: bool,
}
