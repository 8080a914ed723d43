use std::{fs, net::SocketAddr, time::Duration};

use clap::Parser;
use http_call::{Call, Hop};
use rcgen::CertificateParams;
use tempfile::TempDir;
use tls::test_pki::Ca;
use tokenization::sample;
use tokio::{task::JoinSet, time::timeout};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

const MODELS_FILE: &str = "models: [{name: tiny, path: tiny}, {name: lost, path: lost}]";

/// The program on ports of its own.
struct Program {
    calls: SocketAddr,
    tokens: Option<SocketAddr>,
    admin: SocketAddr,
    shutdown: Shutdown,
    tasks: JoinSet<anyhow::Result<()>>,
    _base: TempDir,
}

// === impl Program ===

impl Program {
    fn start(flags: &[&str]) -> Self {
        let base = TempDir::new().unwrap();
        sample::write(&base.path().join("tiny")).unwrap();
        let file = base.path().join("models.yaml");
        fs::write(&file, MODELS_FILE).unwrap();
        let file = file.to_str().unwrap();
        let own = ["processor", "--models-file", file, "--host", "127.0.0.1"];
        let ports = ["--http-port", "0", "--token-port", "0", "--admin-port", "0"];
        let flags = [&own[..], &ports, flags].concat();
        let made = Made::of(Args::try_parse_from(flags).unwrap()).unwrap();
        let ports = Ports::open(&made.listen, made.with_token_port()).unwrap();
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let (calls, admin) = (address(&ports.calls), address(&ports.admin));
        let tokens = ports.tokens.as_ref().map(address);
        let shutdown = Shutdown::manual();
        let mut tasks = JoinSet::new();
        tasks.spawn(made.serve(ports, shutdown.clone()));
        Self {
            calls,
            tokens,
            admin,
            shutdown,
            tasks,
            _base: base,
        }
    }

    async fn until_ready(&self, expected: bool) {
        let status = if expected { 200 } else { 503 };
        let mut last = (0, String::new());
        let waiting = async {
            while last.0 != status {
                last = ask(self.admin, "GET", "/readyz", "").await;
            }
        };
        let waited = timeout(LIMIT, waiting).await;
        waited.unwrap_or_else(|_| panic!("/readyz is not {status}: {last:?}"));
    }

