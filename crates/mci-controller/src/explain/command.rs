//! `mci-controller explain NAMESPACE/NAME`: queries a running controller and prints the answer.

use std::{io::Write, str::FromStr, time::Duration};

use clap::{Args, ValueEnum};
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use process::Exit;
use tokio::{net::TcpStream, time::timeout};

use super::{Explanation, render};
use crate::name::Key;

/// Explain why each member has or lacks one pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The pool, and so its imports.
    #[arg(value_name = "NAMESPACE/NAME")]
    key: PoolName,

    /// Admin port of a running controller, leader or standby.
    #[arg(
        long,
        env = "ADMIN_URL",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    admin_url: AdminUrl,

    /// What to print: text for people, json as the admin port gives it.
    #[arg(long, short, default_value = "text", value_name = "FORMAT")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// `namespace/name`.
#[derive(Clone, Debug)]
struct PoolName(Key);

/// Scheme and authority of an admin port; http alone, since it has no TLS.
#[derive(Clone, Debug)]
struct AdminUrl {
    host: String,
    port: u16,
}

/// The whole exchange: the controller answers within 5 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// 64 MiB: above 1000 members with an entry of 8 KiB each, several times over.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// Exit code if the controller does not answer, as for any failure.
const FAILED: u8 = 1;
/// Exit code if the key is unknown to the controller.
const UNKNOWN: u8 = 2;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    #[error("{0}")]
    Connect(std::io::Error),
    #[error("{0}")]
    Exchange(String),
}

/// Queries the controller, and prints to `out`.
/// # Errors
/// [`Exit`] with a text for the user.
pub(crate) async fn run_explain(args: ExplainArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let ExplainArgs {
        key: PoolName(key),
        admin_url,
        output,
    } = args;
    let asked = timeout(TIMEOUT, ask(&admin_url, &key)).await;
    let (status, body) = match asked.unwrap_or(Err(AskError::Timeout)) {
        Ok(answer) => answer,
        Err(error) => return Err(unreachable(&admin_url, &error).into()),
    };
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(unknown(&key).into()),
        _ => {
            let text = String::from_utf8_lossy(&body);
            let message = text.trim();
            return Err(Exit::new(
                FAILED,
                format!("the controller answers {status}: {message}"),
            )
            .into());
        }
    }
    let explanation: Explanation = serde_json::from_slice(&body).map_err(|error| {
        let text = format!(
            "{admin_url} does not answer as this version of the controller does ({error}): use the same version"
        );
        Exit::new(FAILED, text)
    })?;
    match output {
        Output::Text => write!(out, "{}", render(&explanation))?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&explanation)?)?,
    }
    Ok(())
}

async fn ask(url: &AdminUrl, key: &Key) -> Result<(StatusCode, Vec<u8>), AskError> {
    let exchange = |error: &dyn std::fmt::Display| AskError::Exchange(error.to_string());
    let stream = TcpStream::connect((url.host.as_str(), url.port))
        .await
        .map_err(AskError::Connect)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| exchange(&error))?;
    let request = Request::get(format!("/debug/explain/{key}"))
        .header(header::HOST, url.to_string())
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| exchange(&error))?;
    let answer = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| exchange(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| exchange(&error))?;
        Ok((status, body.to_bytes().to_vec()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(exchange(&error)),
        }
    }
}

fn unreachable(url: &AdminUrl, error: &AskError) -> Exit {
    let text = format!(
        "cannot ask http://{url}: {error}\n\
         Expected the admin port of a running controller. From outside of its cluster, first run\n\
         \x20 kubectl -n isthmus-system port-forward deployment/isthmus-mci-controller 8080\n\
         or set its address: --admin-url http://HOST:PORT"
    );
    Exit::new(FAILED, text)
}

fn unknown(key: &Key) -> Exit {
    let text = format!(
        "{key} is unknown: no member that the controller has listed has an InferencePool or InferencePoolImport of this name.\n\
         See whether the name is right, and in /debug/clusters of the admin port whether the member with the pool is in contact."
    );
    Exit::new(UNKNOWN, text)
}

// === impl PoolName ===

impl FromStr for PoolName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let key = text
            .split_once('/')
            .and_then(|(namespace, name)| Key::checked(namespace, name));
        let expected = "a namespace, a slash and the name of a pool, for example ml/llm";
        key.map(Self).ok_or_else(|| format!("expected {expected}"))
    }
}

// === impl AdminUrl ===

impl FromStr for AdminUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = || "expected the admin port, for example http://127.0.0.1:8080".to_owned();
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let plain = uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
        let host = uri.host().filter(|_| plain).ok_or_else(expected)?;
        // a URI has brackets around an IPv6 address, a socket address has none
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(80),
        })
    }
}

impl std::fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests;
