//! Flags of who may call.

use std::path::PathBuf;

/// Flags of TLS and tokens.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Callers")]
pub struct CallerArgs {
    /// Directory with tls.crt and tls.key in PEM, to serve calls over TLS. Without it: plaintext. Read again every 5 s and on
    /// SIGHUP; files that cannot be used change nothing.
    #[arg(long, env, value_name = "DIR")]
    pub cert_path: Option<PathBuf>,
    /// CAs in PEM: callers must have a certificate of one of them. Read again as the certificate is.
    #[arg(long, env, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Tokens, one on each line: callers must send one of them as authorization: Bearer TOKEN, but for metrics and health.
    /// Read again every 5 s and on SIGHUP; a file that cannot be used changes nothing.
    #[arg(long, env, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}