    async fn ended(mut self) -> anyhow::Result<()> {
        let ended = timeout(LIMIT, self.tasks.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }
}

async fn ask(address: SocketAddr, method: &str, path: &str, body: &'static str) -> (u16, String) {
    let hop = Hop::new(
        format!("http://{address}").parse().unwrap(),
        http_call::Settings::default(),
    );
    let call = Call {
        method: method.parse().unwrap(),
        path: path.parse().unwrap(),
        headers: http::HeaderMap::new(),
        body: vec![body.into()],
    };
    let reply = hop.call(call, LIMIT).await.unwrap();
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    (reply.status.as_u16(), body)
}

#[tokio::test]
async fn each_port_has_its_paths_and_probes_name_the_models_that_failed() {
    let program = Program::start(&[]);
    program.until_ready(true).await;
    let (_, ready) = ask(program.admin, "GET", "/readyz", "").await;
    assert!(
        ready.starts_with("models: ready (1 loaded; lost failed: "),
        "{ready}"
    );
    let call = r#"{"request_body":{"model":"tiny","prompt":"a"}}"#;
    let (status, reply) = ask(program.calls, "POST", "/process", call).await;
    assert_eq!(
        (status, &*reply),
        (200, r#"{"token_value":"[97]","token_count":1}"#)
    );
    let key = "/v1/tokens/tk_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (status, reply) = ask(program.tokens.unwrap(), "GET", key, "").await;
    assert_eq!(status, 404, "{reply}");
    assert!(reply.contains("unknown-key"), "{reply}");
    let (_, page) = ask(program.admin, "GET", "/metrics", "").await;
    for line in [
        "processor_requests_total{outcome=\"ok\"} 1\n",
        "processor_models{state=\"failed\"} 1\n",
        "processor_stage_duration_seconds_count{stage=\"encode\"} 1\n",
        "processor_encode_bytes_total{source=\"cold\"} 1\n",
        "token_cache_operations_total{op=\"get\",result=\"miss\"} 1\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[tokio::test]
async fn with_a_certificate_calls_and_ids_go_over_tls() {
    let dir = TempDir::new().unwrap();
    let ca = Ca::new("own");
    let (certificate, key) = ca.sign(CertificateParams::new(["127.0.0.1".to_owned()]).unwrap());
    let write = |name: &str, pem: &[u8]| fs::write(dir.path().join(name), pem).unwrap();
    write("tls.crt", certificate.pem().as_bytes());
    write("tls.key", key.serialize_pem().as_bytes());
    write("ca.crt", &ca.pem());
    let program = Program::start(&["--cert-path", dir.path().to_str().unwrap()]);
    program.until_ready(true).await;
    let trust = TrustFiles {
        ca_file: Some(dir.path().join("ca.crt")),
        cert_dir: None,
    };
    let settings = http_call::Settings {
        tls: Some(trust.begin().unwrap().0),
        ..http_call::Settings::default()
    };
    for port in [program.calls, program.tokens.unwrap()] {
        let url = format!("https://{port}").parse().unwrap();
        let call = Call {
            method: http::Method::GET,
            path: "/none".parse().unwrap(),
            headers: http::HeaderMap::new(),
            body: Vec::new(),
        };
        let reply = Hop::new(url, settings.clone()).call(call, LIMIT).await;
        assert_eq!(reply.unwrap().status, 404);
    }
}

#[tokio::test]
async fn a_token_cache_that_cannot_be_reached_costs_the_key_alone() {
    let nobody = [
        "--token-cache-endpoint",
        "http://127.0.0.1:1",
        "--token-transfer",
        "cache",
    ];
    let program = Program::start(&nobody);
    program.until_ready(true).await;
    assert_eq!(program.tokens, None);
    let call = r#"{"request_body":{"model":"tiny","prompt":"a"}}"#;
    let (status, reply) = ask(program.calls, "POST", "/process", call).await;
    let want = r#"{"token_count":1,"degraded":["cache-write"]}"#;
    assert_eq!((status, &*reply), (200, want));
}

#[tokio::test]
async fn without_a_token_cache_there_is_no_token_port() {
    let program = Program::start(&["--token-cache-endpoint", "none"]);
    program.until_ready(true).await;
    assert_eq!(program.tokens, None);
}

#[tokio::test]
async fn a_drain_is_not_ready_at_once_and_ends_when_the_last_calls_have() {
    let program = Program::start(&["--drain-timeout", "2s"]);
    program.until_ready(true).await;
    program.shutdown.drain.cancel();
    program.until_ready(false).await;
    program.ended().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_used_ends_the_program_before_a_port_is_opened() {
    let refused = |flags: &[&str]| {
        let args = Args::try_parse_from([&["processor"], flags].concat()).unwrap();
        let error = Made::of(args).map(|_| ()).unwrap_err();
        assert!(error.is::<ConfigError>(), "{error}");
        error.to_string()
    };
    let base = TempDir::new().unwrap();
    let file = base.path().join("models.yaml");
    let path = file.to_str().unwrap();
    let error = refused(&["--models-file", path]);
    assert!(error.contains("No such file"), "{error}");
    fs::write(&file, MODELS_FILE).unwrap();
    let error = refused(&["--models-file", path, "--token-auth-file", "/none"]);
    assert!(error.starts_with("--token-auth-file /none: "), "{error}");
    let https = ["--dynamo-router-endpoint", "https://router"];
    let flags = [
        &["--models-file", path, "--peer-ca-file", "/none"][..],
        &https,
    ]
    .concat();
    let error = refused(&flags);
    assert!(error.starts_with("--peer-ca-file"), "{error}");
    fs::write(&file, "models: []").unwrap();
    let error = refused(&["--models-file", path]);
    assert!(error.contains("models is empty"), "{error}");
}
